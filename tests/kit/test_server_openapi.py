"""The OpenAPI document is valid and complete, and the server answers as it says."""

import uuid
from collections.abc import Iterator
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
from fastapi.testclient import TestClient
from openapi_spec_validator import validate

from outlast import Agent, DurableAgentServer, Tool
from outlast.testing.scripted import Say, ScriptedCall, ScriptedModel

METHODS = {"get", "post", "put", "patch", "delete"}
Operation = tuple[str, str]


def pay(amount: int) -> str:
    """Pay an amount."""
    return f"paid {amount}"


def served() -> DurableAgentServer:
    model = ScriptedModel(Say("", [ScriptedCall("pay", {"amount": 5})]), "It is paid.", "Hello.")
    return DurableAgentServer(Agent(model, tools=[Tool(pay, needs_approval=True)]), store="memory")


def operations(document: dict[str, Any]) -> Iterator[tuple[Operation, dict[str, Any]]]:
    for path, item in document["paths"].items():
        for method in METHODS & set(item):
            parameters = [*item.get("parameters", []), *item[method].get("parameters", [])]
            yield (method, path), {**item[method], "parameters": parameters}


class Checked:
    """A client that holds each answer against the document."""

    def __init__(self, client: TestClient, document: dict[str, Any]) -> None:
        self._client, self._document = client, document
        self._operations = dict(operations(document))
        self.seen: set[Operation] = set()

    def __call__(self, method: str, path: str, *, then: str = "", **options: Any) -> Any:
        """Send a request to a path of the document, filled with the rest of what it names."""
        filled = path.replace("{session_id}", then).replace("{id}", then)
        answer = self._client.request(method, filled, **options)
        described = self._operations[method, path]["responses"]
        content = described[str(answer.status_code)].get("content", {})
        media_type = answer.headers.get("content-type", "").partition(";")[0]
        assert set(content) >= ({media_type} if media_type else set()), answer.text
        if media_type == "application/json":
            schema = {**content[media_type]["schema"], "components": self._document["components"]}
            jsonschema.validate(answer.json(), schema)
            assert set(answer.json()) <= _properties(schema), answer.text
        self.seen.add((method, path))
        return answer


def _properties(schema: dict[str, Any]) -> set[str]:
    if "$ref" in schema:
        schema = schema["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return set(schema["properties"])


def test_the_document_is_valid() -> None:
    validate(served().openapi())


def test_everything_in_the_document_is_described() -> None:
    document = served().openapi()
    for schema in document["components"]["schemas"].values():
        assert schema["description"]
        assert [name for name, field in schema["properties"].items() if not field.get("description")] == []
    for name, operation in operations(document):
        assert operation["summary"], name
        bodies = operation.get("requestBody", {}).get("content", {})
        fields = bodies.get("application/json", {}).get("schema", {}).get("properties", {})
        nameless = [field for field, schema in fields.items() if not schema.get("description")]
        assert [nameless, [one["name"] for one in operation["parameters"] if not one.get("description")]] == [[], []], (
            name
        )


def test_the_document_has_the_methods_of_its_paths() -> None:
    server = served()
    with TestClient(server) as client:
        for path, item in server.openapi()["paths"].items():
            answer = client.options(path.replace("{id}", str(uuid.uuid4())).replace("{session_id}", "s"))
            allowed = {method.strip().lower() for method in answer.headers["allow"].split(",")}
            assert allowed - {"head", "options"} == METHODS & set(item), path


def test_the_server_answers_as_the_document_says() -> None:
    server = served()
    document = server.openapi()
    with TestClient(server) as client:
        ask = Checked(client, document)
        sessions, runs, memories = "/api/sessions", "/api/invocations", "/api/memories"
        one, run = f"{sessions}/{{session_id}}", f"{runs}/{{id}}"
        for path in ("/livez", "/readyz", "/startupz", "/metrics", "/api/agent"):
            ask("get", path)

        ask("post", sessions, json={"id": "s", "labels": {"topic": "tea"}})
        ask("get", one, then="s")
        ask("patch", one, then="s", json={"labels": {"topic": None}})
        ask("post", f"{one}/items", then="s", json={"items": [{"role": "user", "content": "Hi"}], "key": "k"})
        ask("get", f"{one}/items", then="s")
        ask("post", f"{one}/fork", then="s", json={"id": "copy"})
        ask("post", f"{one}/items/pop", then="s")
        ask("post", f"{one}/items/pop", then="s")
        ask("delete", f"{one}/items", then="s")
        ask("delete", one, then="s")

        paid = str(uuid.uuid4())
        asked = ask("post", runs, json={"id": paid, "session_id": "t", "input": "Pay."}).json()
        assert asked["status"] == "interrupted"
        (approval,) = ask("get", "/api/approvals").json()["items"]
        assert ask("get", f"{one}/resume-point", then="t").json()["point"]["kind"] == "await_approval"
        decision = {"resume": {"decisions": {approval["id"]: {"type": "approve"}}}}
        ask("post", runs, json={"id": str(uuid.uuid4()), "session_id": "t", "input": decision})
        ask("get", f"{one}/messages", then="t")
        ask("get", runs)
        ask("get", sessions)
        ask("get", run, then=paid)
        ask("get", f"{run}/events", then=paid)
        assert ask("get", f"{run}/events", then=paid, headers={"accept": "application/json"}).json()["items"]
        ask("post", f"{run}/cancel", then=paid)
        ask("delete", run, then=paid)
        ask("post", runs, json={"id": str(uuid.uuid4()), "session_id": "u", "input": "Hi", "background": True})

        ask("post", memories, json={"path": "food", "content": "tea"})
        ask("get", memories)
        ask("get", f"{memories}/entry", params={"path": "food"})
        ask("put", f"{memories}/entry", params={"path": "food"}, json={"content": "tea, milk"})
        ask("patch", f"{memories}/entry", params={"path": "food"}, json={"content": "milk"})
        ask("get", f"{memories}/search", params={"q": "milk"})
        ask("post", f"{memories}/search", json={"text": "milk"})
        ask("delete", f"{memories}/entry", params={"path": "food"})
    left = {path for _, path in dict(operations(document)).keys() - ask.seen}
    assert left == {f"{one}/{name}" for name in ("resume", "state", "history")}


def test_a_problem_is_as_the_document_says() -> None:
    server = served()
    with TestClient(server) as client:
        problem = client.post("/api/invocations", json={"input": 1, "tols": 2})
    schema = server.openapi()["components"]["schemas"]["Problem"]
    jsonschema.validate(problem.json(), schema)
    assert set(problem.json()) <= set(schema["properties"])


def test_states_of_a_graph_are_as_the_document_says() -> None:
    pytest.importorskip("langgraph")
    from langchain_core.messages import AIMessage
    from langgraph.graph import START, MessagesState, StateGraph

    from outlast_langgraph import LangGraphAgent

    def answer(state: MessagesState) -> dict[str, Any]:
        if len(state["messages"]) > 1:
            raise ValueError("no more")
        return {"messages": [AIMessage("done")]}

    graph = StateGraph(MessagesState).add_node("answer", answer).add_edge(START, "answer").compile()
    server = DurableAgentServer(LangGraphAgent(graph), store="memory")
    with TestClient(server) as client:
        ask = Checked(client, server.openapi())
        one = "/api/sessions/{session_id}"
        for _ in range(2):
            ask("post", "/api/invocations", json={"id": str(uuid.uuid4()), "session_id": "s", "input": "Hi"})
        ask("get", f"{one}/state", then="s")
        assert ask("get", f"{one}/history", then="s").json()["items"]
        ask("post", f"{one}/resume", then="s", json={"id": str(uuid.uuid4())})
        ask("post", f"{one}/state", then="s", json={"values": {"messages": []}, "as_node": "answer"})
