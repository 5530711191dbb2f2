import asyncio
import contextlib
import gc
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from outlast.core import jsontext
from outlast.core.errors import (
    Conflict,
    EffectFailed,
    Gone,
    InvalidRequest,
    LeaseLost,
    NotFound,
    NotJSON,
    RunFailed,
    StoreError,
    StoreUnavailable,
)
from outlast.core.records import Interrupt, Invocation, OnActive, Request, Status
from outlast.engine import AgentHandlers, Draining, Engine, EngineSettings, InvocationContext
from outlast.store import journal
from outlast.store.statements import Statement

pytestmark = pytest.mark.anyio

Make = Callable[..., Request]
Running = Callable[..., Any]


async def ended(engine: Engine, request: Request) -> Any:
    return await asyncio.wait_for(engine.wait(await engine.accept(request)), 20)


def error_of(run: Any) -> Any:
    assert run.status is Status.FAILED
    return jsontext.decode(run.error)


async def test_a_run_ends_with_what_the_handler_returns(running: Running, make_request: Make) -> None:
    async def invoke(context: InvocationContext) -> Any:
        context.usage = {"tokens": 3}
        return {"echo": context.input, "session": context.session_id, "attempt": context.attempt}

    async with running(invoke) as engine:
        run = await ended(engine, make_request("s", input=[1, {"a": None}]))
    assert run.output == '{"echo":[1,{"a":null}],"session":"s","attempt":1}'
    assert (run.status, run.usage) == (Status.COMPLETED, '{"tokens":3}')


async def test_a_plain_function_runs_in_a_thread_of_its_own(running: Running, make_request: Make) -> None:
    loop_thread = threading.get_ident()

    def invoke(context: InvocationContext) -> Any:
        return [context.emit_from_thread({"n": n}) for n in range(3)], threading.get_ident() != loop_thread

    async with running(invoke) as engine:
        assert (await ended(engine, make_request())).output == "[[1,2,3],true]"


async def test_emitting_from_the_loop_as_from_a_thread_is_refused(running: Running, make_request: Make) -> None:
    """It would wait for itself, and stop everything else in the process."""

    async def invoke(context: InvocationContext) -> Any:
        context.emit_from_thread(1)

    async with running(invoke) as engine:
        assert "use `await context.emit(" in error_of(await ended(engine, make_request()))["message"]


async def test_two_hundred_parallel_emits_have_contiguous_positions(running: Running, make_request: Make) -> None:
    async def invoke(context: InvocationContext) -> Any:
        return await asyncio.gather(*(context.emit(n) for n in range(200)))

    async with running(invoke) as engine:
        run = await ended(engine, make_request())
        events = await engine.store.read.events(run.number, after=0, limit=1000)
    assert jsontext.decode(run.output) == list(range(1, 201))
    assert [(event.position, event.text) for event in events] == [(n + 1, str(n)) for n in range(200)]


async def test_a_bad_event_fails_alone(running: Running, make_request: Make) -> None:
    # BR-39
    async def invoke(context: InvocationContext) -> Any:
        first = await context.emit("good")
        with pytest.raises(NotJSON):
            await context.emit({"x": float("nan")})
        with pytest.raises(NotJSON, match="16777216"):
            await context.emit("x" * (16 << 20))
        return [first, await context.emit("good")]

    async with running(invoke) as engine:
        assert (await ended(engine, make_request())).output == "[1,2]"


async def test_posted_events_are_committed_before_the_end(running: Running, make_request: Make) -> None:
    async def invoke(context: InvocationContext) -> Any:
        positions = [context.post({"n": n}) for n in range(50)]
        await context.barrier()
        return [*positions, context.post("last")]

    async with running(invoke) as engine:
        run = await ended(engine, make_request())
        assert await engine.store.read.last_position(run.number) == 51 == run.last_position


async def test_events_that_may_wait_go_with_the_next_write_in_the_order_of_calls(
    running: Running, make_request: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outlast.engine.context.SOON_SECONDS", 60)

    async def invoke(context: InvocationContext) -> Any:
        positions = [context.post("a"), context.post("b"), await context.emit("c"), context.post("d")]
        begun = await context.store.read.last_position(context.lease[0])
        return [*positions, begun, context.post("e"), context.post("last")]

    async with running(invoke) as engine:
        run = await ended(engine, make_request())
        assert run.output == "[1,2,3,4,3,5,6]"
        events = await engine.store.read.events(run.number, after=0, limit=10)
        assert [(event.position, event.text) for event in events] == list(
            enumerate(['"a"', '"b"', '"c"', '"d"', '"e"', '"last"'], 1)
        )


async def test_an_event_that_may_wait_is_stored_without_another_write(running: Running, make_request: Make) -> None:
    async def invoke(context: InvocationContext) -> Any:
        context.post("alone")
        while await context.store.read.last_position(context.lease[0]) == 0:
            await asyncio.sleep(0)
        return "stored"

    async with running(invoke) as engine:
        assert (await ended(engine, make_request())).output == '"stored"'


async def test_what_may_wait_is_stored_when_the_run_is_cancelled(running: Running, make_request: Make) -> None:
    began = asyncio.Event()

    async def invoke(context: InvocationContext) -> None:
        context.post("said")
        began.set()
        await asyncio.Event().wait()

    async with running(invoke) as engine:
        run = await engine.accept(make_request())
        await began.wait()
        await engine.cancel("local", run.id)
        await engine.wait(run)
        assert [event.text for event in await engine.store.read.events(run.number, after=0, limit=10)] == ['"said"']


async def test_emitting_after_the_end_is_refused(running: Running, make_request: Make) -> None:
    kept: list[InvocationContext] = []

    async def invoke(context: InvocationContext) -> None:
        kept.append(context)

    async with running(invoke) as engine:
        await ended(engine, make_request())
        with pytest.raises(LeaseLost):
            await kept[0].emit(1)


async def test_using_the_context_of_another_run_fails_the_run_that_does(running: Running, make_request: Make) -> None:
    kept: list[InvocationContext] = []

    async def invoke(context: InvocationContext) -> None:
        kept.append(context)
        await kept[0].emit(context.input)

    async with running(invoke) as engine:
        first = await ended(engine, make_request(input=1))
        assert error_of(await ended(engine, make_request(input=2)))["code"] == "lease_lost"
        assert await engine.store.read.last_position(first.number) == 1


async def test_an_output_that_is_too_large_fails_the_run(
    running: Running, make_request: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outlast.engine.attempt.MAX_OUTPUT_BYTES", 1000)
    monkeypatch.setattr("outlast.engine.attempt.MAX_MESSAGE", 100)

    async def invoke(context: InvocationContext) -> Any:
        context.usage = {"x": context.input["usage"]}
        if "raise" in context.input:
            raise RuntimeError(context.input["raise"])
        return context.input["return"]

    async with running(invoke) as engine:
        for output, usage in (("x" * 1000, ""), ("", "x" * 1000)):
            run = await ended(engine, make_request(input={"return": output, "usage": usage}))
            assert error_of(run)["code"] == "output_too_large"
            assert run.usage is None or len(run.usage) < 1000
        run = await ended(engine, make_request(input={"raise": "x" * 1000, "usage": "x" * 1000}))
        assert (len(error_of(run)["message"]), run.usage) == (100, None)


async def test_a_worker_that_cannot_have_a_lock_file_works_without(
    running: Running, make_request: Make, quick: EngineSettings, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The lock only makes the death of a worker known sooner; the disk may be read-only."""
    (tmp_path / "file").touch()

    async def invoke(context: InvocationContext) -> Any:
        return [worker.lock_file for worker in await context.store.read.workers()]

    async with running(invoke, settings=replace(quick, state_dir=tmp_path / "file" / "locks")) as engine:
        assert (await ended(engine, make_request())).output == "[null]"
    assert "there can be no lock file" in caplog.text


async def test_a_final_record_does_not_stay_in_memory(
    running: Running, make_request: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records hold inputs and outputs, of any size."""
    monkeypatch.setattr("outlast.engine.engine.FINAL_SECONDS", 0.05)

    async def invoke(context: InvocationContext) -> None:
        return None

    async with running(invoke) as engine:
        id = (await ended(engine, make_request())).id
        async with asyncio.timeout(20):
            while any(isinstance(one, Invocation) and one.id == id for one in gc.get_objects()):
                await asyncio.sleep(0.05)
        assert (await engine.get("local", id)).status is Status.COMPLETED


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (RuntimeError("x\x00y"), "handler_error", "RuntimeError: x\x00y"),
        (RunFailed("context_full", "too long"), "context_full", "too long"),
        (asyncio.CancelledError(), "cancelled_inside", "the handler raised CancelledError on its own"),
    ],
)
async def test_an_exception_fails_the_run_once(
    running: Running, make_request: Make, error: BaseException, code: str, message: str
) -> None:
    # BR-08, BR-12, BR-38
    calls = []

    async def invoke(context: InvocationContext) -> Any:
        calls.append(1)
        raise error

    async with running(invoke, invoke) as engine:
        request = make_request("s")
        run = await ended(engine, request)
        assert error_of(run) == {"code": code, "message": message}
        assert await ended(engine, request) == run
        assert (await ended(engine, make_request("s"))).status is Status.FAILED
    assert len(calls) == 2


async def test_an_output_that_is_not_json_fails_with_its_path(running: Running, make_request: Make) -> None:
    # BR-39
    async def invoke(context: InvocationContext) -> Any:
        return {"scores": [1.0, float("inf")]}

    async with running(invoke) as engine:
        error = error_of(await ended(engine, make_request()))
    assert error == {"code": "output_not_serializable", "message": "inf is not a JSON number (at $.scores[1])"}


async def test_a_handler_may_ask_for_a_person(running: Running, make_request: Make) -> None:
    async def invoke(context: InvocationContext) -> Any:
        return Interrupt("approval_required", approvals=({"id": "1"},))

    async with running(invoke) as engine:
        run = await ended(engine, make_request("s"))
    assert run.status is Status.INTERRUPTED
    assert run.interrupt == '{"reason":"approval_required","approvals":[{"id":"1"}],"questions":[]}'


async def test_runs_of_a_session_go_one_after_another_in_order(running: Running, make_request: Make) -> None:
    # BR-24
    order: list[tuple[str, int]] = []

    async def invoke(context: InvocationContext) -> Any:
        order.append(("start", context.input))
        await asyncio.sleep((10 - context.input) / 1000)
        order.append(("end", context.input))

    async with running(invoke) as engine:
        accepted = [await engine.accept(make_request("s", input=n)) for n in range(10)]
        await asyncio.gather(*(engine.wait(run) for run in accepted))
    assert order == [(moment, n) for n in range(10) for moment in ("start", "end")]


async def test_the_same_input_twice_is_two_turns(running: Running, make_request: Make) -> None:
    # BR-18
    seen: list[str] = []

    async def invoke(context: InvocationContext) -> Any:
        seen.append(context.invocation_id)

    async with running(invoke) as engine:
        requests = [make_request("s", input="yes") for _ in range(4)]
        await asyncio.gather(*(ended(engine, request) for request in requests))
    assert seen == [request.id for request in requests]


async def test_two_hundred_waiting_runs_all_end_in_spite_of_the_garbage_collector(
    running: Running, make_request: Make
) -> None:
    # BR-10
    waiting: list[asyncio.Future[None]] = []

    async def invoke(context: InvocationContext) -> Any:
        future = asyncio.get_running_loop().create_future()
        waiting.append(future)
        await future

    async with running(invoke) as engine:
        engine.settings = replace(engine.settings, concurrency=200)
        accepted = [await engine.accept(make_request()) for _ in range(200)]
        while len(waiting) < 200:
            await asyncio.sleep(0.001)
        for number, future in enumerate(waiting):
            if number % 50 == 0:
                gc.collect()
            future.set_result(None)
        finals = await asyncio.wait_for(asyncio.gather(*(engine.wait(run) for run in accepted)), 20)
    assert {run.status for run in finals} == {Status.COMPLETED}


async def test_more_runs_than_room_wait_for_their_turn(
    running: Running, make_request: Make, quick: EngineSettings
) -> None:
    now, most = 0, 0

    async def invoke(context: InvocationContext) -> Any:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0)
        now -= 1

    async with running(invoke, settings=replace(quick, concurrency=3)) as engine:
        finals = await asyncio.gather(*(ended(engine, make_request()) for _ in range(30)))
    assert {run.status for run in finals} == {Status.COMPLETED}
    assert most <= 3


async def test_a_principal_cannot_take_all_the_room(
    running: Running, make_request: Make, quick: EngineSettings
) -> None:
    now: dict[str, int] = {}
    most: dict[str, int] = {}

    async def invoke(context: InvocationContext) -> Any:
        now[context.principal] = now.get(context.principal, 0) + 1
        most[context.principal] = max(most.get(context.principal, 0), now[context.principal])
        await asyncio.sleep(0.001)
        now[context.principal] -= 1

    async with running(invoke, settings=replace(quick, per_principal=2)) as engine:
        sent = [ended(engine, make_request(principal=f"p{n % 2}")) for n in range(20)]
        await asyncio.gather(*sent)
    assert most == {"p0": 2, "p1": 2}


async def test_cancelling_a_running_run_keeps_what_it_emitted(running: Running, make_request: Make) -> None:
    cleaned = asyncio.Event()

    async def invoke(context: InvocationContext) -> Any:
        await context.emit("partial")
        try:
            await asyncio.Event().wait()
        finally:
            assert context.cancelled
            await context.emit("cleaning up")
            cleaned.set()

    async with running(invoke) as engine:
        run = await engine.accept(make_request("s"))
        with await engine.follow(run, after=0) as follower:
            await follower.next(10)
        await engine.cancel("local", run.id)
        final = await engine.wait(run)
        assert error_of(final)["code"] == "cancelled"
        assert (final.last_position, cleaned.is_set()) == (2, True)
        assert (await engine.cancel("local", run.id)) == final


async def test_a_run_that_ignores_its_cancel_ends_after_the_grace(
    running: Running, make_request: Make, quick: EngineSettings
) -> None:
    stubborn = threading.Event()

    def invoke(context: InvocationContext) -> Any:
        context.emit_from_thread("started")
        stubborn.wait()
        with pytest.raises(LeaseLost):
            context.emit_from_thread("too late")

    async with running(invoke, settings=replace(quick, cancel_grace=0.05)) as engine:
        run = await engine.accept(make_request("s"))
        with await engine.follow(run, after=0) as follower:
            await follower.next(10)
        await engine.cancel("local", run.id)
        assert error_of(await engine.wait(run))["code"] == "cancelled"
        stubborn.set()
        assert await engine.store.read.last_position(run.number) == 1


@pytest.mark.parametrize("known", [True, False])
async def test_a_run_that_lost_its_worker_is_ended_where_its_agent_is_known_or_after_the_grace(
    running: Running, make_request: Make, quick: EngineSettings, known: bool
) -> None:
    async def invoke(context: InvocationContext) -> Any:
        await asyncio.Event().wait()

    put_in_order = list[int]()
    handlers = AgentHandlers(invoke, invoke, cancelled=lambda context: put_in_order.append(context.attempt))
    async with running(agents={"a": handlers}, settings=replace(quick, drain_timeout=0.0)) as engine:
        run = await engine.accept(make_request("s"))
    # Full, so that it takes nothing from the queue by itself.
    agents = {"a": handlers} if known else {"b": handlers}
    async with running(agents=agents, settings=replace(quick, cancel_grace=0.05, concurrency=0)) as engine:
        assert (await engine.cancel("local", run.id)).status is Status.QUEUED
        assert error_of(await asyncio.wait_for(engine.wait(run), 10))["code"] == "cancelled"
    assert put_in_order == ([2] if known else [])


async def test_on_active_cancel_ends_what_runs_first(running: Running, make_request: Make) -> None:
    async def invoke(context: InvocationContext) -> Any:
        if context.input == "long":
            await asyncio.Event().wait()

    async with running(invoke) as engine:
        before = [await engine.accept(make_request("s", input="long")) for _ in range(2)]
        run = await ended(engine, make_request("s", input="now", on_active=OnActive.CANCEL))
        assert run.status is Status.COMPLETED
        assert [error_of(await engine.wait(old))["code"] for old in before] == ["cancelled", "cancelled"]


async def test_a_refused_request_cancels_nothing(running: Running, make_request: Make) -> None:
    async def invoke(context: InvocationContext) -> Any:
        await asyncio.Event().wait()

    agents = {"a": AgentHandlers(invoke), "b": AgentHandlers(invoke)}
    async with running(agents=agents) as engine:
        deleted = make_request("s", on_active=OnActive.CANCEL)
        await engine.accept(deleted)
        await engine.cancel("local", deleted.id)
        await engine.wait(await engine.get("local", deleted.id))
        await engine.delete("local", deleted.id)
        run = await engine.accept(make_request("s"))
        with pytest.raises(Gone):
            await engine.accept(deleted)
        with pytest.raises(Conflict, match="belongs to the agent 'a'"):
            await engine.accept(make_request("s", agent="b", on_active=OnActive.CANCEL))
        found = await engine.get("local", run.id)
        assert (found.status, found.cancel) == (Status.RUNNING, None)


async def test_a_repeat_cancels_what_the_first_try_did_not(
    running: Running, make_request: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def invoke(context: InvocationContext) -> Any:
        if context.input == "long":
            await asyncio.Event().wait()

    async with running(invoke) as engine:
        before = await engine.accept(make_request("s", input="long"))
        request = make_request("s", input="now", on_active=OnActive.CANCEL)
        with monkeypatch.context() as patch:
            patch.setattr(engine, "cancel", unavailable)
            with pytest.raises(StoreUnavailable):
                await engine.accept(request)
        assert (await ended(engine, request)).status is Status.COMPLETED
        assert error_of(await engine.wait(before))["code"] == "cancelled"


async def unavailable(*_: object) -> None:
    raise StoreUnavailable("the database does not answer")


async def test_a_run_longer_than_its_limit_is_ended(running: Running, make_request: Make) -> None:
    async def invoke(context: InvocationContext) -> Any:
        await asyncio.Event().wait()

    async with running(invoke) as engine:
        assert error_of(await ended(engine, make_request(timeout_seconds=0.05)))["code"] == "timeout"


async def test_an_undeclared_config_key_is_refused(running: Running, make_request: Make) -> None:
    async def invoke(context: InvocationContext) -> Any:
        return dict(context.config)

    agents = {"a": AgentHandlers(invoke, config_keys=frozenset({"model"}))}
    async with running(agents=agents) as engine:
        assert (await ended(engine, make_request(config={"model": "x"}))).output == '{"model":"x"}'
        with pytest.raises(InvalidRequest, match="'modle'; it declares model"):
            await engine.accept(make_request(config={"modle": "x"}))


@pytest.mark.parametrize("key", ["", "x" * 513, "a\x00b", "\ud800", 7])
async def test_a_key_that_a_database_cannot_hold_is_refused_by_its_name(
    running: Running, make_request: Make, key: Any
) -> None:
    async def invoke(context: InvocationContext) -> Any:
        return await context.once("\U0001f600" * 512, lambda: 1) + await context.once(key, lambda: 1)

    async with running(invoke) as engine:
        assert error_of(await ended(engine, make_request()))["code"] == "invalid_key"


async def test_a_side_effect_happens_once_however_often_it_is_asked_for(running: Running, make_request: Make) -> None:
    calls: list[int] = []

    async def pay(amount: int) -> Any:
        await asyncio.sleep(0)
        calls.append(amount)
        return {"paid": amount}

    async def invoke(context: InvocationContext) -> Any:
        together = await asyncio.gather(*(context.once("pay", pay, 7) for _ in range(5)))
        return [*together, await context.once("pay", pay, 8)]

    async with running(invoke) as engine:
        run = await ended(engine, make_request("s"))
    assert calls == [7]
    assert jsontext.decode(run.output) == [{"paid": 7}] * 6


async def test_a_failing_side_effect_goes_out_as_it_is_and_may_be_tried_again(
    running: Running, make_request: Make
) -> None:
    def fail() -> None:
        raise ValueError("404")

    async def invoke(context: InvocationContext) -> Any:
        for _ in range(2):
            with pytest.raises(ValueError, match="404"):
                await context.once("fetch", fail)
        return await context.once("fetch", lambda: "found")

    async with running(invoke) as engine:
        assert (await ended(engine, make_request())).output == '"found"'
    assert issubclass(EffectFailed, Exception)


async def test_idempotency_keys_differ_by_run_and_key_only(running: Running, make_request: Make) -> None:
    async def invoke(context: InvocationContext) -> Any:
        return [context.idempotency_key("a"), context.idempotency_key("a"), context.idempotency_key("b")]

    async with running(invoke) as engine:
        keys = jsontext.decode((await ended(engine, make_request())).output)
        others = jsontext.decode((await ended(engine, make_request())).output)
    assert keys[0] == keys[1]
    assert len({*keys, *others}) == 4


async def test_a_draining_worker_accepts_nothing(running: Running, make_request: Make) -> None:
    async with running(lambda context: None) as engine:
        engine.begin_drain()
        with pytest.raises(Draining):
            await engine.accept(make_request())


async def test_a_followers_cursor_must_be_a_position_that_exists(running: Running, make_request: Make) -> None:
    async def invoke(context: InvocationContext) -> Any:
        await context.emit(1)

    async with running(invoke) as engine:
        run = await ended(engine, make_request())
        with pytest.raises(InvalidRequest) as caught:
            await engine.follow(run, after=2)
    assert caught.value.code == "invalid_cursor"


async def test_every_follower_sees_the_whole_log_once_wherever_it_joins(running: Running, make_request: Make) -> None:
    # BR-34
    halfway = asyncio.Event()

    async def invoke(context: InvocationContext) -> Any:
        for n in range(1000):
            context.post({"n": n, "pad": "x" * 100})
            if n == 500:
                await context.barrier()
                halfway.set()

    async def read(engine: Engine, run: Any, pause: int) -> list[int]:
        positions: list[int] = []
        with await engine.follow(run, after=0) as follower:
            while not follower.done:
                positions += [entry.position for entry in await follower.next(10)]
                for _ in range(pause):
                    await asyncio.sleep(0)
        return positions

    async with running(invoke) as engine:
        run = await engine.accept(make_request())
        early = [asyncio.create_task(read(engine, run, pause)) for pause in (0, 1, 50)]
        await halfway.wait()
        late = asyncio.create_task(read(engine, run, 0))
        await engine.wait(run)
        after = asyncio.create_task(read(engine, await engine.get("local", run.id), 0))
        for positions in await asyncio.wait_for(asyncio.gather(*early, late, after), 30):
            assert positions == list(range(1, 1001))
        assert engine._topics._topics == {}


def block_a_thread(context: InvocationContext) -> Any:
    time.sleep(5 * 0.5)
    return context.attempt


async def block_the_loop(context: InvocationContext) -> Any:
    return block_a_thread(context)


async def keep_the_loop_busy(context: InvocationContext) -> Any:
    give_up = time.monotonic() + 5 * 0.5
    while time.monotonic() < give_up:
        pass
    return context.attempt


@pytest.mark.parametrize("invoke", [block_a_thread, block_the_loop, keep_the_loop_busy])
async def test_a_handler_that_blocks_does_not_stop_the_heartbeat(
    running: Running, make_request: Make, invoke: Any
) -> None:
    # BR-03

    async with running(invoke, invoke) as engine, running(invoke, invoke) as other:
        run = await ended(engine, make_request("s"))
        assert (run.output, run.attempt) == ("1", 1)
        assert (await other.get("local", run.id)).attempt == 1


async def test_a_blocked_loop_is_named_in_a_warning(
    running: Running, make_request: Make, quick: EngineSettings, caplog: pytest.LogCaptureFixture
) -> None:
    async def invoke(context: InvocationContext) -> Any:
        give_up = time.monotonic() + 20
        while "has been blocked" not in caplog.text and time.monotonic() < give_up:
            pass

    async with running(invoke, settings=replace(quick, stall_warning=0.1)) as engine:
        await ended(engine, make_request())
    assert "has been blocked for 0 s in" in caplog.text
    assert "use `async` calls or a `def` tool there" in caplog.text


async def test_a_stalled_worker_claims_nothing_until_its_loop_runs_again(
    running: Running, make_request: Make, quick: EngineSettings
) -> None:
    async def invoke(context: InvocationContext) -> Any:
        return "ran"

    async with running(invoke, settings=replace(quick, stall_after=0.1)) as engine:
        while not engine.stalled:
            time.sleep(0.01)  # noqa: ASYNC251 - blocking the loop is the case
        assert not engine._may_claim()
        assert (await ended(engine, make_request())).output == '"ran"'


async def test_sixty_four_streams_at_once_make_no_false_takeover(
    running: Running, make_request: Make, quick: EngineSettings
) -> None:
    async def invoke(context: InvocationContext) -> Any:
        for n in range(50):
            await context.emit({"n": n, "text": "x" * 200})

    async def read(engine: Engine, request: Request) -> Any:
        run = await engine.accept(request)
        seen = 0
        with await engine.follow(run, after=0) as follower:
            while not follower.done:
                seen += len(await follower.next(30))
        return seen, (await engine.wait(run)).attempt

    async with running(invoke, invoke) as engine, running(invoke, invoke):
        found = await asyncio.gather(*(read(engine, make_request()) for _ in range(64)))
    assert set(found) == {(50, 1)}


async def test_a_long_run_is_left_alone_by_other_workers(running: Running, make_request: Make) -> None:
    # BR-02
    async def invoke(context: InvocationContext) -> Any:
        await asyncio.sleep(5 * 0.5)
        return context.attempt

    async with running(invoke, invoke) as engine, running(invoke, invoke):
        assert (await ended(engine, make_request("s"))).output == "1"


LOCKED = Statement("LOCK TABLE {p}beats IN ACCESS EXCLUSIVE MODE")


async def test_workers_that_could_not_write_do_not_take_each_other_for_dead(
    running: Running, make_request: Make, caplog: pytest.LogCaptureFixture
) -> None:
    go_on = asyncio.Event()

    async def invoke(context: InvocationContext) -> Any:
        await go_on.wait()
        return context.attempt

    async with running(invoke, invoke) as engine, running(invoke, invoke) as other:
        runs = [await worker.accept(make_request()) for worker in (engine, other)]
        connection = engine.store.connect()
        connection.begin()
        if connection.dialect == "postgresql":
            connection.send(LOCKED).rows()
        await asyncio.sleep(3 * engine.settings.dead_after)
        connection.rollback()
        connection.close()
        beats = [worker._heartbeat._beats for worker in (engine, other)]
        while any(worker._heartbeat._beats < seen + 5 for worker, seen in zip((engine, other), beats, strict=True)):
            await asyncio.sleep(0.01)
        go_on.set()
        finals = [await worker.wait(run) for worker, run in zip((engine, other), runs, strict=True)]
    assert [final.output for final in finals] == ["1", "1"]
    assert "is dead" not in caplog.text


async def test_a_claim_that_fails_once_does_not_end_the_claiming(
    running: Running, make_request: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def invoke(context: InvocationContext) -> Any:
        return "ran"

    async with running(invoke) as engine:
        claim, failures = engine.store.claim, [StoreError("refused")]

        def fail_once(**options: Any) -> Any:
            if failures:
                raise failures.pop()
            return claim(**options)

        monkeypatch.setattr(engine.store, "claim", fail_once)
        while failures:
            await asyncio.sleep(0.01)
        queued = await engine.store.accept(make_request(), lease=False)
        assert (await asyncio.wait_for(engine.wait(queued.invocation), 10)).output == '"ran"'


async def test_a_reader_that_comes_back_gets_what_was_committed_while_nobody_read(
    running: Running, make_request: Make
) -> None:
    steps = asyncio.Semaphore(0)

    async def invoke(context: InvocationContext) -> Any:
        for n in range(1, 16):
            await steps.acquire()
            await context.emit(n)

    async def advance(engine: Engine, run: Any, to: int) -> None:
        for _ in range(to - await engine.store.read.last_position(run.number)):
            steps.release()
        while await engine.store.read.last_position(run.number) < to:
            await asyncio.sleep(0.001)

    async with running(invoke) as engine:
        run = await engine.accept(make_request())
        waiting = asyncio.create_task(engine.wait(run))
        await asyncio.sleep(0)
        seen: list[int] = []
        with await engine.follow(run, after=0) as follower:
            await advance(engine, run, 5)
            seen += [entry.position for entry in await follower.next(10)]
        await advance(engine, run, 8)
        with await engine.follow(run, after=seen[-1]) as follower:
            await advance(engine, run, 12)
            while seen[-1] < 12:
                seen += [entry.position for entry in await follower.next(10)]
        assert seen == list(range(1, 13))
        await advance(engine, run, 15)
        await waiting


class Rude(BaseException):
    pass


class Speechless(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


@pytest.mark.parametrize("error", [Rude("x"), SystemExit(3), Speechless()])
async def test_no_exception_of_a_handler_leaves_its_run_running(
    running: Running, make_request: Make, error: BaseException
) -> None:
    async def invoke(context: InvocationContext) -> Any:
        context.usage = {"bad": object()}
        raise error

    async with running(invoke) as engine:
        runs = [await engine.accept(make_request("s")) for _ in range(2)]
        for run in runs:
            found = error_of(await asyncio.wait_for(engine.wait(run), 10))
            assert found["code"] == "handler_error"
            assert found["message"].startswith(type(error).__name__)


async def test_a_finish_that_is_refused_does_not_leave_the_run_running(
    running: Running, make_request: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def invoke(context: InvocationContext) -> Any:
        return 1

    async with running(invoke) as engine:
        finish, refusals = engine.store.finish, 2

        def refuse_twice(*arguments: Any) -> Any:
            nonlocal refusals
            refusals -= 1
            if refusals >= 0:
                raise StoreError("refused")
            return finish(*arguments)

        monkeypatch.setattr(engine.store, "finish", refuse_twice)
        assert error_of(await ended(engine, make_request("s")))["code"] == "internal_error"
        assert (await ended(engine, make_request("s"))).status is Status.COMPLETED


async def test_a_refused_event_leaves_no_gap_and_no_endless_stream(running: Running, make_request: Make) -> None:
    async def invoke(context: InvocationContext) -> Any:
        await context.emit("first")
        with pytest.raises(StoreError):
            broken = journal.head(scope=object(), namespace="", checkpoint="")  # type: ignore[arg-type]
            await context.write(events=["refused"], parts=[broken])
        return await context.emit("second")

    async with running(invoke) as engine:
        run = await ended(engine, make_request())
        assert (run.output, run.last_position) == ("2", 2)
        with await engine.follow(run, after=0) as follower:
            assert [entry.text for entry in await follower.next(10)] == ['"first"', '"second"']
            assert follower.done


async def test_very_many_runs_of_other_workers_can_be_followed(
    running: Running, make_request: Make, quick: EngineSettings
) -> None:
    async def invoke(context: InvocationContext) -> Any:
        return 1

    async with running(invoke, settings=replace(quick, claims=False, concurrency=0)) as engine:
        runs = await asyncio.gather(*(engine.accept(make_request()) for _ in range(1100)))
        waiting = [asyncio.create_task(engine.wait(run)) for run in runs]
        async with running(invoke):
            finals = await asyncio.wait_for(asyncio.gather(*waiting), 60)
    assert {final.status for final in finals} == {Status.COMPLETED}


async def test_a_run_deleted_elsewhere_lets_go_of_whoever_waits_for_it(
    running: Running, make_request: Make, quick: EngineSettings
) -> None:
    async def invoke(context: InvocationContext) -> Any:
        await asyncio.Event().wait()

    async with running(invoke, settings=replace(quick, claims=False, concurrency=0)) as engine:
        run = await engine.accept(make_request())
        waiting = asyncio.create_task(engine.wait(run))
        with await engine.follow(run, after=0) as follower:
            await engine.store.cancel("local", run.id)
            await engine.store.delete("local", run.id, keep_ms=1000)
            while not (follower.done or follower.closed):
                await follower.next(0.05)
        with contextlib.suppress(NotFound):
            assert (await asyncio.wait_for(waiting, 10)).status is Status.FAILED


async def test_a_log_that_was_deleted_while_it_was_read_has_no_end(running: Running, make_request: Make) -> None:
    """An end would say that what was read is all there was."""

    async def invoke(context: InvocationContext) -> Any:
        await asyncio.gather(*(context.emit(n) for n in range(600)))

    async with running(invoke) as engine:
        run = await ended(engine, make_request())
        with await engine.follow(run, after=0) as follower:
            assert len(await follower.next(10)) == 500
            await engine.delete("local", run.id)
            assert await follower.next(10) == []
            assert (follower.done, follower.closed) == (False, True)


async def test_a_shutdown_returns_what_was_claimed_for_nobody(
    running: Running, make_request: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def invoke(context: InvocationContext) -> Any:
        return context.attempt

    async with running(invoke) as engine:
        claim, claimed = engine.store.claim, asyncio.Event()

        def drain_meanwhile(**options: Any) -> Any:
            def drain(done: Any) -> None:
                if done.result():
                    engine.begin_drain()
                    claimed.set()

            future = claim(**options)
            future.add_done_callback(drain)
            return future

        monkeypatch.setattr(engine.store, "claim", drain_meanwhile)
        run = (await engine.store.accept(make_request(), lease=False)).invocation
        await claimed.wait()
    async with running(invoke) as engine:
        final = await asyncio.wait_for(engine.wait(run), 10)
    assert (final.status, final.output) == (Status.COMPLETED, "1")
