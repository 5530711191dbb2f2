import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from outlast.core.errors import Conflict, Gone
from outlast.core.records import Kind, OnActive, Outcome, Request, Status
from outlast.store import Store

pytestmark = pytest.mark.anyio

Make = Callable[..., Request]
DONE = Outcome(Status.COMPLETED, output="1")


async def test_an_accepted_request_is_readable_as_it_was_sent(store: Store, make_request: Make) -> None:
    request = make_request("s\u00e9", input={"b": "a\x00\ud800", "a": 10**30}, metadata={"team": "x"}, config={"k": 1})
    accepted = await store.accept(request, lease=False)
    found = await store.read.invocation("local", request.id)
    assert found == accepted.invocation
    assert (found.session_id, found.input, found.config, found.metadata) == (
        "s\u00e9", '{"b":"a\\u0000\\ud800","a":1000000000000000000000000000000}', '{"k":1}', '{"team":"x"}',
    )  # fmt: skip


async def test_the_first_run_of_a_free_session_is_leased_at_once(store: Store, make_request: Make) -> None:
    first = await store.accept(make_request("s"), lease=True)
    second = await store.accept(make_request("s"), lease=True)
    assert (first.invocation.status, first.invocation.holder, first.invocation.attempt) == (Status.RUNNING, "w1", 1)
    assert (second.invocation.status, second.invocation.holder, second.invocation.attempt) == (Status.QUEUED, None, 0)


async def test_a_run_without_session_is_leased_at_once(store: Store, make_request: Make) -> None:
    accepted = await asyncio.gather(*(store.accept(make_request(), lease=True) for _ in range(3)))
    assert [found.invocation.status for found in accepted] == [Status.RUNNING] * 3


async def test_without_room_a_run_is_queued_and_ready(store: Store, make_request: Make) -> None:
    accepted = await store.accept(make_request("s"), lease=False)
    claimed = await store.claim(agents=["a"], room=1, suspect_room=0, per_principal=0, known=[])
    assert [found.number for found in claimed] == [accepted.invocation.number]


async def test_the_same_request_again_is_the_same_invocation(store: Store, make_request: Make) -> None:
    request = make_request("s")
    first, *again = await asyncio.gather(*(store.accept(request, lease=True) for _ in range(20)))
    assert first.created
    assert {found.invocation.number for found in again} == {first.invocation.number}
    assert not any(found.created for found in again)


@pytest.mark.parametrize(
    "changed",
    [
        {"input": {"text": "other"}}, {"session_id": "t"}, {"session_id": None}, {"agent": "b"}, {"config": {"k": 1}},
        {"kind": Kind.RESUME}, {"input": {"text": 1}},
    ],
)  # fmt: skip
async def test_the_same_id_for_another_request_is_a_conflict(
    store: Store, make_request: Make, changed: dict[str, object]
) -> None:
    # BR-43
    request = make_request("s", input={"text": "hi"})
    await store.accept(request, lease=True)
    with pytest.raises(Conflict) as caught:
        await store.accept(make_request(**{"session_id": "s", "id": request.id, **changed}), lease=True)
    assert caught.value.code == "idempotency_conflict"
    found = await store.read.invocation("local", request.id)
    assert found is not None and found.input == request.input


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"input": {"b": 1, "a": "secret"}, "agent": "b"}, "agent"),
        ({"input": {"b": 1.0, "a": "secret"}}, "input"),
        ({"session_id": None, "kind": Kind.RESUME}, "session_id and kind"),
        ({"input": 0, "session_id": "t", "agent": "b", "config": {"k": 2}}, "input, session_id, agent and config"),
    ],
)
async def test_a_conflict_names_what_differs_and_shows_nothing_of_it(
    store: Store, make_request: Make, changed: dict[str, object], named: str
) -> None:
    request = make_request("secret", input={"a": "secret", "b": 1}, config={"k": "secret"})
    await store.accept(request, lease=True)
    asked = {
        "id": request.id, "session_id": "secret", "input": {"a": "secret", "b": 1}, "config": {"k": "secret"}, **changed,
    }  # fmt: skip
    with pytest.raises(Conflict, match=rf"exists with another {named};") as caught:
        await store.accept(make_request(**asked), lease=True)
    assert "secret" not in str(caught.value)


async def test_a_conflict_is_one_too_where_only_the_order_of_number_keys_differs(
    store: Store, make_request: Make
) -> None:
    request = make_request("s", input={9: 1, 10: 2})
    await store.accept(request, lease=True)
    with pytest.raises(Conflict):
        await store.accept(make_request("s", id=request.id, input={"9": 1, "10": 2}), lease=True)


async def test_a_refused_request_creates_no_session(store: Store, make_request: Make) -> None:
    request = make_request("s")
    await store.accept(request, lease=True)
    with pytest.raises(Conflict):
        await store.accept(make_request("new", id=request.id), lease=True)
    other = await store.accept(make_request("new", agent="b"), lease=True)
    assert other.created


async def test_flags_outside_the_identity_do_not_conflict(store: Store, make_request: Make) -> None:
    request = make_request("s")
    await store.accept(request, lease=True)
    again = await store.accept(replace(request, metadata={"x": "y"}, timeout_seconds=5.0), lease=True)
    assert not again.created


async def test_ids_of_another_principal_are_another_matter(store: Store, make_request: Make) -> None:
    # BR-55
    mine = make_request("s", input={"text": "secret"})
    await store.accept(mine, lease=True)
    theirs = await store.accept(make_request("s", id=mine.id, principal="eve"), lease=True)
    assert theirs.created and theirs.invocation.status is Status.RUNNING


async def test_a_session_belongs_to_the_agent_that_opened_it(store: Store, make_request: Make) -> None:
    # BR-23
    await store.accept(make_request("s", agent="a"), lease=True)
    with pytest.raises(Conflict) as caught:
        await store.accept(make_request("s", agent="b"), lease=True)
    assert caught.value.code == "session_of_other_agent"


async def test_reject_refuses_a_busy_session_and_accepts_a_free_one(store: Store, make_request: Make) -> None:
    rejecting = make_request("s", on_active=OnActive.REJECT)
    first = (await store.accept(rejecting, lease=True)).invocation
    with pytest.raises(Conflict) as caught:
        await store.accept(make_request("s", on_active=OnActive.REJECT), lease=True)
    assert caught.value.code == "session_active"
    await store.finish(first.number, first.epoch, first.session_number, DONE)
    assert (await store.accept(make_request("s", on_active=OnActive.REJECT), lease=True)).created


async def test_of_many_rejecting_requests_at_once_one_wins(store: Store, make_request: Make) -> None:
    sent = [store.accept(make_request("s", on_active=OnActive.REJECT), lease=True) for _ in range(10)]
    answers = await asyncio.gather(*sent, return_exceptions=True)
    assert sum(isinstance(answer, Conflict) for answer in answers) == 9


async def test_order_in_a_session_is_the_order_of_acceptance(store: Store, make_request: Make) -> None:
    requests = [make_request("s") for _ in range(20)]
    await asyncio.gather(*(store.accept(request, lease=False) for request in requests))
    order = []
    for _ in requests:
        (run,) = await store.claim(agents=["a"], room=5, suspect_room=0, per_principal=0, known=[])
        order.append(run.id)
        await store.finish(run.number, run.epoch, run.session_number, DONE)
    assert order == [request.id for request in requests]


async def test_a_duplicate_in_the_batch_does_not_wedge_the_session(store: Store, make_request: Make) -> None:
    first, second = make_request("s"), make_request("s")
    sent = [store.accept(request, lease=True) for request in (first, first, second, first)]
    runs = [(await answer).invocation for answer in sent]
    await store.finish(runs[0].number, 1, runs[0].session_number, DONE)
    (claimed,) = await store.claim(agents=["a"], room=5, suspect_room=0, per_principal=0, known=[])
    assert claimed.id == second.id


async def test_a_deleted_id_stays_gone(store: Store, make_request: Make) -> None:
    request = make_request("s")
    run = (await store.accept(request, lease=True)).invocation
    with pytest.raises(Conflict) as caught:
        await store.delete("local", request.id, keep_ms=60_000)
    assert caught.value.code == "not_final"
    await store.finish(run.number, run.epoch, run.session_number, DONE)
    await store.delete("local", request.id, keep_ms=60_000)
    assert await store.read.invocation("local", request.id) is None
    with pytest.raises(Gone):
        await store.accept(request, lease=True)


async def test_two_stores_racing_for_one_id_make_one_invocation(store_url: str, make_request: Make) -> None:
    # BR-42
    stores = [await Store.open(store_url) for _ in range(2)]
    for _ in range(50):
        request = make_request()
        sent = [store.accept(request, lease=False) for store in stores for _ in range(5)]
        answers = await asyncio.gather(*sent)
        assert len({answer.invocation.number for answer in answers}) == 1
        assert sum(answer.created for answer in answers) == 1
    for store in stores:
        await store.close()


async def test_two_stores_racing_for_one_session_start_one_run(store_url: str, make_request: Make) -> None:
    # BR-22
    stores = [await Store.open(store_url) for _ in range(2)]
    for index, store in enumerate(stores):
        await store.register(id=f"w{index}", host="here", pid=1, lock_file=None)
        store.worker = f"w{index}"
    for number in range(50):
        sent = [store.accept(make_request(f"s{number}"), lease=True) for store in stores for _ in range(3)]
        answers = await asyncio.gather(*sent)
        assert sum(answer.invocation.status is Status.RUNNING for answer in answers) == 1
    for store in stores:
        await store.close()
