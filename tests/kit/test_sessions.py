import asyncio
import itertools
import json
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest

from outlast import AgentClient
from outlast.client import RemoteSessionStore
from outlast.core.errors import Conflict, Gone, InvalidRequest, NotFound, SessionBusy
from outlast.core.records import Outcome, Request, Status
from outlast.sessions import SessionStore
from outlast.store import Store
from outlast.testing.postgres import PostgresServer
from outlast.testing.proxy import Cut, FaultProxy

pytestmark = pytest.mark.anyio

Make = Callable[..., Request]
Lose = Callable[[str], AbstractContextManager[None]]
HEAD = json.dumps({"type": "session", "id": "s", "agent": "a", "actor_id": "b", "labels": {}})
DONE = Outcome(Status.COMPLETED, output="1")


Sessions = SessionStore | RemoteSessionStore


@pytest.fixture
def sessions(store: Store, served: AgentClient | None) -> Sessions:
    return SessionStore(store) if served is None else served.sessions


def said(*texts: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text} for text in texts]


async def texts(sessions: Sessions, id: str, **options: Any) -> list[Any]:
    return [item.content["content"] async for item in sessions.items(id, **options)]


async def test_a_session_is_readable_as_it_was_made(sessions: Sessions) -> None:
    made = await sessions.create("s/\u00e9", agent="support", actor_id="ann", labels={"team": "x"})
    assert await sessions.get("s/\u00e9") == made
    assert (made.agent, made.actor_id, made.labels, made.parent, made.root) == (
        "support", "ann", {"team": "x"}, None, "s/\u00e9",
    )  # fmt: skip


async def test_a_session_without_id_gets_one(sessions: Sessions) -> None:
    made = await sessions.create()
    assert (await sessions.get(made.id)).actor_id == "local"


async def test_the_same_session_again_is_the_same_one_and_another_is_a_conflict(sessions: Sessions) -> None:
    made = await sessions.create("s", actor_id="ann")
    assert await sessions.create("s", actor_id="ann") == made
    with pytest.raises(Conflict, match="another agent, actor") as caught:
        await sessions.create("s", actor_id="bob")
    assert caught.value.code == "session_exists"


async def test_labels_are_short_also_when_they_come_one_after_another(sessions: Sessions) -> None:
    await sessions.create("s", labels={"a": "x" * 40_000})
    with pytest.raises(InvalidRequest, match="65536 characters"):
        await sessions.create("other", labels={"a": "x" * 65_536})
    with pytest.raises(InvalidRequest, match="65536 characters"):
        await sessions.update("s", labels={"b": "x" * 40_000})
    assert (await sessions.update("s", labels={"a": None, "b": "x" * 40_000})).labels == {"b": "x" * 40_000}


@pytest.mark.parametrize("id", ["", "a\x00", "a" * 513, "\ud800", 7])
async def test_an_impossible_name_is_refused(sessions: Sessions, id: Any) -> None:
    acts = (
        sessions.create(id), sessions.get(id), sessions.append(id, []), sessions.pop(id), sessions.clear(id),
        sessions.fork(id), sessions.update(id, labels={}), sessions.delete(id), anext(sessions.items(id)),
    )  # fmt: skip
    for act in acts:
        with pytest.raises(InvalidRequest) as caught:
            await act
        assert caught.value.code == "invalid_session_id"


@pytest.mark.parametrize(
    "options", [{"labels": {"a": 1}}, {"labels": {"a": None}}, {"labels": []}, {"actor_id": ""}, {"agent": "\x00"}]
)
async def test_bad_fields_are_refused_before_anything_is_stored(sessions: Sessions, options: Any) -> None:
    with pytest.raises(InvalidRequest):
        await sessions.create("s", **options)
    with pytest.raises(NotFound):
        await sessions.get("s")


@pytest.mark.parametrize(
    ("act", "field"),
    [
        (lambda sessions: sessions.create("new", agent=5), "agent"),
        (lambda sessions: sessions.create("new", actor_id=5), "actor_id"),
        (lambda sessions: sessions.create("new", parent=5), "parent"),
        (lambda sessions: sessions.create("new", labels="team"), "labels"),
        (lambda sessions: sessions.page(labels={"a": 1}), "labels"),
        (lambda sessions: sessions.page(cursor="x"), "cursor"),
        (lambda sessions: sessions.page(cursor=2**63), "cursor"),
        (lambda sessions: sessions.page(limit="5"), "limit"),
        (lambda sessions: sessions.page(limit=501), "limit"),
        (lambda sessions: sessions.page(agent=5), "agent"),
        (lambda sessions: sessions.update("s", labels=[]), "labels"),
        (lambda sessions: sessions.update("s", labels={"a": 1}), "labels"),
        (lambda sessions: sessions.append("s", 5), "items"),
        (lambda sessions: sessions.append("s", "ab"), "items"),
        (lambda sessions: sessions.append("s", {"role": "user"}), "items"),
        (lambda sessions: sessions.append("s", [5]), "items[0]"),
        (lambda sessions: sessions.append("s", [{}], key=5), "key"),
        (lambda sessions: anext(sessions.items("s", after="1")), "after"),
        (lambda sessions: anext(sessions.items("s", after=-1)), "after"),
        (lambda sessions: anext(sessions.items("s", limit="5")), "limit"),
        (lambda sessions: anext(sessions.items("s", limit=-1)), "limit"),
        (lambda sessions: anext(sessions.items("s", newest_first="yes")), "newest_first"),
        (lambda sessions: sessions.fork("s", 5), "session_id"),
        (lambda sessions: sessions.fork("s", up_to_item_id=5), "up_to_item_id"),
        (lambda sessions: sessions.fork("s", actor_id=5), "actor_id"),
        (lambda sessions: sessions.fork("s", labels={"a": 1}), "labels"),
        (lambda sessions: sessions.delete("s", force="no"), "force"),
        (lambda sessions: sessions.import_(5), "lines"),
        (lambda sessions: sessions.import_([HEAD, 5]), "line 2"),
        (lambda sessions: sessions.import_([HEAD], id=5), "session_id"),
    ],
)
async def test_a_value_of_a_wrong_type_is_refused_and_named_and_nothing_is_stored(
    sessions: Sessions, act: Any, field: str
) -> None:
    before = await sessions.create("s")
    with pytest.raises(InvalidRequest) as caught:
        await act(sessions)
    assert caught.value.field == field
    assert [one async for one in sessions.list()] == [before]
    assert [one async for one in sessions.items("s")] == []


async def test_another_principal_does_not_see_a_session(store: Store, sessions: Sessions) -> None:
    await sessions.create("s")
    other = SessionStore(store, principal="bob")
    with pytest.raises(NotFound):
        await other.get("s")
    assert (await other.create("s")).actor_id == "bob"
    assert [one.id async for one in other.list()] == ["s"]


async def test_items_come_back_in_order_and_whole(sessions: Sessions) -> None:
    await sessions.create("s")
    first = await sessions.append("s", said("a\x00\ud800", 10**30))
    second = await sessions.append("s", said("c"))
    assert [item.position for item in (*first, *second)] == [1, 2, 3]
    assert [item async for item in sessions.items("s")] == [*first, *second]
    assert await texts(sessions, "s") == ["a\x00\ud800", 10**30, "c"]


async def test_items_are_read_both_ways_from_any_position(sessions: Sessions) -> None:
    await sessions.create("s")
    await sessions.append("s", said(*range(250)))
    assert await texts(sessions, "s") == list(range(250))
    assert await texts(sessions, "s", after=248) == [248, 249]
    assert await texts(sessions, "s", newest_first=True, limit=120) == list(range(249, 129, -1))
    assert await texts(sessions, "s", newest_first=True, after=3) == [1, 0]
    assert await texts(sessions, "s", limit=0) == []


async def test_large_items_do_not_cut_a_reading_short(sessions: Sessions) -> None:
    await sessions.create("s")
    await sessions.append("s", said(*("x" * 400_000 for _ in range(8))))
    assert len(await texts(sessions, "s")) == 8
    assert len(await texts(sessions, "s", limit=7)) == 7


async def test_an_append_with_a_key_happens_once(sessions: Sessions) -> None:
    await sessions.create("s")
    first, *again = await asyncio.gather(*(sessions.append("s", said("a", "b"), key="k") for _ in range(5)))
    assert all(list(one) == list(first) for one in again)
    assert await texts(sessions, "s") == ["a", "b"]


@pytest.mark.parametrize("other", [said("a"), said("a", "c"), said("a", "b", "c")])
async def test_a_key_that_was_used_for_other_items_is_a_conflict(sessions: Sessions, other: Any) -> None:
    await sessions.create("s")
    await sessions.append("s", said("a", "b"), key="k")
    with pytest.raises(Conflict) as caught:
        await sessions.append("s", other, key="k")
    assert caught.value.code == "item_exists"
    assert await texts(sessions, "s") == ["a", "b"]


@pytest.mark.parametrize("bad", [[*said("a"), 7], [*said("a"), {"x": float("nan")}], [*said("a"), {"x": object()}]])
async def test_a_bad_item_leaves_nothing_of_its_append(sessions: Sessions, bad: Any) -> None:
    await sessions.create("s")
    with pytest.raises((InvalidRequest, ValueError)):
        await sessions.append("s", bad)
    assert await texts(sessions, "s") == []
    await sessions.append("s", said("after"))


async def test_appends_of_two_processes_are_put_in_one_order(store_url: str, sessions: Sessions) -> None:
    await sessions.create("s")
    other = await Store.open(store_url)
    two = SessionStore(other)
    await asyncio.gather(*(one.append("s", said(f"{n}", f"{n}")) for n in range(25) for one in (sessions, two)))
    found = await texts(sessions, "s")
    assert found[::2] == found[1::2]
    assert sorted(found) == sorted([f"{n}" for n in range(25)] * 4)
    assert [item.position async for item in sessions.items("s")] == list(range(1, 101))
    await other.close()


async def test_an_append_to_nothing_is_refused(sessions: Sessions) -> None:
    with pytest.raises(NotFound):
        await sessions.append("s", said("a"))


async def test_pop_takes_the_last_item_and_its_position_is_not_given_again(sessions: Sessions) -> None:
    await sessions.create("s")
    await sessions.append("s", said("a", "b"))
    popped = await sessions.pop("s")
    assert popped is not None
    assert (popped.content["content"], popped.position) == ("b", 2)
    assert [item.position for item in await sessions.append("s", said("c"))] == [3]
    assert await texts(sessions, "s") == ["a", "c"]


async def test_pop_of_an_empty_session_is_none(sessions: Sessions) -> None:
    await sessions.create("s")
    assert await sessions.pop("s") is None


async def test_clear_removes_every_item_and_the_session_goes_on(sessions: Sessions) -> None:
    await sessions.create("s")
    await sessions.append("s", said("a", "b"))
    assert await sessions.clear("s") == 2
    assert await sessions.clear("s") == 0
    await sessions.append("s", said("c"))
    assert await texts(sessions, "s") == ["c"]


async def test_a_fork_is_a_snapshot_up_to_an_item(sessions: Sessions) -> None:
    await sessions.create("s", actor_id="ann", agent="support")
    items = await sessions.append("s", said("a", "b", "c"))
    whole = await sessions.fork("s", "whole")
    part = await sessions.fork("s", "part", up_to_item_id=items[1].id, labels={"try": "2"})
    await sessions.append("s", said("d"))
    await sessions.append("part", said("e"))
    assert await texts(sessions, "s") == ["a", "b", "c", "d"]
    assert await texts(sessions, "whole") == ["a", "b", "c"]
    assert await texts(sessions, "part") == ["a", "b", "e"]
    assert (part.agent, part.actor_id, part.parent, part.root) == ("support", "ann", None, "part")
    assert (part.forked_from, part.labels, whole.labels) == ("s", {"try": "2"}, {})


async def test_the_same_fork_again_is_the_same_session(sessions: Sessions) -> None:
    await sessions.create("s")
    await sessions.append("s", said("a"))
    copy = await sessions.fork("s", "copy")
    assert await sessions.fork("s", "copy") == copy
    await sessions.create("other")
    with pytest.raises(Conflict):
        await sessions.fork("s", "other")
    with pytest.raises(NotFound):
        await sessions.fork("s", "copy2", up_to_item_id="nothing")


async def test_children_know_their_root_and_have_the_actor_of_their_parent(sessions: Sessions) -> None:
    await sessions.create("root", actor_id="ann")
    child = await sessions.create("child", parent="root")
    grandchild = await sessions.create("grandchild", parent="child")
    assert (child.parent, child.root, child.actor_id) == ("root", "root", "ann")
    assert (grandchild.parent, grandchild.root) == ("child", "root")
    assert [one.id async for one in sessions.list(parent="root")] == ["child"]
    with pytest.raises(Conflict) as caught:
        await sessions.create("stranger", parent="root", actor_id="bob")
    assert caught.value.code == "actor_mismatch"
    with pytest.raises(NotFound):
        await sessions.create("orphan", parent="nobody")


async def test_a_parent_is_deleted_with_its_descendants_or_not_at_all(sessions: Sessions) -> None:
    await sessions.create("root")
    await sessions.create("child", parent="root")
    await sessions.create("grandchild", parent="child")
    await sessions.append("grandchild", said("a"))
    with pytest.raises(Conflict) as caught:
        await sessions.delete("root")
    assert caught.value.code == "session_has_children"
    await sessions.delete("root", force=True)
    assert [one.id async for one in sessions.list()] == []


async def test_a_deleted_session_takes_its_runs_along_and_may_begin_anew(
    store: Store, sessions: Sessions, make_request: Make
) -> None:
    request = make_request("s")
    run = (await store.accept(request, lease=True)).invocation
    await store.write(run.number, run.epoch, events=[(1, 1, "{}")])
    await store.finish(run.number, run.epoch, run.session_number, DONE)
    await sessions.delete("s")
    assert await store.read.invocation("local", request.id) is None
    with pytest.raises(Gone, match="was deleted"):
        await store.accept(request, lease=True)
    again = (await store.accept(make_request("s"), lease=True)).invocation
    assert again.session_number != run.session_number


async def test_while_a_run_is_not_final_nothing_changes_the_items(
    store: Store, sessions: Sessions, make_request: Make
) -> None:
    await sessions.create("s", agent="a")
    await sessions.append("s", said("before"), key="k")
    run = (await store.accept(make_request("s"), lease=True)).invocation
    assert (await sessions.get("s")).active == run.id
    for change in (sessions.append("s", said("x")), sessions.pop("s"), sessions.clear("s"), sessions.delete("s")):
        with pytest.raises(SessionBusy, match="not final"):
            await change
    assert [item.content for item in await sessions.append("s", said("before"), key="k")] == said("before")
    assert (await sessions.fork("s", "copy")).active is None
    await store.finish(run.number, run.epoch, run.session_number, DONE)
    await sessions.append("s", said("after"))
    assert await texts(sessions, "s") == ["before", "after"]
    assert await texts(sessions, "copy") == ["before"]


USER = {"role": "user", "content": "a"}
ASKED = {"role": "assistant", "tool_calls": [{"id": id, "name": "look", "arguments": "{}"} for id in ("c1", "c2")]}
FIRST, SECOND = ({"role": "tool", "tool_call_id": id, "content": "5"} for id in ("c1", "c2"))
NOTE = {"note": "this is no message"}


@pytest.mark.parametrize(
    ("items", "whole"),
    [
        ([USER], 1),
        ([USER, ASKED], 1),
        ([USER, ASKED, FIRST], 1),
        ([USER, ASKED, FIRST, SECOND], 4),
        ([USER, ASKED, FIRST, SECOND, ASKED], 4),
        ([ASKED], 0),
        ([USER, NOTE, ASKED, NOTE, FIRST], 2),
        ([NOTE, NOTE], 2),
        ([USER, *[NOTE] * 30, ASKED, *[NOTE] * 50], 31),
    ],
)
async def test_a_fork_while_a_run_goes_on_ends_with_a_whole_step(
    store: Store, sessions: SessionStore, make_request: Make, items: list[Any], whole: int
) -> None:
    await sessions.create("s", agent="a")
    stored = await sessions.append("s", items)
    run = (await store.accept(make_request("s"), lease=True)).invocation
    await sessions.fork("s", "during")
    await sessions.fork("s", "given", up_to_item_id=stored[-1].id)
    await store.finish(run.number, run.epoch, run.session_number, DONE)
    await sessions.fork("s", "after")
    for copy, count in (("during", whole), ("given", len(items)), ("after", len(items))):
        assert [item.content async for item in sessions.items(copy)] == items[:count]
    await sessions.append("during", [USER])


async def test_lists_are_filtered_and_paged_newest_first(sessions: Sessions) -> None:
    for number in range(7):
        await sessions.create(f"s{number}", actor_id="ann" if number % 2 else "bob", labels={"n": str(number)})
    assert [one.id async for one in sessions.list(actor_id="ann")] == ["s5", "s3", "s1"]
    assert [one.id async for one in sessions.list(labels={"n": "4"})] == ["s4"]
    first = await sessions.page(limit=5)
    rest = await sessions.page(limit=5, cursor=first.cursor)
    assert [one.id for one in (*first.sessions, *rest.sessions)] == [f"s{number}" for number in range(6, -1, -1)]
    assert rest.cursor is None
    with pytest.raises(InvalidRequest):
        await sessions.page(limit=0)


async def test_labels_are_set_and_removed(sessions: Sessions) -> None:
    await sessions.create("s", labels={"a": "1", "b": "2"})
    assert (await sessions.update("s", labels={"a": None, "c": "3"})).labels == {"b": "2", "c": "3"}
    with pytest.raises(NotFound):
        await sessions.update("t", labels={})


async def test_the_activity_of_a_session_is_that_of_its_last_run(
    store: Store, sessions: Sessions, make_request: Make
) -> None:
    run = (await store.accept(make_request("s"), lease=True)).invocation
    finished = await store.finish(run.number, run.epoch, run.session_number, DONE)
    assert (await sessions.get("s")).last_activity == finished.finished_at


async def test_an_export_can_be_imported_under_another_name(sessions: Sessions) -> None:
    await sessions.create("s", agent="support", actor_id="ann", labels={"a": "1"})
    await sessions.append("s", said("a\u2028\n", "\ud800"))
    lines = [line async for line in sessions.export("s")]
    assert all("\n" not in line for line in lines)
    copy = await sessions.import_(lines, id="copy")
    assert (copy.agent, copy.actor_id, copy.labels) == ("support", "ann", {"a": "1"})
    assert await texts(sessions, "copy") == ["a\u2028\n", "\ud800"]
    assert await sessions.import_(lines, id="copy") == copy
    await sessions.append("copy", said("b"))
    assert await texts(sessions, "copy") == ["a\u2028\n", "\ud800", "b"]


async def test_an_export_can_be_imported_as_it_comes_or_as_one_text(sessions: Sessions) -> None:
    await sessions.create("s")
    await sessions.append("s", said("a\u2028\n", "\ud800"))
    await sessions.import_(sessions.export("s"), id="streamed")
    await sessions.import_("\n".join([line async for line in sessions.export("s")]), id="text")
    assert await texts(sessions, "streamed") == await texts(sessions, "text") == ["a\u2028\n", "\ud800"]


@pytest.mark.parametrize(
    ("lines", "named"),
    [
        ([], "line 1"),
        (["{}"], "line 1"),
        ([HEAD, "{"], "line 2"),
        ([HEAD, "[]"], "line 2"),
        ([HEAD, '{"type": "item", "id": "x", "content": 1}'], "line 2"),
        ([HEAD, '{"type": "item", "content": {}}'], "line 2"),
        ([HEAD, *(['{"type": "item", "id": "x", "content": {}}'] * 2)], "same id"),
        ([HEAD.replace('"a"', "7")], "`agent`"),
    ],
)
async def test_a_bad_import_names_its_line_and_stores_nothing(sessions: Sessions, lines: list[str], named: str) -> None:
    with pytest.raises(InvalidRequest, match=named):
        await sessions.import_(lines)
    assert [one async for one in sessions.list()] == []


CHANGES: dict[str, tuple[Callable[[Sessions], Awaitable[Any]], list[Any]]] = {
    "create": (lambda sessions: sessions.create("other"), ["a", "b"]),
    "label": (lambda sessions: sessions.update("s", labels={"x": "y"}), ["a", "b"]),
    "append": (lambda sessions: sessions.append("s", said("c")), ["a", "b", "c"]),
    "pop": (lambda sessions: sessions.pop("s"), ["a"]),
    "clear": (lambda sessions: sessions.clear("s"), []),
    "fork": (lambda sessions: sessions.fork("s"), ["a", "b"]),
}


@pytest.mark.parametrize("moment", ["before_commit", "after_commit"])
@pytest.mark.parametrize("change", CHANGES)
async def test_a_change_whose_commit_has_an_unknown_outcome_happens_once(
    sessions: Sessions, lost_once: Lose, change: str, moment: str
) -> None:
    await sessions.create("s")
    await sessions.append("s", said("a", "b"))
    apply, left = CHANGES[change]
    with lost_once(f"session.{change}.{moment}"):
        answer = await apply(sessions)
    assert await texts(sessions, "s") == left
    if change == "pop":
        assert answer.content["content"] == "b"
    if change == "clear":
        assert answer == 2


@pytest.mark.postgres
@pytest.mark.parametrize(
    "change", ["clear", *(pytest.param(one, marks=pytest.mark.slow) for one in CHANGES if one != "clear")]
)
async def test_a_change_that_is_cut_at_any_message_happens_once(postgres_server: PostgresServer, change: str) -> None:
    direct, (apply, left) = postgres_server.create_database(), CHANGES[change]
    with FaultProxy(postgres_server.host, postgres_server.port) as proxy:
        store = await Store.open(proxy.url(direct))
        for direction, when in itertools.product(("to_server", "to_client"), ("before", "after")):
            for nth in itertools.count(1):
                sessions = SessionStore(store, principal=f"{direction}-{when}-{nth}")
                await sessions.create("s")
                await sessions.append("s", said("a", "b"))
                armed = proxy.cut(Cut(direction, nth, when), open_connections=True)  # type: ignore[arg-type]
                answer = await asyncio.wait_for(apply(sessions), 20)
                cut = armed.fired
                proxy.cut(Cut(containing=b"no more of them"), open_connections=True)
                assert await texts(sessions, "s") == left, (direction, when, nth)
                assert change != "clear" or answer == 2, (direction, when, nth)
                assert change != "pop" or answer.content["content"] == "b", (direction, when, nth)
                if not cut:
                    break
        await store.close()


@pytest.mark.parametrize("moment", ["before_commit", "after_commit"])
async def test_a_deletion_whose_commit_has_an_unknown_outcome_succeeds(
    sessions: Sessions, lost_once: Lose, moment: str
) -> None:
    await sessions.create("s")
    with lost_once(f"session.delete.{moment}"):
        await sessions.delete("s")
    assert [one async for one in sessions.list()] == []
