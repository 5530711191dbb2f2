"""The states of a session over HTTP: read, changed, gone back to, copied."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import httpx
import pytest

pytest.importorskip("langchain")

from langchain.agents import create_agent
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt

from outlast import Agent, AgentClient, DurableAgentServer, SyncAgentClient
from outlast.core.errors import Conflict, InvalidRequest, NotFound, SessionBusy
from outlast.testing.scripted import Script, ScriptedModel
from outlast.testing.serving import ServerThread
from outlast_langgraph import LangGraphAgent
from outlast_langgraph.testing import ScriptedChatModel

pytestmark = pytest.mark.anyio


class Waiting:
    """A node that begins, and ends when it may."""

    def __init__(self) -> None:
        self.begun, self.may_end = threading.Event(), threading.Event()

    def graph(self) -> Any:
        def wait(state: MessagesState) -> dict[str, Any]:
            self.begun.set()
            self.may_end.wait(30)
            return {"messages": [AIMessage("I waited.")]}

        return StateGraph(MessagesState).add_node("wait", wait).add_edge(START, "wait").compile()


def asking() -> Any:
    def ask(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage(f"You said {interrupt({'question': 'How many?'})}.")]}

    return StateGraph(MessagesState).add_node("ask", ask).add_edge(START, "ask").compile()


def talker() -> LangGraphAgent:
    return LangGraphAgent(create_agent(ScriptedChatModel(script=Script("Hello.")), []), name="talker")


@pytest.fixture
def waiting() -> Waiting:
    return Waiting()


@pytest.fixture
def url(store_url: str, waiting: Waiting) -> Iterator[str]:
    """The address of a server with an agent of each kind."""
    agents = {
        "talker": talker(),
        "asking": LangGraphAgent(asking(), name="asking"),
        "waiting": LangGraphAgent(waiting.graph(), name="waiting"),
        "native": Agent(ScriptedModel("Hi."), name="native"),
    }
    with ServerThread(DurableAgentServer(agents=agents, store=store_url)) as server:
        yield server.url


@pytest.fixture
async def client(url: str) -> AsyncIterator[AgentClient]:
    async with AgentClient(url, agent="talker") as client:
        yield client


def texts(state: dict[str, Any]) -> list[str]:
    return [message["content"] for message in state["values"].get("messages", [])]


async def test_states_are_read_newest_first_and_page_by_page(url: str, client: AgentClient) -> None:
    chat = client.session("s")
    for said in ("one", "two"):
        await chat.run(said)
    history = [state async for state in chat.history()]
    assert texts(history[0]) == ["one", "Hello.", "two", "Hello."]
    assert await chat.state() == history[0]
    assert [state["parent_checkpoint_id"] for state in history] == [*[s["checkpoint_id"] for s in history[1:]], None]
    middle = history[2]["checkpoint_id"]
    assert await chat.state(middle) == history[2]
    assert [state async for state in chat.history(before=middle)] == history[3:]
    pages, query = list[Any](), {"limit": "3"}
    async with httpx.AsyncClient() as http:
        while True:
            page = (await http.get(f"{url}/api/sessions/s/history", params=query)).json()
            pages.append(page["items"])
            if page["next_cursor"] is None:
                break
            query["before"] = page["next_cursor"]
    assert [len(page) for page in pages[:-1]] == [3] * (len(pages) - 1)
    assert [state for page in pages for state in page] == history


async def test_changed_state_is_what_the_next_run_goes_on_from(client: AgentClient) -> None:
    chat = client.session("s")
    await chat.run("one")
    changed = await chat.update_state({"messages": [{"role": "user", "content": "and two"}]}, as_node="model")
    assert texts(changed) == ["one", "Hello.", "and two"]
    assert changed == await chat.state()
    await chat.run("three")
    assert texts(await chat.state()) == ["one", "Hello.", "and two", "three", "Hello."]


async def test_runs_go_on_from_an_earlier_state(client: AgentClient) -> None:
    chat = client.session("s")
    await chat.run("one")
    earlier = (await chat.state())["checkpoint_id"]
    await chat.run("two")
    values = {"messages": [{"role": "user", "content": "instead"}]}
    assert texts(await chat.update_state(values, as_node="model", checkpoint_id=earlier)) == [
        "one",
        "Hello.",
        "instead",
    ]


async def test_a_copy_goes_on_by_itself(client: AgentClient) -> None:
    chat = client.session("s")
    await chat.run("one")
    earlier = (await chat.state())["checkpoint_id"]
    await chat.run("two")
    copy = await chat.fork("copy", checkpoint_id=earlier)
    await copy.run("other")
    assert texts(await copy.state()) == ["one", "Hello.", "other", "Hello."]
    assert texts(await chat.state()) == ["one", "Hello.", "two", "Hello."]
    whole = await chat.fork()
    assert texts(await whole.state()) == texts(await chat.state())
    found = await client.sessions.get("copy")
    assert (found.forked_from, found.agent) == ("s", "talker")
    with pytest.raises(Conflict, match="there is a session 'copy' already"):
        await chat.fork("copy")


async def test_a_question_is_in_the_state(url: str) -> None:
    async with AgentClient(url, agent="asking") as asked:
        chat = asked.session("q")
        await chat.run("Well?")
        state = await chat.state()
    assert state["next"] == ["ask"]
    assert [one["value"] for task in state["tasks"] for one in task["interrupts"]] == [{"question": "How many?"}]


async def test_a_session_that_runs_is_not_changed(url: str, waiting: Waiting) -> None:
    async with AgentClient(url, agent="waiting") as other:
        chat = other.session("w")
        started = await chat.start("Wait.")
        await asyncio.to_thread(waiting.begun.wait, 30)
        with pytest.raises(SessionBusy):
            await chat.update_state({"messages": [{"role": "user", "content": "no"}]}, as_node="wait")
        with pytest.raises(SessionBusy):
            await chat.fork()
        waiting.may_end.set()
        assert [event async for event in other.events(started["id"], follow=True)]
        assert texts(await chat.state()) == ["Wait.", "I waited."]


@pytest.mark.parametrize(
    ("ask", "error", "said"),
    [
        (lambda chat: chat.state("nothing"), NotFound, "has no checkpoint nothing"),
        (lambda chat: anext(chat.history(before="nothing")), NotFound, "has no checkpoint nothing"),
        (lambda chat: chat.fork(checkpoint_id="nothing"), NotFound, "has no checkpoint nothing"),
        (lambda chat: chat.update_state({}, checkpoint_id="nothing"), NotFound, "has no checkpoint nothing"),
        (lambda chat: chat.update_state(None), InvalidRequest, "`values` is what is to be changed"),
        (lambda chat: chat.update_state({}, as_node="other"), InvalidRequest, "refuses this change.*other"),
        (lambda chat: chat.update_state({"messages": 5}, as_node="model"), InvalidRequest, "refuses this change"),
    ],
)
async def test_what_cannot_be_is_refused(
    client: AgentClient, ask: Callable[[Any], Any], error: type[Exception], said: str
) -> None:
    chat = client.session("s")
    await chat.run("one")
    before = await chat.state()
    with pytest.raises(error, match=said):
        await ask(chat)
    assert await chat.state() == before


async def test_an_agent_of_items_has_no_states(url: str) -> None:
    async with AgentClient(url, agent="native") as native:
        chat = native.session("n")
        await chat.run("Hi")
        for asked in (chat.state(), chat.update_state({}), chat.fork(checkpoint_id="c")):
            with pytest.raises(Conflict, match="keeps items, and no states"):
                await asked
        with pytest.raises(NotFound):
            await native.session("nobody").state()


def test_states_for_code_without_asyncio(store_url: str) -> None:
    with ServerThread(DurableAgentServer(talker(), store=store_url)) as server, SyncAgentClient(server.url) as client:
        chat = client.session("s")
        chat.run("one")
        assert texts(next(iter(chat.history()))) == ["one", "Hello."]
        assert texts(chat.fork("copy").state()) == texts(chat.state())
