"""Conversations of the native agent when something goes wrong around them: the store, the provider, other workers."""

import asyncio
import gc
import os
import random
import tempfile
import threading
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from outlast import Agent, DurableAgentServer, RunFailed, open_store
from outlast.adapters import LocalStore
from outlast.adapters.native import Delta, ProviderUnavailable, Stopped, TextDelta, ToolSpec, asking
from outlast.core import faults
from outlast.core.errors import InvalidRequest, SessionBusy, StoreUnavailable
from outlast.core.records import Request
from outlast.core.resume import INTERRUPTED_RESULT
from outlast.core.transcript import Message, Role, StopReason
from outlast.engine import EngineSettings
from outlast.sessions import SessionStore
from outlast.store import Store
from outlast.store.reading import Reader
from outlast.store.statements import DatabaseError, Lost, Refused
from outlast.testing.effects import EffectsLog
from outlast.testing.kill import KillHarness
from outlast.testing.scripted import History, Say, Script, ScriptedCall, ScriptedModel
from outlast.testing.serving import ServerThread

pytestmark = pytest.mark.anyio

Item = dict[str, Any]


async def history(local: LocalStore, id: str = "s") -> list[tuple[str, str]]:
    found = [item.content async for item in SessionStore(local).items(id)]
    return [(message["role"], message["content"]) for message in found]


class Payer:
    """An agent that pays once; `broken` breaks the store from the moment on when it has paid."""

    def __init__(self) -> None:
        self.paid = 0
        self._break: Callable[[str], None] | None = None

        async def pay() -> str:
            self.paid += 1
            faults.install(self._break)
            return "paid"

        self.agent = Agent(ScriptedModel(Say(calls=[ScriptedCall("pay")]), "Done."), tools=[pay])

    @contextmanager
    def broken(self, write: str, error: type[DatabaseError], *, times: int) -> Iterator[None]:
        """Refuse writes of a kind, some times."""
        left = [error("broken by a test")] * times

        def refuse(point: str) -> None:
            if point == f"{write}.before_commit" and left:
                raise left.pop()

        self._break = refuse
        try:
            yield
        finally:
            self._break = None
            faults.install(None)


@pytest.mark.parametrize("write", ["items", "journal.done"])
async def test_a_result_that_could_not_be_stored_at_once_is_stored_later(local: LocalStore, write: str) -> None:
    # BR-13
    payer = Payer()
    with payer.broken(write, Lost, times=1):
        assert (await payer.agent.session("s", store=local).run("pay")).text == "Done."
    assert payer.paid == 1
    assert (await history(local))[1:3] == [("assistant", ""), ("tool", "paid")]


@pytest.mark.parametrize("goes_on", ["resume", "message"])
@pytest.mark.parametrize(("write", "known"), [("items", "paid"), ("journal.done", INTERRUPTED_RESULT)])
async def test_a_result_that_could_not_be_stored_is_told_by_the_next_run(
    local: LocalStore, write: str, known: str, goes_on: str
) -> None:
    # BR-13
    payer = Payer()
    chat = payer.agent.session("s", store=local)
    with payer.broken(write, Refused, times=99), pytest.raises(RunFailed) as caught:
        await chat.run("pay")
    assert caught.value.code == "store_error"
    point = await chat.resume_point()
    assert point is not None
    assert point.kind == "recover_tools"
    heard: list[History] = []
    later = Agent(ScriptedModel(Script("Done.", on_call=heard.append))).session("s", store=local)
    await (later.resume() if goes_on == "resume" else later.run("and?"))
    assert payer.paid == 1
    assert (await history(local))[1:3] == [("assistant", ""), ("tool", known)]
    assert [message["content"] for message in heard[0]][:3] == ["pay", "", known]


async def heard_with_a_new_message(local: LocalStore, items: Sequence[Item]) -> list[tuple[Any, ...]]:
    """Return what the model is called with when a user says "b" after a history."""
    sessions, heard = SessionStore(local), list[History]()
    await sessions.create("s")
    await sessions.append("s", items)
    agent = Agent(ScriptedModel(Script("Done.", on_call=heard.append)))
    assert (await agent.session("s", store=local).run("b")).text == "Done."
    return [(one["role"], one["content"], one.get("tool_call_id")) for one in heard[0]]


async def test_two_calls_of_one_id_have_a_result_each_when_a_user_goes_on(local: LocalStore) -> None:
    # BR-14
    calls = [{"id": "c1", "name": "get", "arguments": f'{{"of": "{of}"}}'} for of in "AB"]
    asked = {"role": "assistant", "tool_calls": calls}
    assert await heard_with_a_new_message(local, [{"role": "user", "content": "a"}, asked]) == [
        ("user", "a", None),
        ("assistant", "", None),
        ("tool", INTERRUPTED_RESULT, "c1"),
        ("tool", INTERRUPTED_RESULT, "c1"),
        ("user", "b", None),
    ]


async def test_a_thought_that_led_to_nothing_is_not_sent_when_a_user_goes_on(local: LocalStore) -> None:
    # BR-16
    thought = {"role": "assistant", "reasoning": "The user greets me.", "stop_reason": "aborted"}
    found = await heard_with_a_new_message(local, [{"role": "user", "content": "a"}, thought])
    assert found == [("user", "a", None), ("user", "b", None)]


class Failing:
    """A model that answers, is then unavailable once, and then takes its process along once."""

    name = "failing"

    def __init__(self, folder: str) -> None:
        self._called = EffectsLog(Path(folder) / "called")

    async def stream(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> AsyncGenerator[Delta, None]:
        before = len(self._called.read())
        self._called.append("called")
        if before == 1:
            raise ProviderUnavailable("500")
        if before == 2:
            os._exit(9)
        yield TextDelta(f"answer to {messages[-1].text}")
        yield Stopped(StopReason.STOP)


async def two_turns(url: str, folder: str) -> list[tuple[str, str]]:
    asking.RETRY_SECONDS = 0
    async with open_store(url) as local:
        chat = Agent(Failing(folder)).session("s", store=local)
        for text, id in (
            ("old", "0f8fad5b-d9cb-469f-a165-70867728950e"),
            ("q", "1f8fad5b-d9cb-469f-a165-70867728950e"),
        ):
            await chat.run(text, id=id)
        return await history(local)


def test_a_crash_between_a_failed_model_call_and_its_retry_leaves_the_message_once(
    store_url: str, tmp_path: Path
) -> None:
    # BR-17
    arguments = {"url": store_url, "folder": str(tmp_path)}
    with KillHarness(preload=[__file__], timeout_seconds=30) as harness:
        assert harness.run(two_turns, arguments).exit_code == 9
        found = harness.run(two_turns, arguments).result
    assert [tuple(one) for one in found or ()] == [
        ("user", "old"), ("assistant", "answer to old"), ("user", "q"), ("assistant", "answer to q"),
    ]  # fmt: skip


class Echo:
    """A model that says what it heard last, the later numbers sooner."""

    name = "echo"

    async def stream(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> AsyncGenerator[Delta, None]:
        heard = [message for message in messages if message.role is Role.USER][-1].text
        await asyncio.sleep((20 - int(heard)) * 0.005)
        yield TextDelta(heard)
        yield Stopped(StopReason.STOP)


@contextmanager
def workers(url: str, *names: str) -> Iterator[list[str]]:
    """Serve agents of these names, each by a server of its own on one database."""
    with ExitStack() as stack:
        servers = [ServerThread(DurableAgentServer(Agent(Echo(), name=name), store=url)) for name in names]
        yield [stack.enter_context(server).url for server in servers]


def body(text: Any, session: str = "s", **more: Any) -> dict[str, Any]:
    return {"id": str(uuid.uuid4()), "session_id": session, "input": str(text), **more}


async def items_of(client: httpx.AsyncClient, url: str, session: str = "s") -> list[Any]:
    found: list[Any] = (await client.get(f"{url}/api/sessions/{session}/items?limit=100")).json()["items"]
    return found


async def test_two_messages_at_once_through_two_workers_are_two_whole_turns(store_url: str) -> None:
    # BR-22
    with workers(store_url, "agent", "agent") as urls:
        async with httpx.AsyncClient(timeout=60) as client:
            for round_ in range(10):
                sent = [body(number, f"s{round_}") for number in (1, 2)]
                answers = await asyncio.gather(
                    *(client.post(f"{url}/api/invocations", json=one) for url, one in zip(urls, sent, strict=True))
                )
                assert {answer.json()["status"] for answer in answers} == {"completed"}
                listed = await client.get(f"{urls[0]}/api/invocations", params={"session_id": f"s{round_}"})
                accepted = [run["id"] for run in reversed(listed.json()["items"])]
                items = await items_of(client, urls[0], f"s{round_}")
                assert [item["invocation_id"] for item in items] == [id for id in accepted for _ in range(2)]
                texts = [item["content"]["content"] for item in items]
                assert texts in (["1", "1", "2", "2"], ["2", "2", "1", "1"])


async def test_turns_that_were_accepted_one_after_another_are_stored_so(store_url: str) -> None:
    # BR-24
    chance = random.Random(1)
    with workers(store_url, *["agent"] * 4) as urls:
        async with httpx.AsyncClient(timeout=60) as client:
            for number in range(1, 21):
                sent = body(number, background=True)
                answer = await client.post(f"{chance.choice(urls)}/api/invocations", json=sent)
                assert answer.status_code == 202
            await client.get(f"{urls[0]}/api/invocations/{sent['id']}/events")
            texts = [item["content"]["content"] for item in await items_of(client, urls[0])]
    assert texts == [str(number) for number in range(1, 21) for _ in range(2)]


async def test_another_agent_reads_a_session_and_does_not_write_to_it(store_url: str) -> None:
    # BR-23
    with workers(store_url, "a", "b") as (one, two):
        async with httpx.AsyncClient(timeout=60) as client:
            for number in (18, 19):
                assert (await client.post(f"{one}/api/invocations", json=body(number))).json()["status"] == "completed"
            before = (await client.get(f"{one}/api/sessions/s/items")).content
            refused = await client.post(f"{two}/api/invocations", json=body(20))
            assert (refused.status_code, refused.json()["code"]) == (409, "session_of_other_agent")
            for url in (one, two):
                assert (await client.get(f"{url}/api/sessions/s/items")).content == before


async def test_a_run_whose_process_was_stopped_is_told_from_one_whose_process_died(store_url: str) -> None:
    async def wait() -> str:
        await asyncio.Event().wait()
        return "never"

    agent = Agent(ScriptedModel(Say(calls=[ScriptedCall("wait")]), "Done."), tools=[wait])
    async with LocalStore(store_url, EngineSettings(claims=False, drain_timeout=0)) as local:
        async for event in agent.session("s", store=local).stream("wait"):
            if event["type"] == "agent.tool.started":
                break
    async with open_store(store_url) as local:
        chat = agent.session("s", store=local)
        point = await chat.resume_point()
        assert point is not None
        assert (point.kind, point.cause) == ("recover_tools", "shutdown")
        assert (await chat.resume()).text == "Done."


async def test_runs_in_process_beyond_the_room_start_when_there_is_some(store_url: str) -> None:
    async with LocalStore(store_url, EngineSettings(claims=False, concurrency=2)) as local:
        agent = Agent(Echo())
        running = [
            asyncio.create_task(agent.session(f"s{number}", store=local).run(str(number))) for number in range(9)
        ]
        assert {(await one).text for one in running} == {str(number) for number in range(9)}


async def test_a_run_in_process_starts_also_when_nobody_waits_for_it_any_more(store_url: str) -> None:
    async with LocalStore(store_url, EngineSettings(claims=False, concurrency=1)) as local:
        agent = Agent(Echo())
        first = asyncio.create_task(agent.session("first", store=local).run("0"))
        second = asyncio.create_task(agent.session("second", store=local).run("19"))
        while await (await local.store()).read.session_number("local", "second") is None:
            await asyncio.sleep(0.01)
        second.cancel()
        await first
        async with asyncio.timeout(30):
            while len(await history(local, "second")) < 2:
                await asyncio.sleep(0.05)


async def test_a_program_that_blocks_its_loop_is_not_ended_by_a_store_in_process(
    local: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    engine = await local.engine(Agent(ScriptedModel("Hi.")))
    engine._watch.stamp -= 24 * 3600
    time.sleep(engine.settings.beat + 0.5)  # noqa: ASYNC251 - blocking the loop is the case
    assert (ended, engine.stalled) == ([], True)


def talk_and_leave(local: LocalStore, *, begun: bool, id: str = "s") -> None:
    """Close an event loop, as `asyncio.run` does, in the middle of a run, or after one."""
    words = Script("One two three four five six", delay_seconds=0.2 if begun else 0)
    chat = Agent(ScriptedModel(words)).session(id, store=local)

    async def talk() -> None:
        async for _ in chat.stream("first"):
            if begun:
                break

    asyncio.run(talk())


def test_an_event_loop_that_is_closed_with_the_store_open_gives_back_what_ran(store_url: str) -> None:
    chat = Agent(ScriptedModel("Hi.")).session("s", store=(local := open_store(store_url)))
    talk_and_leave(local, begun=True)

    async def go_on() -> None:
        async with local:
            assert (await chat.run("second")).text == "Hi."
            assert [text for role, text in await history(local) if role == "user"] == ["first", "second"]

    asyncio.run(go_on())


def test_event_loops_that_are_closed_with_the_store_open_leave_no_worker_and_no_thread(store_url: str) -> None:
    before = threading.active_count()
    talk_and_leave(open_store(store_url), begun=True)
    talk_and_leave(open_store(store_url), begun=False, id="other")

    async def workers() -> list[Any]:
        async with open_store(store_url) as local:
            return await (await local.store()).read.workers()

    give_up = time.monotonic() + 30
    while asyncio.run(workers()) or (gc.collect() and threading.active_count() > before):
        assert time.monotonic() < give_up, threading.enumerate()
        time.sleep(0.2)


@pytest.mark.parametrize("closed", [False, True])
def test_a_loop_that_nobody_runs_is_not_taken_for_a_blocked_one(
    store_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, closed: bool
) -> None:
    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    settings = EngineSettings(claims=False, beat=0.05, stall_warning=0.1, stall_after=0.2, stall_exit=0.3)
    local = LocalStore(store_url, settings)
    chat = Agent(ScriptedModel("Hi.")).session("s", store=local)
    runner = asyncio.Runner()
    runner.run(chat.run("first"))
    if closed:
        runner.close()
    time.sleep(1)
    if not closed:
        assert runner.run(chat.run("second")).text == "Hi."
        runner.run(local.close())
        runner.close()
    assert (ended, "blocked" in caplog.text) == ([], False)


async def test_a_first_call_that_is_given_up_leaves_no_half_started_worker(local: LocalStore) -> None:
    chat = Agent(ScriptedModel("Hi.")).session("s", store=local)
    store = await local.store()
    for steps in range(1, 6):
        given_up = asyncio.create_task(chat.run("first"))
        for _ in range(steps):
            await asyncio.sleep(0)
        given_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await given_up
    async with asyncio.timeout(30):
        assert (await chat.run("second")).text == "Hi."
    assert [worker.id for worker in await store.read.workers()] == [store.worker]


async def leave_queued(store: Store, *, began: bool) -> None:
    """Leave a run of the session `s` in the queue, as a server that stops does."""
    request = Request.of(principal="local", id=str(uuid.uuid4()), session_id="s", agent="agent", input="first")
    run = (await store.accept(request, lease=True)).invocation
    await store.hand_back(run.number, run.epoch, entered=began)


async def test_a_database_that_cannot_be_read_for_a_moment_fails_no_run_that_goes_on(
    store: Store, running: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    await leave_queued(store, began=True)
    run = await store.read.unfinished("local", "s")
    assert run is not None
    refused = set[str]()
    read = Reader._read

    def refuse_once(self: Reader, what: Callable[[Any], Any]) -> Any:
        if self is not store.read and what.__qualname__ not in refused:
            refused.add(what.__qualname__)
            raise StoreUnavailable("away for a moment")
        return read(self, what)

    monkeypatch.setattr(Reader, "_read", refuse_once)
    async with running(agents={"agent": Agent(ScriptedModel("Hi.")).handlers()}), asyncio.timeout(30):
        while not (found := await store.read.invocation("local", run.id)) or not found.status.final:
            await asyncio.sleep(0.05)
    assert (found.status, found.error) == ("completed", None)
    assert "Reader.events.<locals>.<lambda>" in refused


@pytest.mark.parametrize("began", [True, False])
async def test_a_message_in_process_does_not_end_what_a_living_server_will_run(
    store: Store, local: LocalStore, began: bool
) -> None:
    await store.register(id="server", host="elsewhere", pid=1, lock_file=None, claims=["other", "agent"])
    await leave_queued(store, began=began)
    chat = Agent(ScriptedModel("Hi.")).session("s", store=local)
    for ask in (chat.run("second"), chat.resume(), chat.resume_point()):
        with pytest.raises(SessionBusy):
            await ask
    (run,) = await store.read.listed(
        "local", session_id="s", status=None, agent=None, metadata={}, before=None, limit=9
    )
    assert run.status == "queued"


@pytest.mark.parametrize("goes_on", ["resume", "message"])
async def test_a_run_that_nobody_living_began_is_begun_by_whoever_uses_its_session(
    store: Store, local: LocalStore, goes_on: str
) -> None:
    await leave_queued(store, began=False)
    chat = Agent(ScriptedModel("Hi.")).session("s", store=local)
    with pytest.raises(SessionBusy):  # whoever accepted it lives
        await chat.run("second")
    await store.deregister("w1")
    await store.register(id="server", host="elsewhere", pid=1, lock_file=None, claims=["other"])
    await (chat.resume() if goes_on == "resume" else chat.run("second", wait=30))
    said = [("user", "first"), ("assistant", "Hi."), ("user", "second"), ("assistant", "Hi.")]
    assert await history(local) == said[: 2 if goes_on == "resume" else 4]


async def test_a_run_is_taken_up_also_when_whoever_asked_for_it_gives_up(store: Store, local: LocalStore) -> None:
    await leave_queued(store, began=True)
    await store.deregister("w1")
    agent = Agent(ScriptedModel("Hi."))
    engine = await local.engine(agent)
    run = await engine.store.read.unfinished("local", "s")
    assert run is not None
    asked = asyncio.create_task(engine.adopt(run))
    await asyncio.sleep(0)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    assert (await engine.wait(run, 30)).status == "completed"


@pytest.mark.parametrize("id", ["", "x" * 513, "a\0b", None, 3])
def test_what_cannot_name_a_session_is_refused_where_it_is_named(id: Any) -> None:
    with pytest.raises(InvalidRequest) as refused:
        Agent(ScriptedModel("Hi.")).session(id, store="memory")
    assert refused.value.code == "invalid_session_id"


@pytest.mark.parametrize("id", ["mine", uuid.uuid4(), ""])
async def test_the_id_of_a_run_is_a_uuid_in_process_too(local: LocalStore, id: Any) -> None:
    chat = Agent(ScriptedModel("Hi.")).session("s", store=local)
    with pytest.raises(InvalidRequest) as refused:
        await chat.run("Hi", id=id)
    assert refused.value.code == "invalid_id"
    assert await chat.messages() == []


async def test_a_store_in_memory_is_the_same_with_and_without_asyncio() -> None:
    async with open_store("memory") as local:
        chat = Agent(ScriptedModel("Hi.")).session("s", store=local)
        await chat.run("Hello")
        assert await asyncio.to_thread(chat.sync.messages) == await chat.messages()
        await asyncio.to_thread(chat.sync.close)


def test_a_store_in_memory_is_deleted_with_its_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    chat = Agent(ScriptedModel("Hi.")).session("s", store="memory")
    assert chat.sync.run("Hello").text == "Hi."
    assert [*tmp_path.glob("*/state.db")]
    chat.sync.close()
    del chat
    gc.collect()
    assert not [*tmp_path.glob("*/state.db")]


async def stored_bytes(store: Store) -> int:
    """Return how large the database is, with what its log still holds."""
    size = "SELECT pg_database_size(current_database())"
    with store._engine.connect() as connection:
        if store.url.is_sqlite:
            connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
            size = "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size"
        return int(connection.exec_driver_sql(size).scalar_one())


async def test_a_turn_stores_what_it_adds_however_long_the_session_is(local: LocalStore) -> None:
    # BR-71
    chat, sessions = Agent(ScriptedModel("Yes.")).session("s", store=local), SessionStore(local)
    await chat.run("Are you there?")
    said = [{"role": role, "content": role[0] * 1000} for role in ("user", "assistant")] * 500
    for _ in range(10):
        await sessions.append("s", said)
    before = await stored_bytes(await local.store())
    for _ in range(5):
        await chat.run("And now?")
    assert await stored_bytes(await local.store()) - before < 500_000
    assert await chat.resume_point() is None
    assert len(await history(local)) == 10_012
