"""What the `config` of a request becomes in a graph."""

from dataclasses import dataclass
from typing import Any, TypedDict

import pytest

pytest.importorskip("langgraph")

from fastapi.testclient import TestClient
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.runtime import Runtime
from pydantic import BaseModel

from outlast import DurableAgentServer
from outlast.adapters import LocalStore
from outlast.core.errors import InvalidRequest, RunFailed
from outlast_langgraph import LangGraphAgent

pytestmark = pytest.mark.anyio


@dataclass
class Settings:
    style: str = "plain"


@dataclass
class Needy:
    tenant: str


class Model(BaseModel):
    style: str = "plain"


class Dictionary(TypedDict, total=False):
    style: str


def graph(schema: Any) -> Any:
    def node(state: MessagesState, runtime: Runtime[Any], config: RunnableConfig) -> dict[str, Any]:
        found, context = config["configurable"], runtime.context
        style = context.get("style") if isinstance(context, dict) else getattr(context, "style", context)
        return {"messages": [AIMessage(f"{style} {found.get('voice')} {found.get('style')}")]}

    builder: Any = StateGraph(MessagesState, context_schema=schema)
    return builder.add_node("node", node).add_edge(START, "node").compile()


@pytest.mark.parametrize(("schema", "default"), [(Settings, "plain"), (Model, "plain"), (Dictionary, "None")])
async def test_what_a_graph_declares_is_its_context(local: LocalStore, schema: Any, default: str) -> None:
    chat = LangGraphAgent(graph(schema), config_keys={"voice"}).session("s", store=local)
    assert (await chat.run("go")).text == f"{default} None None"
    assert (await chat.run("go", config={"style": "loud", "voice": "low"})).text == "loud low None"


async def test_other_keys_are_refused_and_without_a_schema_there_is_no_context(local: LocalStore) -> None:
    chat = LangGraphAgent(graph(None), config_keys={"voice"}).session("s", store=local)
    assert (await chat.run("go", config={"voice": "low"})).text == "None low None"
    with pytest.raises(InvalidRequest, match="style"):
        await chat.run("go", config={"style": "loud"})


async def test_context_that_lacks_something_is_said_clearly(local: LocalStore) -> None:
    chat = LangGraphAgent(graph(Needy)).session("s", store=local)
    with pytest.raises(RunFailed, match="the context of the graph missing 1 required positional argument: 'tenant'"):
        await chat.run("go")
    assert (await chat.run("go", config={"tenant": "t"})).text.startswith("Needy(tenant='t')")


async def test_recursion_limit_is_langgraphs(local: LocalStore) -> None:
    builder = StateGraph(MessagesState).add_node("node", lambda state: {"messages": [AIMessage("x")]})
    builder.add_edge(START, "node").add_conditional_edges("node", lambda state: "node", ["node"])
    chat = LangGraphAgent(builder.compile(), config_keys={"recursion_limit"}).session("s", store=local)
    with pytest.raises(RunFailed, match="Recursion limit of 3"):
        await chat.run("go", config={"recursion_limit": 3})
    with pytest.raises(RunFailed, match="a number from 1"):
        await chat.run("go", config={"recursion_limit": "3"})


def test_requests_over_http_may_set_what_the_graph_declares(store_url: str) -> None:
    with TestClient(DurableAgentServer(LangGraphAgent(graph(Settings)), store=store_url)) as client:
        body: dict[str, Any] = {
            "id": "5f0d8f3c-0d0b-4a53-9d7f-5f5f3a9c1b11",
            "input": "go",
            "config": {"style": "loud"},
        }
        assert client.post("/api/invocations", json=body).json()["output"]["text"] == "loud None None"
        refused = client.post("/api/invocations", json={**body, "id": body["id"][:-1] + "2", "config": {"x": 1}})
        assert (refused.status_code, refused.json()["code"]) == (422, "unknown_config")
