import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from outlast.core.errors import LeaseLost, NotFound, StoreError
from outlast.core.records import CallState, Invocation, Outcome, Request, Status
from outlast.store import Store, invocations, journal, workers
from outlast.store.migrate import migrate
from outlast.store.statements import Connection, Statement
from outlast.store.writer import Call

pytestmark = pytest.mark.anyio

Make = Callable[..., Request]
DONE = Outcome(Status.COMPLETED, output="1")


async def claim(store: Store, **options: object) -> list[Invocation]:
    defaults = {"agents": ["a"], "room": 10, "suspect_room": 1, "per_principal": 0, "known": []}
    return await store.claim(**{**defaults, **options})


async def take_over(store: Store, worker: str, counter: int | None = None) -> list[workers.Lost] | None:
    def function(connection: Connection) -> list[workers.Lost] | None:
        return workers.take_over(connection, id=worker, counter=counter)

    found: list[workers.Lost] | None = await store._writer.submit(Call("takeover", function))
    return found


@pytest.fixture
async def other(store_url: str, store: Store) -> Store:
    """A second worker, `w2`, on the same database."""
    opened = await Store.open(store_url)
    await opened.register(id="w2", host="here", pid=2, lock_file=None)
    opened.worker = "w2"
    return opened


async def test_claiming_takes_the_oldest_ready_runs_of_known_agents(store: Store, make_request: Make) -> None:
    sent = [make_request(), make_request(agent="b"), make_request("s"), make_request("s"), make_request()]
    for request in sent:
        await store.accept(request, lease=False)
    assert [run.id for run in await claim(store, room=2)] == [sent[0].id, sent[2].id]


async def test_a_lost_answer_to_a_claim_is_found_by_the_next_one(store: Store, make_request: Make) -> None:
    await store.accept(make_request(), lease=False)
    (first,) = await claim(store)
    assert await claim(store) == [first]
    assert await claim(store, known=[first.number]) == []


async def test_a_worker_that_is_not_registered_claims_nothing(store: Store, make_request: Make) -> None:
    await store.accept(make_request(), lease=False)
    store.worker = "nobody"
    assert await claim(store) == []
    assert (await store.accept(make_request(), lease=True)).invocation.status is Status.QUEUED


async def test_a_principal_runs_at_most_its_share_at_once(store: Store, make_request: Make) -> None:
    for principal in ("p", "p", "p", "q"):
        await store.accept(make_request(principal=principal), lease=False)
    claimed = await claim(store, per_principal=2)
    assert sorted(run.principal for run in claimed) == ["p", "p", "q"]


async def test_taking_over_queues_the_runs_of_the_dead_again(store: Store, other: Store, make_request: Make) -> None:
    run = (await store.accept(make_request("s"), lease=True)).invocation
    lost = await take_over(other, "w1")
    assert lost is not None and [found.number for found in lost] == [run.number]
    (again,) = await claim(other)
    assert (again.attempt, again.crashes, again.suspect, again.epoch) == (2, 1, True, 2)
    with pytest.raises(LeaseLost):
        await store.write(run.number, 1, events=[(1, 1, "1")])
    await other.close()


async def test_a_worker_is_taken_over_once(store: Store, other: Store) -> None:
    assert await take_over(other, "w1") == []
    assert await take_over(other, "w1") is None
    await other.close()


async def test_a_worker_that_beat_again_is_not_taken_over(store: Store, other: Store, make_request: Make) -> None:
    run = (await store.accept(make_request(), lease=True)).invocation
    assert await take_over(other, "w1", counter=41) is None
    await store.write(run.number, 1, events=[(1, 1, "1")])
    await other.close()


async def test_progress_makes_a_crash_free_of_charge(store: Store, other: Store, make_request: Make) -> None:
    run = (await store.accept(make_request(), lease=True)).invocation
    await store.write(run.number, 1, progress=True)
    await take_over(other, "w1")
    assert [(again.crashes, again.suspect) for again in await claim(other)] == [(0, True)]
    await other.close()


async def test_suspects_are_claimed_one_at_a_time(store: Store, other: Store, make_request: Make) -> None:
    for _ in range(3):
        await store.accept(make_request(), lease=True)
    await take_over(other, "w1")
    fresh = (await other.accept(make_request(), lease=False)).invocation
    claimed = await claim(other)
    assert [run.suspect for run in claimed] == [True, False]
    assert claimed[1].number == fresh.number
    assert await claim(other, suspect_room=0, known=[run.number for run in claimed]) == []
    await other.close()


async def test_a_run_handed_back_is_not_charged(store: Store, make_request: Make) -> None:
    run = (await store.accept(make_request(), lease=True)).invocation
    await store.hand_back(run.number, run.epoch, entered=False)
    (again,) = await claim(store)
    assert (again.attempt, again.crashes, again.suspect) == (1, 0, False)
    await store.hand_back(again.number, again.epoch, entered=True)
    (third,) = await claim(store)
    assert (third.attempt, third.crashes) == (2, 0)


async def test_leaving_hands_back_what_is_held(store: Store, other: Store, make_request: Make) -> None:
    await store.accept(make_request(), lease=True)
    await store.deregister("w1")
    (again,) = await claim(other)
    assert (again.crashes, again.suspect) == (0, False)
    await other.close()


async def test_cancelling_a_queued_run_ends_it_and_lets_the_next_start(store: Store, make_request: Make) -> None:
    head = (await store.accept(make_request("s"), lease=False)).invocation
    behind = (await store.accept(make_request("s"), lease=False)).invocation
    cancelled = await store.cancel("local", head.id)
    assert cancelled.invocation.status is Status.FAILED
    assert cancelled.invocation.error == '{"code":"cancelled","message":"the run was cancelled"}'
    assert cancelled.released == (behind.number,)


async def test_cancelling_a_run_that_lost_its_worker_leaves_it_to_whoever_finishes_it(
    store: Store, make_request: Make
) -> None:
    run = (await store.accept(make_request("s"), lease=True)).invocation
    await store.hand_back(run.number, run.epoch, entered=True)
    for _ in range(2):
        cancelled = await store.cancel("local", run.id)
        assert (cancelled.invocation.status, cancelled.invocation.cancel) == (Status.QUEUED, "cancelled")
    asked: list[invocations.Stopping] = await store._writer.submit(Call("cancel", invocations.stopping))
    assert [(one.number, one.holder, one.reason) for one in asked] == [(run.number, None, "cancelled")]
    ended = await store.expire(run.number, run.epoch, "cancelled")
    assert ended is not None
    assert ended.invocation.status is Status.FAILED
    assert await store._writer.submit(Call("cancel", invocations.stopping)) == []


async def test_a_run_that_was_claimed_meanwhile_is_not_expired(store: Store, make_request: Make) -> None:
    run = (await store.accept(make_request("s"), lease=True)).invocation
    await store.hand_back(run.number, run.epoch, entered=True)
    await store.cancel("local", run.id)
    claimed = await store.claim(agents=["a"], room=1, suspect_room=0, per_principal=0, known=[])
    assert [(one.number, one.cancel) for one in claimed] == [(run.number, "cancelled")]
    assert await store.expire(run.number, run.epoch, "cancelled") is None


async def test_cancelling_a_running_run_asks_its_holder(store: Store, make_request: Make) -> None:
    run = (await store.accept(make_request("s"), lease=True)).invocation
    cancelled = await store.cancel("local", run.id)
    assert (cancelled.invocation.status, cancelled.invocation.cancel) == (Status.RUNNING, "cancelled")


async def test_cancelling_changes_nothing_that_is_final(store: Store, make_request: Make) -> None:
    run = (await store.accept(make_request("s"), lease=True)).invocation
    await store.finish(run.number, 1, run.session_number, DONE)
    cancelled = await store.cancel("local", run.id)
    assert (cancelled.invocation.status, cancelled.invocation.cancel) == (Status.COMPLETED, None)
    with pytest.raises(NotFound):
        await store.cancel("eve", run.id)


async def test_expiring_takes_the_run_away_from_its_holder(store: Store, make_request: Make) -> None:
    run = (await store.accept(make_request("s"), lease=True)).invocation
    behind = (await store.accept(make_request("s"), lease=False)).invocation
    await store.write(run.number, 1, events=[(1, 1, "1"), (2, 1, "2")])
    ended = await store.expire(run.number, run.epoch, "timeout")
    assert ended is not None
    assert (ended.invocation.status, ended.invocation.last_position) == (Status.FAILED, 2)
    assert ended.released == (behind.number,)
    with pytest.raises(LeaseLost):
        await store.write(run.number, 1, events=[(3, 1, "3")])
    assert await store.expire(run.number, run.epoch, "timeout") is None


async def test_an_overdue_run_is_asked_to_stop(store: Store, make_request: Make) -> None:
    await store.accept(make_request(timeout_seconds=3600.0), lease=True)
    overdue = (await store.accept(make_request(timeout_seconds=0.001), lease=True)).invocation

    async def asked() -> list[invocations.Stopping]:
        found: list[invocations.Stopping] = await store._writer.submit(Call("cancel", invocations.stopping))
        return found

    while not (found := await asked()):
        await asyncio.sleep(0)
    assert [(run.number, run.reason) for run in found] == [(overdue.number, "timeout")]


async def test_old_final_runs_go_and_active_ones_stay(store: Store, make_request: Make) -> None:
    # BR-72
    finals = [(await store.accept(make_request(), lease=True)).invocation for _ in range(5)]
    active = (await store.accept(make_request(), lease=True)).invocation
    for run in finals:
        await store.write(run.number, 1, events=[(1, 1, "1")])
        await store.finish(run.number, 1, None, DONE)
    removed = [await store.remove_old(status=Status.COMPLETED, age_ms=-1000, keep_ms=1000, limit=2) for _ in range(4)]
    assert removed == [2, 2, 1, 0]
    assert await store.read.events(finals[0].number, after=0, limit=1) == []
    assert await store.read.invocation("local", active.id) is not None


async def test_retention_leaves_the_journal_of_a_session_with_open_calls(store: Store, make_request: Make) -> None:
    run = (await store.accept(make_request("s"), lease=True)).invocation
    parts = [
        journal.started(scope=scope, key=key, token="t", call_id=None, name="pay", arguments=None, position=None)
        for scope, key in (("s1", "open"), ("s1", "done"), ("s2", "done"))
    ]
    await store.write(run.number, 1, parts=parts)
    settled = [
        journal.settled(scope=scope, key="done", token="t", state=CallState.DONE, outcome="1", position=None)
        for scope in ("s1", "s2")
    ]
    await store.write(run.number, 1, parts=settled)
    await store.finish(run.number, 1, run.session_number, DONE)
    await store.remove_old(status=Status.COMPLETED, age_ms=-1000, keep_ms=1000, limit=9)
    assert {call.key for call in await store.read.calls("s1")} == {"done", "open"}
    assert await store.read.calls("s2") == []


async def test_the_sweep_frees_a_forgotten_session_head(store: Store, make_request: Make) -> None:
    head = (await store.accept(make_request("s"), lease=False)).invocation
    forgotten = (await store.accept(make_request("s"), lease=False)).invocation
    await store.cancel("local", head.id)
    assert forgotten.status is Status.QUEUED
    assert await store._writer.submit(Call("expire", invocations.sweep)) == 0


async def test_lists_are_filtered_and_paged(store: Store, make_request: Make) -> None:
    runs = [
        (await store.accept(make_request(f"s{n % 2}", metadata={'te"am': str(n % 3)}), lease=False)).invocation
        for n in range(6)
    ]

    async def listed(**options: object) -> list[int]:
        defaults: dict[str, object] = {
            "session_id": None, "status": None, "agent": None, "metadata": {}, "before": None, "limit": 10
        }  # fmt: skip
        found = await store.read.listed("local", **{**defaults, **options})  # type: ignore[arg-type]
        return [runs.index(run) for run in found]

    assert await listed() == [5, 4, 3, 2, 1, 0]
    assert await listed(session_id="s1") == [5, 3, 1]
    assert await listed(before=runs[4].number, limit=2) == [3, 2]
    assert await listed(metadata={'te"am': "2"}) == [5, 2]
    assert await listed(status=Status.RUNNING) == []
    assert await listed(agent="b") == []


async def test_many_workers_may_migrate_at_once(store_url: str) -> None:
    # BR-49
    stores = await asyncio.gather(*(Store.open(store_url) for _ in range(8)))
    assert not migrate(stores[0]._engine, stores[0].url.schema)
    for store in stores:
        await store.close()


@pytest.mark.parametrize("moment", ["before_commit", "after_commit"])
async def test_a_deletion_whose_commit_has_an_unknown_outcome_succeeds(
    store: Store, make_request: Make, lost_once: Callable[[str], AbstractContextManager[None]], moment: str
) -> None:
    run = (await store.accept(make_request("s"), lease=True)).invocation
    await store.finish(run.number, run.epoch, run.session_number, DONE)
    with lost_once(f"delete.{moment}"):
        await store.delete("local", run.id, keep_ms=1000)
    assert await store.read.invocation("local", run.id) is None
    with pytest.raises(NotFound):
        await store.delete("local", run.id, keep_ms=1000)


async def test_a_read_that_the_database_refuses_is_an_error_and_is_not_waited_out(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    await store._call("", lambda connection: connection.send(Statement("ALTER TABLE {p}heads RENAME TO gone")))
    with pytest.raises(StoreError, match="see the log"):
        await store.read.head("s1", "")
    assert "heads" in caplog.text
