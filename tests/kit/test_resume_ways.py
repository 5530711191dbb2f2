"""The table of resuming, row by row: in process, without asyncio, over HTTP, and streamed in process and over HTTP."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from outlast import Agent, AgentClient, AgentResumeError, DurableAgentServer, Reply, Tool, open_store
from outlast.adapters import ChatSession, LocalStore
from outlast.adapters.native import CallDelta, Delta, Stopped, TextDelta, ToolSpec
from outlast.client import RemoteSession
from outlast.core import jsontext
from outlast.core.errors import RESUME_REASONS
from outlast.core.reply import reply_of
from outlast.core.resume import (
    CANCELLED_RESULT,
    CONTINUE_TEXT,
    INTERRUPTED_RESULT,
    NOT_APPROVED_RESULT,
    RETRY_TEXT,
    ResumeKind,
    ResumePoint,
)
from outlast.core.transcript import Message, StopReason
from outlast.sessions import SessionStore
from outlast.testing.serving import ServerThread

pytestmark = pytest.mark.anyio

Item = dict[str, Any]
DONE: Sequence[Delta] = (TextDelta("Done."), Stopped(StopReason.STOP))


def user(text: str) -> Item:
    return {"role": "user", "content": text}


def internal(text: str) -> Item:
    return {"role": "internal", "content": text}


def said(text: str, stop: str = "stop", **more: Any) -> Item:
    return {"role": "assistant", "content": text, "stop_reason": stop, **more}


def called(*ids: str, name: str = "look", text: str = "", stop: str = "tool_calls", **more: Any) -> Item:
    calls = [{"id": id, "name": name, "arguments": "{}"} for id in ids]
    return said(text, stop, tool_calls=calls, **more)


def result(id: str, text: str = "5 left", *, failed: bool = False) -> Item:
    return {"role": "tool", "content": text, "tool_call_id": id, "failed": failed}


def interrupted(id: str) -> Item:
    return result(id, INTERRUPTED_RESULT, failed=True)


A = user("a")
CUT = said("The three rea", "length")
EMPTY = said("")
THOUGHT = said("", reasoning="The user greets me.")
ASKED = called("p1", name="pay", model="told")
"""Calls of `pay` wait for a person, where a run asked for them."""
BOTH = called("c1", model="told") | {"tool_calls": called("c1")["tool_calls"] + ASKED["tool_calls"]}
NOT_APPROVED = result("p1", NOT_APPROVED_RESULT, failed=True)
ANSWER = said("Done.", model="told")


@dataclass(frozen=True)
class Row:
    """A history, and what resuming it does."""

    name: str
    history: Sequence[Item]
    kind: ResumeKind
    added: Sequence[Item] = ()
    heard: Sequence[Item] | None = None
    """What the model is called with, where that is not simply the history and what was added."""
    asked: int = 0
    """How many of the first items come from a run that asked a person."""

    @property
    def conversation(self) -> list[Item]:
        return [*self.history, *self.added] if self.heard is None else list(self.heard)

    @property
    def opened(self) -> list[str]:
        return [one["tool_call_id"] for one in self.added if one["role"] == "tool"]


CALL = ResumeKind.CALL_MODEL
RECOVER = ResumeKind.RECOVER_TOOLS
RETRY = ResumeKind.RETRY_RESPONSE
CONTINUE = ResumeKind.CONTINUE_RESPONSE

again, go_on = internal(RETRY_TEXT), internal(CONTINUE_TEXT)

ROWS = [
    Row("a user message", [A], CALL),
    Row("a user message later on", [A, said("one"), user("b")], CALL),
    Row("the same message twice", [A, A], CALL),  # BR-18
    Row("an internal message", [A, CUT, go_on], CALL),
    Row("a system message behind the user's", [A, {"role": "system", "content": "be brief"}], CALL),
    Row("all results", [A, called("c1", "c2"), result("c2"), result("c1")], CALL,
        heard=[A, called("c1", "c2"), result("c1"), result("c2")]),
    Row("a failed result", [A, called("c1"), result("c1", "no such shelf", failed=True)], CALL),
    Row("a cancelled result", [A, called("c1"), result("c1", CANCELLED_RESULT, failed=True)], CALL),
    Row("a result behind a user message", [A, called("c1"), user("b"), result("c1")], CALL,
        heard=[A, called("c1"), result("c1"), user("b")]),
    Row("results of a cut response", [A, called("c1", text="Let me", stop="length"), interrupted("c1")], CALL),
    Row("a pause", [A, said("wait", "paused")], CALL),
    Row("a pause without a word", [A, said("", "paused")], CALL, heard=[A]),
    Row("a user who went on past an approval and its answer", [A, ASKED, user("b"), NOT_APPROVED], CALL, asked=2,
        heard=[A, ASKED, NOT_APPROVED, user("b")]),
    Row("an open call", [A, called("c1")], RECOVER, [interrupted("c1")]),
    Row("two open calls", [A, called("c1", "c2")], RECOVER, [interrupted("c1"), interrupted("c2")]),
    Row("one of two calls open", [A, called("c1", "c2"), result("c1")], RECOVER, [interrupted("c2")]),
    Row("the first of two calls open", [A, called("c1", "c2"), result("c2")], RECOVER, [interrupted("c1")],
        heard=[A, called("c1", "c2"), interrupted("c1"), result("c2")]),
    Row("an open call of a used id", [A, called("c1"), result("c1"), said("one"), user("b"), called("c1")], RECOVER,
        [interrupted("c1")]),
    Row("a user message over an open call", [A, called("c1"), user("b")], RECOVER, [interrupted("c1")],
        heard=[A, called("c1"), interrupted("c1"), user("b")]),
    Row("an open call of a tool nobody has", [A, called("c1", name="gone")], RECOVER, [interrupted("c1")]),
    Row("an open call whose approval nobody asked for", [A, called("c1", name="pay")], RECOVER, [interrupted("c1")]),
    *(Row(f"an open call of a response that ended with {stop}", [A, called("c1", text="Let me", stop=stop)], RECOVER,
          [interrupted("c1")]) for stop in StopReason if stop is not StopReason.TOOL_CALLS),
    Row("a user who went on past an approval", [A, ASKED, user("b")], RECOVER, [NOT_APPROVED], asked=2,
        heard=[A, ASKED, NOT_APPROVED, user("b")]),
    Row("an interrupted response", [A, said("hal", "aborted")], RETRY, [again]),
    Row("a response interrupted before a word", [A, said("", "aborted")], RETRY, [again], heard=[A, again]),
    Row("a response that failed", [A, said("hal", "error")], RETRY, [again]),
    Row("an empty response", [A, EMPTY], RETRY, [again], heard=[A, again]),
    Row("a response of white space", [A, said(" \n")], RETRY, [again], heard=[A, again]),
    Row("a thought without a word", [A, THOUGHT], RETRY, [again], heard=[A, again]),  # BR-16
    Row("an empty response to results", [A, called("c1"), result("c1"), EMPTY], RETRY, [again],
        heard=[A, called("c1"), result("c1"), again]),
    Row("an empty response after one that was retried", [A, said("hal", "aborted"), again, EMPTY], RETRY, [again],
        heard=[A, said("hal", "aborted"), again, again]),
    Row("an empty response, as in an earlier turn", [A, EMPTY, user("b"), EMPTY], RETRY, [again],
        heard=[A, user("b"), again]),
    Row("a malformed call", [A, said("", "malformed_call")], RETRY, [again], heard=[A, again]),
    Row("a malformed call behind text", [A, said("Let me", "malformed_call")], RETRY, [again]),
    Row("an output limit before a word", [A, said("", "length")], RETRY, [again], heard=[A, again]),
    Row("an output limit", [A, CUT], CONTINUE, [go_on]),  # BR-15
    Row("a second output limit", [A, CUT, go_on, said("sons ", "length")], CONTINUE, [go_on]),
]  # fmt: skip


@dataclass(frozen=True)
class Refusal:
    """A history that cannot be resumed, and why."""

    name: str
    history: Sequence[Item]
    reason: str
    asked: int = 0
    opened: Sequence[str] = ()


REFUSALS = [
    Refusal("nothing", [], "empty"),
    Refusal("only a system message", [{"role": "system", "content": "be brief"}], "empty"),
    Refusal("an answer", [A, said("one")], "completed"),
    Refusal("a greeting", [said("Welcome.")], "completed"),
    Refusal("a picture", [A, said("") | {"content": [{"type": "image", "url": "x"}]}], "completed"),
    Refusal("two empty responses", [A, EMPTY, EMPTY], "completed"),
    Refusal("a second empty response", [A, EMPTY, again, EMPTY], "completed"),
    Refusal("a refusal", [A, said("no", "refusal")], "refused"),
    Refusal("a content filter", [A, said("", "content_filter")], "refused"),
    Refusal("a full context", [A, said("", "context_full")], "context_full"),
    Refusal("an unknown stop", [A, said("odd", "unknown")], "unknown_stop"),
    Refusal("a stop nobody has heard of", [A, said("odd", "solar_flare")], "unknown_stop"),
    Refusal("a result without a call", [A, result("c1")], "malformed"),
    Refusal("a result of another call", [A, called("c1"), result("c2")], "malformed"),
    Refusal("two results of a call", [A, called("c1"), result("c1"), result("c1")], "malformed"),
    Refusal("a result of an earlier call", [A, called("c1"), result("c1"), said("one"), result("c1")], "malformed"),
    Refusal("two calls of one id", [A, called("c1", "c1")], "malformed"),  # BR-14
    Refusal("an open approval", [A, ASKED], "awaiting_approval", asked=2, opened=["p1"]),
    Refusal("an open approval beside a result", [A, BOTH, result("c1")], "awaiting_approval", asked=3, opened=["p1"]),
]  # fmt: skip


class Told:
    """A model that says what it was told to, and keeps the conversations it is called with."""

    name = "told"

    def __init__(self) -> None:
        self.answer = DONE
        self.heard: list[list[Item]] = []

    async def stream(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> AsyncGenerator[Delta, None]:
        self.heard.append([message.as_json() for message in messages])
        for delta in self.answer:
            yield delta


@dataclass
class Place:
    """One database, with an agent that uses it in this process and behind a server."""

    local: LocalStore
    client: AgentClient
    model: Told
    agent: Agent
    ran: list[str] = field(default_factory=list)

    def chat(self, id: str) -> ChatSession:
        return self.agent.session(id, store=self.local)

    def remote(self, id: str) -> RemoteSession:
        return self.client.session(id)

    async def prepare(self, id: str, history: Sequence[Item], asked: int) -> None:
        """Store a history as it is; the first items, where they ask a person, by a run that does so."""
        sessions = SessionStore(self.local)
        await sessions.create(id)
        if asked:
            calls = [CallDelta(at, "{}", one["id"], one["name"]) for at, one in enumerate(history[1]["tool_calls"])]
            self.model.answer = [*calls, Stopped(StopReason.TOOL_CALLS)]
            assert (await self.chat(id).run(history[0]["content"])).interrupt is not None
            self.model.answer = DONE
        await sessions.append(id, history[asked:])
        self.model.heard.clear()
        self.ran.clear()

    async def items(self, id: str) -> list[Any]:
        return [(item.position, item.id, item.content) async for item in SessionStore(self.local).items(id)]

    async def events(self, invocation_id: str) -> list[Item]:
        store = await self.local.store()
        run = await store.read.invocation("local", invocation_id)
        assert run is not None
        return [jsontext.decode(one.text) for one in await store.read.events(run.number, after=0, limit=1000)]

    async def runs(self, id: str) -> int:
        read = (await self.local.store()).read
        found = await read.listed("local", session_id=id, status=None, agent=None, metadata={}, before=None, limit=10)
        return len(found)


Conversation = ChatSession | RemoteSession
Resumed = tuple[Reply, list[Item] | None]
"""The reply, and the events where they were streamed."""


@dataclass(frozen=True)
class Way:
    """One of the ways of a user's program."""

    name: str
    session: Callable[[Place, str], Conversation]
    point: Callable[[Conversation], Awaitable[ResumePoint | None]]
    resume: Callable[[Conversation], Awaitable[Resumed]]


async def point(session: Conversation) -> ResumePoint | None:
    return await session.resume_point()


async def point_blocking(session: Conversation) -> ResumePoint | None:
    return await asyncio.to_thread(session.sync.resume_point)


async def resume(session: Conversation) -> Resumed:
    return await session.resume(), None


async def resume_blocking(session: Conversation) -> Resumed:
    return await asyncio.to_thread(session.sync.resume), None


async def resume_streamed(session: Conversation) -> Resumed:
    *events, end = [event async for event in session.stream_resume()]
    return reply_of(end), events


WAYS = [
    Way("in process", Place.chat, point, resume),
    Way("sync", Place.chat, point_blocking, resume_blocking),
    Way("HTTP", Place.remote, point, resume),
    Way("streamed in process", Place.chat, point, resume_streamed),
    Way("streamed over HTTP", Place.remote, point, resume_streamed),
]

every_way = pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module", params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """One database of each kind for all rows."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path_factory.mktemp('ways') / 'state.db'}"
    made: str = request.getfixturevalue("postgres_server").create_database()
    return made


@pytest.fixture(scope="module")
async def place(url: str) -> AsyncIterator[Place]:
    model, ran = Told(), list[str]()

    def look() -> str:
        ran.append("look")
        return "5 left"

    def pay() -> str:
        ran.append("pay")
        return "paid"

    agent = Agent(model, tools=[look, Tool(pay, needs_approval=True)])
    with ServerThread(DurableAgentServer(agent, store=url)) as server:
        async with open_store(url) as local, AgentClient(server.url) as client:
            yield Place(local, client, model, agent, ran)
            await asyncio.to_thread(agent.session("any", store=local).sync.close)


@every_way
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
async def test_resuming_adds_what_the_table_says(place: Place, row: Row, way: Way) -> None:
    id = f"{row.name}/{way.name}"
    await place.prepare(id, row.history, row.asked)
    session, before = way.session(place, id), await place.items(id)
    assert [content for _, _, content in before] == row.history
    found = await way.point(session)
    assert found is not None
    assert (found.kind, [call.id for call in found.unanswered_tool_calls]) == (row.kind, row.opened)

    reply, streamed = await way.resume(session)

    after = await place.items(id)
    assert after[: len(before)] == before
    assert [content for _, _, content in after[len(before) :]] == [*row.added, ANSWER]
    assert place.model.heard == [row.conversation]
    assert place.ran == []
    assert (reply.text, reply.stop_reason) == ("Done.", "stop")
    events = await place.events(reply.invocation_id)
    assert [event.get("kind") for event in events if event["type"] == "agent.resume"] == [row.kind]
    assert events[0]["type"] == "agent.resume"
    assert streamed in (None, events)
    assert await way.point(session) is None


@every_way
@pytest.mark.parametrize("row", REFUSALS, ids=lambda row: row.name)
async def test_what_cannot_be_resumed_says_why(place: Place, row: Refusal, way: Way) -> None:
    id = f"{row.name}/{way.name}"
    await place.prepare(id, row.history, row.asked)
    session, before, runs = way.session(place, id), await place.items(id), await place.runs(id)
    assert [content for _, _, content in before] == row.history
    found = await way.point(session)
    assert (found.kind if found else None) == (ResumeKind.AWAIT_APPROVAL if row.opened else None)
    told = [(call.id, call.arguments, call.awaits_approval) for call in (found.unanswered_tool_calls if found else ())]
    assert told == [(id, "{}", id == "p1") for id in row.opened]

    with pytest.raises(AgentResumeError) as caught:
        await way.resume(session)

    assert caught.value.reason == row.reason
    assert (await place.items(id), await place.runs(id)) == (before, runs)
    assert (place.model.heard, place.ran) == ([], [])


def test_every_kind_and_reason_has_a_row() -> None:
    assert {row.kind for row in ROWS} == set(ResumeKind) - {ResumeKind.AWAIT_APPROVAL}
    assert {row.reason for row in REFUSALS} == set(RESUME_REASONS)
