import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from outlast.core import faults
from outlast.core.errors import LeaseLost, StoreError, StoreUnavailable
from outlast.core.records import Call, CallState, Invocation, Outcome, Request, Status
from outlast.store import Part, Store, journal
from outlast.store.reading import EVENTS_BYTES, READERS
from outlast.store.statements import Connection
from outlast.store.writer import Call as StoreCall

pytestmark = pytest.mark.anyio

Make = Callable[..., Request]
DONE = Outcome(Status.COMPLETED, output='{"ok":true}')


@pytest.fixture
async def run(store: Store, make_request: Make) -> Invocation:
    return (await store.accept(make_request("s"), lease=True)).invocation


async def test_events_are_read_back_in_order(store: Store, run: Invocation) -> None:
    sent = [store.write(run.number, 1, events=[(n, 1, f'{{"n":{n}}}')]) for n in range(1, 201)]
    await asyncio.gather(*sent)
    events = await store.read.events(run.number, after=0, limit=1000)
    assert [(event.position, event.text) for event in events] == [(n, f'{{"n":{n}}}') for n in range(1, 201)]


async def test_a_page_begins_after_the_cursor(store: Store, run: Invocation) -> None:
    await store.write(run.number, 1, events=[(n, 1, "0") for n in range(1, 11)])
    assert [event.position for event in await store.read.events(run.number, after=4, limit=3)] == [5, 6, 7]


async def test_a_repeated_write_changes_nothing(store: Store, run: Invocation) -> None:
    await store.write(run.number, 1, events=[(1, 1, '"first"')])
    await store.write(run.number, 1, events=[(1, 1, '"again"'), (2, 1, '"second"')])
    events = await store.read.events(run.number, after=0, limit=10)
    assert [event.text for event in events] == ['"first"', '"second"']


@pytest.mark.parametrize("size", [7_990, 8_000, 8_010, 5_000_000])
async def test_a_large_event_is_stored_whole(store: Store, run: Invocation, size: int) -> None:
    # BR-30
    text = '"' + "x" * size + '"'
    await store.write(run.number, 1, events=[(1, 1, text)])
    assert (await store.read.events(run.number, after=0, limit=1))[0].text == text


async def test_a_lease_that_is_gone_writes_nothing_and_harms_no_neighbour(
    store: Store, run: Invocation, make_request: Make
) -> None:
    other = (await store.accept(make_request("t"), lease=True)).invocation
    good = store.write(other.number, 1, events=[(1, 1, "1")])
    bad = store.write(run.number, 2, events=[(1, 2, "1")])
    await good
    with pytest.raises(LeaseLost):
        await bad
    assert await store.read.last_position(run.number) == 0
    assert await store.read.last_position(other.number) == 1


async def test_what_was_stored_with_the_end_of_its_run_is_told_so_whatever_came_with_it(
    store: Store, run: Invocation
) -> None:
    go_on = threading.Event()
    told: list[bool] = []
    first = store._writer.submit(StoreCall("", lambda connection: go_on.wait(30)))
    last = store.write(run.number, 1, events=[(1, 1, "1")], told=told.append)
    end = store.finish(run.number, 1, run.session_number, DONE)
    lost = store.write(run.number, 9, events=[(2, 1, "2")])
    go_on.set()
    await first
    assert (await end).last_position == 1
    assert (await last, told) == ([], [True])
    with pytest.raises(LeaseLost):
        await lost


async def test_reads_of_a_store_that_is_closed_say_so(store_url: str) -> None:
    store = await Store.open(store_url)
    go_on = threading.Event()
    under_way = [asyncio.create_task(store.read._run(lambda connection: go_on.wait(30))) for _ in range(READERS)]
    waiting = [asyncio.create_task(store.read.workers()) for _ in range(3)]
    await asyncio.sleep(0.1)
    closing = asyncio.create_task(store.close())
    await asyncio.sleep(0.1)
    go_on.set()
    await closing
    assert await asyncio.gather(*under_way) == [True] * READERS
    for late in [*waiting, asyncio.create_task(store.read.workers())]:
        with pytest.raises(StoreUnavailable):
            await late


async def test_finish_stores_the_outcome_and_releases_the_next(
    store: Store, run: Invocation, make_request: Make
) -> None:
    waiting = (await store.accept(make_request("s"), lease=True)).invocation
    finished = await store.finish(run.number, 1, run.session_number, DONE)
    assert finished.released == (waiting.number,)
    found = await store.read.invocation("local", run.id)
    assert found is not None
    assert (found.status, found.output, found.finished_at) == (Status.COMPLETED, DONE.output, finished.finished_at)


async def test_finish_happens_once_and_can_be_repeated(store: Store, run: Invocation) -> None:
    first = await store.finish(run.number, 1, run.session_number, DONE)
    again = await store.finish(run.number, 1, run.session_number, DONE)
    assert again.finished_at == first.finished_at
    with pytest.raises(LeaseLost):
        other = Outcome.failed("x", "y")
        await store.finish(run.number, 1, run.session_number, other)


async def test_nothing_is_written_after_the_end(store: Store, run: Invocation) -> None:
    await store.finish(run.number, 1, run.session_number, DONE)
    with pytest.raises(LeaseLost):
        await store.write(run.number, 1, events=[(1, 1, "1")])


async def test_followers_hear_of_commits_in_order(store: Store, run: Invocation) -> None:
    heard: list[tuple[int, bool]] = []
    sent = [
        store.write(run.number, 1, events=[(n, 1, "0")], told=lambda stored, n=n: heard.append((n, stored)))  # type: ignore[misc]
        for n in range(1, 101)
    ]
    await asyncio.gather(*sent)
    assert heard == [(n, True) for n in range(1, 101)]


def _started(token: str) -> Part:
    return journal.started(
        scope="s1", key="k", token=token, call_id="c1", name="pay", arguments='{"x":7}', position=None
    )


def _settled(token: str, state: CallState) -> Part:
    return journal.settled(scope="s1", key="k", token=token, state=state, outcome='"paid"', position=None)


async def _journal(store: Store, run: Invocation, part: Part, epoch: int | None = None) -> Call | None:
    ((*rows,),) = await store.write(run.number, epoch or run.epoch, parts=[part])
    return journal.read(rows[0]) if rows else None


async def test_one_token_wins_the_right_to_run_a_call(store: Store, run: Invocation) -> None:
    rows = await asyncio.gather(*(_journal(store, run, _started(f"t{n}")) for n in range(5)))
    assert {row.token for row in rows if row} == {"t0"}


async def test_a_repeated_start_with_the_same_token_may_run(store: Store, run: Invocation) -> None:
    await _journal(store, run, _started("t"))
    row = await _journal(store, run, _started("t"))
    assert row is not None and (row.token, row.state) == ("t", CallState.STARTED)


async def test_a_finished_call_keeps_its_outcome(store: Store, run: Invocation) -> None:
    await _journal(store, run, _started("t"))
    await _journal(store, run, _settled("t", CallState.DONE))
    row = await _journal(store, run, _started("u"))
    assert row is not None
    assert (row.state, row.outcome, row.token, row.arguments) == (CallState.DONE, '"paid"', "t", '{"x":7}')


async def test_a_call_that_waits_for_a_person_may_start_again(store: Store, run: Invocation) -> None:
    await _journal(store, run, _started("t"))
    await _journal(store, run, _settled("t", CallState.WAITING))
    row = await _journal(store, run, _started("u"))
    assert row is not None and (row.token, row.state) == ("u", CallState.STARTED)


async def test_a_failed_call_may_run_again_in_the_same_attempt_only(
    store: Store, run: Invocation, make_request: Make
) -> None:
    await _journal(store, run, _started("t"))
    await _journal(store, run, _settled("t", CallState.FAILED))
    other = (await store.accept(make_request("t"), lease=True)).invocation
    elsewhere = await _journal(store, other, _started("v"))
    assert elsewhere is not None and elsewhere.token == "t"
    again = await _journal(store, run, _started("u"))
    assert again is not None and again.token == "u"


async def test_the_journal_is_fenced_like_everything_else(store: Store, run: Invocation) -> None:
    with pytest.raises(LeaseLost):
        await _journal(store, run, _started("t"), epoch=7)
    assert await store.read.calls("s1") == []


async def test_a_row_and_its_event_are_one_transaction(store: Store, run: Invocation) -> None:
    await store.write(run.number, 1, events=[(1, 1, '{"type":"agent.tool.started"}')], parts=[_started("t")])
    with pytest.raises(LeaseLost):
        await store.write(run.number, 9, events=[(2, 1, "1")], parts=[_settled("t", CallState.DONE)])
    (call,) = await store.read.calls("s1")
    assert call.state is CallState.STARTED
    assert await store.read.last_position(run.number) == 1


async def test_a_statement_that_can_never_work_fails_alone_and_is_not_tried_for_ever(
    store: Store, run: Invocation
) -> None:
    broken = Part("head", journal._SET_HEAD, {"scope": "s1"})
    good = store.write(run.number, 1, events=[(1, 1, "1")])
    bad = store.write(run.number, 1, parts=[broken])
    await good
    with pytest.raises(StoreError):
        await asyncio.wait_for(bad, 10)
    assert await store.read.last_position(run.number) == 1


async def test_an_operation_that_breaks_the_writer_fails_alone_and_the_writer_goes_on(
    store: Store, make_request: Make
) -> None:
    futures = [store.accept(None, lease=False) for _ in range(2)]  # type: ignore[arg-type]  # not expected by the writer
    await asyncio.wait(futures, timeout=10)
    assert all(future.done() and isinstance(future.exception(), StoreError) for future in futures)
    assert (await store.accept(make_request("s"), lease=True)).created


async def test_what_was_stored_before_its_round_broke_is_not_told_otherwise(store: Store, run: Invocation) -> None:
    go_on = threading.Event()
    told: list[bool] = []

    def end_the_thread(connection: Connection) -> None:
        raise SystemExit

    together = store._writer.submit(StoreCall("", lambda connection: go_on.wait()))
    writing = store.write(run.number, 1, events=[(1, 1, "1")], told=told.append)
    broken = store._writer.submit(StoreCall("", end_the_thread))
    go_on.set()
    await together
    done, _ = await asyncio.wait([broken], timeout=10)
    assert done and isinstance(broken.exception(), StoreError)
    await writing
    await store.write(run.number, 1, events=[(2, 1, "2")])
    assert told == [True]


@pytest.mark.parametrize("where", ["events", "journal"])
async def test_a_batch_is_bounded_by_its_bytes_too(store: Store, run: Invocation, where: str) -> None:
    """Otherwise what waits for a slow database could make one statement of gigabytes."""
    text, batches, go_on = f'"{"x" * 1_000_000}"', 0, threading.Event()

    def count(point: str) -> None:
        nonlocal batches
        batches += point in ("events.begin", "journal.started.begin")

    def large(number: int) -> dict[str, Any]:
        if where == "events":
            return {"events": [(number, 1, text)]}
        return {
            "parts": [
                journal.started(
                    scope="s1", key=f"k{number}", token="t", call_id="c", name="pay", arguments=text, position=None
                )
            ]
        }

    faults.install(count)
    try:
        before = store._writer.submit(StoreCall("", lambda connection: go_on.wait()))
        writing = [store.write(run.number, 1, **large(number)) for number in range(1, 21)]
        go_on.set()
        await asyncio.gather(before, *writing)
    finally:
        faults.install(None)
    assert 4 <= batches <= 10
    stored = await store.read.last_position(run.number) if where == "events" else len(await store.read.calls("s1"))
    assert stored == 20


@pytest.mark.parametrize(("count", "size"), [(30, 100_000), (2000, 1)])
async def test_a_run_with_very_much_to_say_keeps_no_other_follower_waiting(
    store: Store, run: Invocation, make_request: Make, count: int, size: int
) -> None:
    """What is read at once is bounded by events and bytes, and begins where the last reading stopped."""
    others = [(await store.accept(make_request(), lease=True)).invocation for _ in range(2)]
    await store.write(run.number, 1, events=[(n, 1, f'"{"x" * size}"') for n in range(1, count + 1)])
    for other in others:
        await store.write(other.number, 1, events=[(1, 1, "1")])
    await store.finish(run.number, 1, run.session_number, DONE)
    cursors = {one.number: 0 for one in (run, *others)}
    first = await store.read.tails(cursors, limit=500)
    read = [event.text for tail in first.runs.values() for event in tail.events]
    assert 1 <= len(read) <= 500 and sum(map(len, read)) <= EVENTS_BYTES + size + 2
    assert first.runs[run.number].final is None and first.next is not None
    second = await store.read.tails(cursors, limit=500, first=first.next)
    assert all(len(second.runs[other.number].events) == 1 for other in others)
    tail, seen = second.runs[run.number], 0
    while tail.final is None:
        seen = tail.events[-1].position
        tail = (await store.read.tails({run.number: seen}, limit=500)).runs[run.number]
    assert (tail.events[-1].position, tail.final.output) == (count, DONE.output)
