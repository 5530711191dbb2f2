"""`/api/sessions`, over a real socket."""

import json
import logging
import threading
import uuid
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from outlast import Agent, AgentHandlers, DurableAgentServer, InvocationContext
from outlast.testing.scripted import ScriptedModel
from outlast.testing.serving import ServerThread

OPEN = threading.Event()


@pytest.fixture
def app(store_url: str) -> DurableAgentServer:
    app = DurableAgentServer(store=store_url)
    points: dict[str, Any] = {"cut": {"kind": "continue_response"}}

    @app.invoke
    def invoke(context: InvocationContext) -> Any:
        if context.input == "wait":
            OPEN.wait(20)
        return context.kind

    @app.resume_point
    def resume_point(session_id: str) -> Any:
        return points.get(session_id)

    return app


@pytest.fixture
def client(app: DurableAgentServer) -> Iterator[httpx.Client]:
    OPEN.clear()
    with ServerThread(app) as server, httpx.Client(base_url=server.url, timeout=30) as client:
        yield client
        OPEN.set()


def run(client: httpx.Client, session_id: str, input: Any = "hi", **fields: Any) -> Any:
    body = {"id": str(uuid.uuid4()), "session_id": session_id, "input": input, **fields}
    return client.post("/api/invocations", json=body).json()


def contents(page: httpx.Response) -> list[Any]:
    return [item["content"]["n"] for item in page.json()["items"]]


@pytest.mark.parametrize("id", ["plain", "a/b/items", "\u00e9 ?#%2F", "../..", "resume-point"])
def test_a_session_is_made_read_filled_and_removed_whatever_its_name(client: httpx.Client, id: str) -> None:
    path = f"/api/sessions/{quote(id, safe='')}"
    made = client.post("/api/sessions", json={"id": id, "labels": {"team": "x"}})
    assert (made.status_code, made.json()["id"], made.json()["agent"]) == (201, id, "agent")
    assert client.get(path).json() == made.json()
    added = client.post(f"{path}/items", json={"items": [{"n": 1}, {"n": 2}, {"n": 3}]})
    assert (added.status_code, contents(added)) == (201, [1, 2, 3])
    assert client.patch(path, json={"labels": {"team": None, "b": "c"}}).json()["labels"] == {"b": "c"}
    assert client.post(f"{path}/items/pop").json()["item"]["content"] == {"n": 3}
    assert client.delete(f"{path}/items").json() == {"removed": 2}
    assert client.delete(path).status_code == 204
    assert client.get(path).status_code == 404


def test_items_are_paged_both_ways(client: httpx.Client) -> None:
    client.post("/api/sessions", json={"id": "s"})
    client.post("/api/sessions/s/items", json={"items": [{"n": n} for n in range(5)], "key": "k"})
    client.post("/api/sessions/s/items", json={"items": [{"n": n} for n in range(5)], "key": "k"})
    first = client.get("/api/sessions/s/items", params={"limit": 2})
    rest = client.get("/api/sessions/s/items", params={"after": first.json()["next_cursor"]})
    assert (contents(first), contents(rest), rest.json()["next_cursor"]) == ([0, 1], [2, 3, 4], None)
    newest = client.get("/api/sessions/s/items", params={"limit": 2, "order": "desc"})
    older = client.get("/api/sessions/s/items", params={"order": "desc", "after": newest.json()["next_cursor"]})
    assert (contents(newest), contents(older)) == ([4, 3], [2, 1, 0])


def test_sessions_are_listed_by_page_and_filter(client: httpx.Client) -> None:
    for number in range(3):
        client.post("/api/sessions", json={"id": f"s{number}", "actor_id": "ann" if number else "bob"})
    page = client.get("/api/sessions", params={"limit": 2}).json()
    rest = client.get("/api/sessions", params={"limit": 2, "cursor": page["next_cursor"]}).json()
    assert [one["id"] for one in page["items"] + rest["items"]] == ["s2", "s1", "s0"]
    assert [one["id"] for one in client.get("/api/sessions?actor_id=ann").json()["items"]] == ["s2", "s1"]


def test_a_fork_goes_its_own_way(client: httpx.Client) -> None:
    client.post("/api/sessions", json={"id": "s"})
    items = client.post("/api/sessions/s/items", json={"items": [{"n": 1}, {"n": 2}]}).json()["items"]
    copy = client.post("/api/sessions/s/fork", json={"id": "copy", "up_to_item_id": items[0]["id"]})
    assert (copy.status_code, copy.json()["forked_from"]) == (201, "s")
    assert contents(client.get("/api/sessions/copy/items")) == [1]


def test_an_export_is_stored_under_its_name_or_another(client: httpx.Client) -> None:
    head = {"type": "session", "id": "s", "agent": "elsewhere", "actor_id": "ann", "labels": {}}
    lines = [json.dumps(line) for line in (head, {"type": "item", "id": "i", "content": {"n": 1}})]
    jsonl = {"Content-Type": "application/jsonl; charset=utf-8"}
    for query, name in (({}, "s"), ({"id": "t"}, "t"), ({"id": "t"}, "t")):
        made = client.post("/api/sessions", content="\n".join([*lines, ""]), params=query, headers=jsonl)
        assert (made.status_code, made.json()["id"], made.json()["agent"]) == (201, name, "elsewhere")
        assert contents(client.get(f"/api/sessions/{name}/items")) == [1]
    for body, named in (
        ("", "line 1"),
        (f"{lines[0]}\n{{}}", "line 2"),
        (f"{lines[0]}\n".encode() + b"\xff", "line 2"),
    ):
        refused = client.post("/api/sessions", content=body, params={"id": "u"}, headers=jsonl)
        assert (refused.status_code, refused.json()["code"], refused.json()["field"]) == (422, "invalid_import", named)
    assert client.get("/api/sessions/u").status_code == 404


def test_while_a_run_goes_on_only_reading_and_forking_are_possible(client: httpx.Client) -> None:
    active = run(client, "s", "wait", background=True)["id"]
    assert client.get("/api/sessions/s").json()["active"] == active
    assert client.get("/api/sessions/s/resume-point").json() == {"active": active, "point": None}
    refused = [
        client.post("/api/sessions/s/resume", json={"id": str(uuid.uuid4())}),
        client.post("/api/sessions/s/items", json={"items": [{}]}),
        client.post("/api/sessions/s/items/pop"),
        client.delete("/api/sessions/s/items"),
        client.delete("/api/sessions/s"),
    ]
    assert [(one.status_code, one.json()["code"]) for one in refused] == [(409, "session_active")] * 5
    assert client.post("/api/sessions/s/fork").status_code == 201


def test_a_session_that_was_interrupted_is_resumed_once(client: httpx.Client) -> None:
    client.post("/api/sessions", json={"id": "cut"})
    assert client.get("/api/sessions/cut/resume-point").json()["point"] == {"kind": "continue_response"}
    body = {"id": str(uuid.uuid4())}
    resumed = client.post("/api/sessions/cut/resume", json=body).json()
    assert (resumed["status"], resumed["kind"], resumed["output"]) == ("completed", "resume", "resume")
    assert client.post("/api/sessions/cut/resume", json=body).json() == resumed


def test_a_session_whose_items_are_no_messages_is_not_resumed(store_url: str) -> None:
    app = DurableAgentServer(Agent(ScriptedModel("Hi.")), store=store_url)
    with ServerThread(app) as server, httpx.Client(base_url=server.url, timeout=30) as client:
        client.post("/api/sessions", json={"id": "s"})
        client.post("/api/sessions/s/items", json={"items": [{"a": 1}]}).raise_for_status()
        for refused in (
            client.get("/api/sessions/s/resume-point"),
            client.post("/api/sessions/s/resume", json={"id": str(uuid.uuid4())}),
        ):
            assert (refused.status_code, refused.json()["code"]) == (409, "invalid_history")
        assert client.get("/api/invocations").json()["items"] == []


def test_a_session_that_is_complete_is_not_resumed(client: httpx.Client) -> None:
    run(client, "s")
    assert client.get("/api/sessions/s/resume-point").json() == {"active": None, "point": None}
    refused = client.post("/api/sessions/s/resume", json={"id": str(uuid.uuid4())})
    assert (refused.status_code, refused.json()["code"]) == (409, "resume_completed")
    assert len(client.get("/api/invocations?session_id=s").json()["items"]) == 1


def test_what_is_not_there_is_not_found(client: httpx.Client) -> None:
    body = {"id": str(uuid.uuid4())}
    asked = [
        client.get("/api/sessions/no"),
        client.get("/api/sessions/no/items"),
        client.get("/api/sessions/no/resume-point"),
        client.post("/api/sessions/no/resume", json=body),
        client.post("/api/sessions/no/items", json={"items": []}),
        client.post("/api/sessions/no/fork"),
        client.delete("/api/sessions/no"),
        client.get("/api/sessions/no/other"),
        client.get("/api/sessions/"),
        client.get("/api/sessions/no/"),
    ]
    assert [(one.status_code, one.headers["content-type"]) for one in asked] == [(404, "application/problem+json")] * 10


@pytest.mark.parametrize(
    ("method", "path", "body", "field"),
    [
        ("POST", "", {"id": ""}, "session_id"),
        ("POST", "", {"id": 7}, "session_id"),
        ("POST", "", {"sesion": "x"}, "sesion"),
        ("POST", "", {"agent": "other"}, "agent"),
        ("POST", "", {"parent": 7}, "parent"),
        ("POST", "", {"actor_id": "\x00"}, "actor_id"),
        ("POST", "", {"labels": {"a": 1}}, "labels"),
        ("POST", "", [], None),
        ("PATCH", "/s", {"labels": 7}, "labels"),
        ("POST", "/s/items", {}, "items"),
        ("POST", "/s/items", {"items": [7]}, "items[0]"),
        ("POST", "/s/items", {"items": [{}], "key": "\x00"}, "key"),
        ("POST", "/s/fork", {"up_to_item_id": 7}, "up_to_item_id"),
        ("POST", "/s/resume", {"id": "x"}, "id"),
        ("POST", "/s/resume", {"id": str(uuid.uuid4()), "input": 1}, "input"),
        ("GET", "?limit=0", None, "limit"),
        ("GET", "?colour=x", None, "colour"),
        ("GET", "?actor_id=%00", None, "actor_id"),
        ("GET", "/s/items?order=up", None, "order"),
        ("DELETE", "/s?force=yes", None, "force"),
        ("GET", "/%00", None, "session_id"),
        ("GET", "/%FF", None, "session_id"),
    ],
)
def test_a_bad_request_is_refused_and_named(
    client: httpx.Client, caplog: pytest.LogCaptureFixture, method: str, path: str, body: Any, field: str | None
) -> None:
    client.post("/api/sessions", json={"id": "s"})
    answer = client.request(method, f"/api/sessions{path}", json=body)
    assert (answer.status_code, answer.json().get("field")) == (422, field)
    assert [one["id"] for one in client.get("/api/sessions").json()["items"]] == ["s"]
    assert contents(client.get("/api/sessions/s/items")) == []
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_a_session_of_an_agent_that_is_not_served_here_is_not_resumed(store_url: str) -> None:
    agent = AgentHandlers(lambda context: 1)
    with (
        ServerThread(DurableAgentServer(agents={"a": agent}, store=store_url)) as one,
        ServerThread(DurableAgentServer(agents={"b": agent}, store=store_url)) as two,
    ):
        httpx.post(f"{one.url}/api/sessions", json={"id": "s"}).raise_for_status()
        answer = httpx.get(f"{two.url}/api/sessions/s/resume-point")
    assert (answer.status_code, answer.json()["code"]) == (409, "session_of_other_agent")
