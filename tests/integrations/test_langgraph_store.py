"""DurableStore. It does what LangGraph's own stores do; what is said here is said of them too, in the same tests:

- put and get: the value as it was, an unknown key is None, a second put replaces and keeps the time of creation (of the
  official stores only some do), namespaces are apart, keys of any characters, delete of what is not there
- names: an empty namespace, an empty label, a period in one and the root "langgraph" are refused on put
- search: in and below a prefix, whole labels only; filters by equality, nested, by operators, all of several; limit and
  offset; `index=False` is kept and not found by words; a query ranks, and what does not match fills up to the limit
- list_namespaces: by prefix, suffix, both, with wildcards; max_depth joins; limit and offset; in order; without empty ones
- batch: mixed operations answer in order; reads see what was before the batch; the last write of an item counts
- time to live: gone when it is over, from gets, searches and lists; a read prolongs it unless told otherwise
- everything with and without `await`
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any

import pytest

pytest.importorskip("langchain")

from langchain.agents import create_agent
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.config import get_store
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import InjectedStore
from langgraph.runtime import Runtime
from langgraph.store.base import BaseStore, GetOp, InvalidNamespaceError, ListNamespacesOp, PutOp, SearchOp
from langgraph.store.memory import InMemoryStore
from langgraph.store.sqlite.aio import AsyncSqliteStore
from sqlalchemy import text

from outlast.adapters import LocalStore, open_store
from outlast.core.errors import InvalidRequest, LeaseLost, NotJSON, RunFailed
from outlast.core.portal import portal
from outlast.testing.scripted import Say, Script, ScriptedCall
from outlast_langgraph import DurableStore, LangGraphAgent
from outlast_langgraph.testing import ScriptedChatModel

pytestmark = pytest.mark.anyio


@pytest.fixture
async def store(store_url: str) -> AsyncIterator[LocalStore]:
    async with open_store(store_url) as store:
        yield store


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres), "InMemory", "AsyncSqlite"])
async def kept(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[BaseStore]:
    """Ours on both databases, and two of LangGraph's own."""
    if request.param == "InMemory":
        yield InMemoryStore()
        return
    if request.param == "AsyncSqlite":
        async with AsyncSqliteStore.from_conn_string(str(tmp_path / "official.db")) as official:
            await official.setup()
            yield official
        return
    url = f"sqlite:///{tmp_path / 'state.db'}"
    if request.param == "postgresql":
        url = request.getfixturevalue("postgres_server").create_database()
    async with open_store(url) as store:
        yield DurableStore(store)


async def keys(kept: BaseStore, *prefix: str, **options: Any) -> set[str]:
    return {item.key for item in await kept.asearch(prefix, **options)}


async def test_what_is_put_is_got(kept: BaseStore) -> None:
    value = {"text": "likes tea", "nested": {"list": [1, 2.5, None, True]}, "漢字": "ünï"}
    await kept.aput(("users", "ada"), "drink", value)
    item = await kept.aget(("users", "ada"), "drink")
    assert item is not None
    assert (item.value, item.key, item.namespace) == (value, "drink", ("users", "ada"))
    assert item.created_at <= item.updated_at
    assert await kept.aget(("users", "ada"), "food") is None
    assert await kept.aget(("users",), "drink") is None


async def test_a_second_put_replaces(kept: BaseStore) -> None:
    await kept.aput(("n",), "k", {"a": 1, "b": 2})
    first = await kept.aget(("n",), "k")
    await kept.aput(("n",), "k", {"a": 3})
    second = await kept.aget(("n",), "k")
    assert first is not None
    assert second is not None
    assert second.value == {"a": 3}
    assert second.updated_at >= first.updated_at
    if isinstance(kept, DurableStore):
        assert second.created_at == first.created_at


async def test_a_deleted_item_is_gone_and_deleting_again_does_nothing(kept: BaseStore) -> None:
    await kept.aput(("n",), "k", {"text": "word"})
    for _ in range(2):
        await kept.adelete(("n",), "k")
    assert await kept.aget(("n",), "k") is None
    assert await keys(kept, "n", query="word") == set()
    if not isinstance(kept, InMemoryStore):
        assert await kept.alist_namespaces() == []


@pytest.mark.parametrize("key", ["", "a.b", "with space", "漢字", "%_*", '"quoted"', "k" * 500])
async def test_keys_of_any_characters(kept: BaseStore, key: str) -> None:
    await kept.aput(("n",), key, {"v": key})
    assert await keys(kept, "n") == {key}
    item = await kept.aget(("n",), key)
    assert item is not None
    assert item.value == {"v": key}


@pytest.mark.parametrize("namespace", [(), ("",), ("a.b",), ("langgraph", "x")])
async def test_names_that_are_refused(kept: BaseStore, namespace: tuple[str, ...]) -> None:
    with pytest.raises(InvalidNamespaceError):
        await kept.aput(namespace, "k", {"v": 1})


async def test_a_search_is_in_and_below_whole_labels(kept: BaseStore) -> None:
    for namespace in (("a",), ("a", "b"), ("a", "b", "c"), ("ab",), ("b",), ("a", "-"), ("a]", "b")):
        await kept.aput(namespace, "/".join(namespace), {"v": 1})
    assert await keys(kept, "a") == {"a", "a/b", "a/b/c", "a/-"}
    assert await keys(kept, "a", "b") == {"a/b", "a/b/c"}
    assert len(await keys(kept)) == 7
    assert await keys(kept, "c") == set()


@pytest.mark.parametrize(
    ("filter", "found"),
    [
        ({"kind": "fruit"}, {"apple", "pear"}),
        ({"kind": "fruit", "price": 3}, {"pear"}),
        ({"price": {"$gt": 2}}, {"pear", "leek"}),
        ({"price": {"$gte": 2, "$lt": 5}}, {"apple", "pear"}),
        ({"price": {"$lte": 2}}, {"apple"}),
        ({"kind": {"$ne": "fruit"}}, {"leek"}),
        ({"kind": {"$eq": "fruit"}}, {"apple", "pear"}),
        ({"fresh": True}, {"apple"}),
        ({"kind": "stone"}, set()),
    ],
)
async def test_filters(kept: BaseStore, filter: dict[str, Any], found: set[str]) -> None:
    await kept.aput(("n",), "apple", {"kind": "fruit", "price": 2, "fresh": True})
    await kept.aput(("n",), "pear", {"kind": "fruit", "price": 3, "fresh": False})
    await kept.aput(("n",), "leek", {"kind": "green", "price": 5, "fresh": False})
    assert await keys(kept, "n", filter=filter) == found


async def test_limit_and_offset_give_every_item_once(kept: BaseStore) -> None:
    for number in range(25):
        await kept.aput(("n", str(number % 3)), str(number), {"even": number % 2 == 0})
    pages = [await kept.asearch(("n",), limit=10, offset=offset) for offset in (0, 10, 20, 30)]
    assert [len(page) for page in pages] == [10, 10, 5, 0]
    assert {item.key for page in pages for item in page} == {str(number) for number in range(25)}
    assert len(await kept.asearch(("n",))) == 10
    assert len(await kept.asearch(("n",), filter={"even": True}, limit=5, offset=10)) == 3


async def test_namespaces_are_listed(kept: BaseStore) -> None:
    for namespace in (("a", "b", "c"), ("a", "b", "d", "e"), ("a", "b", "d", "i"), ("a", "b", "f"), ("a", "c", "f")):
        await kept.aput(namespace, "k", {"v": 1})
        await kept.aput(namespace, "l", {"v": 1})
    every = [("a", "b", "c"), ("a", "b", "d", "e"), ("a", "b", "d", "i"), ("a", "b", "f"), ("a", "c", "f")]
    assert await kept.alist_namespaces() == every
    assert await kept.alist_namespaces(prefix=("a", "b")) == every[:4]
    assert await kept.alist_namespaces(suffix=("f",)) == every[3:]
    assert await kept.alist_namespaces(prefix=("a", "b"), suffix=("f",)) == [("a", "b", "f")]
    assert await kept.alist_namespaces(prefix=("a", "*", "f")) == every[3:]
    assert await kept.alist_namespaces(prefix=("a", "b"), max_depth=3) == [
        ("a", "b", "c"), ("a", "b", "d"), ("a", "b", "f"),
    ]  # fmt: skip
    assert await kept.alist_namespaces(limit=2, offset=1) == every[1:3]
    assert await kept.alist_namespaces(prefix=("x",)) == []


async def test_a_batch_answers_in_order_and_reads_what_was_before_it(kept: BaseStore) -> None:
    await kept.aput(("n",), "old", {"v": 0})
    answers = await kept.abatch(
        [
            PutOp(("n",), "new", {"v": 1}),
            GetOp(("n",), "new"),
            GetOp(("n",), "old"),
            PutOp(("n",), "new", {"v": 2}),
            SearchOp(("n",)),
            ListNamespacesOp(),
            PutOp(("n",), "old", None),
        ]
    )
    assert answers[:2] == [None, None]
    assert answers[2].value == {"v": 0}  # type: ignore[union-attr]
    assert [item.key for item in answers[4]] == ["old"]  # type: ignore[union-attr]
    assert answers[5] == [("n",)]
    item = await kept.aget(("n",), "new")
    assert item is not None
    assert item.value == {"v": 2}
    assert await kept.aget(("n",), "old") is None


def test_everything_without_await(store_url: str) -> None:
    source = open_store(store_url)
    ours = DurableStore(source)
    ours.put(("n",), "k", {"text": "tea"})
    item = ours.get(("n",), "k")
    assert item is not None
    assert item.value == {"text": "tea"}
    assert [found.key for found in ours.search(("n",), query="tea")] == ["k"]
    assert ours.list_namespaces() == [("n",)]
    ours.delete(("n",), "k")
    assert ours.batch([GetOp(("n",), "k")]) == [None]
    portal().call(source.close())


async def test_words_rank_and_what_has_none_of_them_fills_up(store: LocalStore) -> None:
    ours = DurableStore(store)
    await ours.aput(("n",), "tea", {"text": "She drinks green tea."})
    await ours.aput(("n",), "cats", {"text": "She has two cats."})
    await ours.aput(("n",), "hidden", {"text": "Her tea is a secret."}, index=False)
    await ours.aput(("n",), "title", {"text": "nothing", "title": "green"}, index=["title"])
    await ours.aput(("other",), "tea", {"text": "green tea"})
    found = await ours.asearch(("n",), query="Which green teas?")
    assert [item.key for item in found][:2] == ["tea", "title"]
    assert [item.score is not None for item in found] == [True, True, False, False]
    assert [item.key for item in await ours.asearch(("n",), query="teas", limit=1)] == ["tea"]
    assert (await ours.asearch(("n",), query="nothing"))[0].score is None


async def test_fields_say_what_is_searched(store: LocalStore) -> None:
    ours = DurableStore(store, fields=["content.text", "tags[*]"])
    await ours.aput(("n",), "k", {"content": {"text": "tea"}, "tags": ["drink", "hot"], "note": "secret"})
    scores = {word: (await ours.asearch(("n",), query=word))[0].score for word in ("tea", "hot", "secret")}
    assert [scores[word] is not None for word in ("tea", "hot", "secret")] == [True, True, False]


async def _let_time_pass(store: LocalStore, minutes: float) -> None:
    opened = await store.store()
    prefix = f'"{opened.url.schema}".' if opened.url.schema else ""
    with opened._engine.connect() as connection:
        connection.execute(text(f"UPDATE {prefix}documents SET expires_at = expires_at - {round(minutes * 60_000)}"))


async def test_an_item_lives_as_long_as_it_was_given(store: LocalStore) -> None:
    ours = DurableStore(store)
    await ours.aput(("n",), "short", {"text": "tea"}, ttl=10)
    await ours.aput(("n",), "long", {"text": "tea"})
    await _let_time_pass(store, 9)
    assert await ours.aget(("n",), "short", refresh_ttl=False) is not None
    assert await keys(ours, "n", refresh_ttl=False) == {"short", "long"}
    await _let_time_pass(store, 2)
    assert await ours.aget(("n",), "short") is None
    assert await keys(ours, "n", query="tea") == {"long"}
    await ours.adelete(("n",), "long")
    assert await ours.alist_namespaces() == []
    assert await (await store.store()).documents.remove_expired(limit=10) == 1
    await ours.aput(("n",), "short", {"text": "again"})
    assert await ours.aget(("n",), "short") is not None


@pytest.mark.parametrize("read", ["get", "search"])
async def test_reading_prolongs_a_life(store: LocalStore, read: str) -> None:
    ours = DurableStore(store, ttl={"default_ttl": 10})
    await ours.aput(("n",), "k", {"v": 1})
    for _ in range(3):
        await _let_time_pass(store, 8)
        found = await ours.aget(("n",), "k") if read == "get" else (await ours.asearch(("n",)))[0]
        assert found is not None


async def test_what_cannot_be_kept_is_refused(store: LocalStore) -> None:
    ours = DurableStore(store)
    with pytest.raises(NotJSON):
        await ours.aput(("n",), "k", {"v": object()})
    with pytest.raises(InvalidRequest, match="limit is"):
        await ours.aput(("n",), "k", {"v": "x" * 1_100_000})
    with pytest.raises(InvalidRequest, match="2500 bytes"):
        await ours.aput(("n" * 3000,), "k", {"v": 1})
    await ours.aput(("n",), "\0\ud800", {"v": "\0\ud800"})
    assert await keys(ours, "n") == {"\0\ud800"}


async def test_principals_do_not_meet(store: LocalStore) -> None:
    await DurableStore(store, principal="ada").aput(("n",), "k", {"text": "tea"})
    other = DurableStore(store, principal="bob")
    assert await other.aget(("n",), "k") is None
    assert await keys(other, query="tea") == set()
    assert await other.alist_namespaces() == []


# In runs ----------------------------------------------------------------------------------------------------------------


def _graph(node: Any, **options: Any) -> Any:
    builder = StateGraph(MessagesState)
    builder.add_node("node", node)
    builder.add_edge(START, "node")
    return builder.compile(**options)


async def _by_signature(state: MessagesState, *, store: BaseStore) -> dict[str, Any]:
    await store.aput(("n",), "k", {"by": "signature"})
    return {"messages": [AIMessage("done")]}


async def _by_runtime(state: MessagesState, runtime: Runtime[None]) -> dict[str, Any]:
    assert runtime.store is not None
    await runtime.store.aput(("n",), "k", {"by": "runtime"})
    return {"messages": [AIMessage("done")]}


def _in_a_thread(state: MessagesState) -> dict[str, Any]:
    store = get_store()
    store.put(("n",), "k", {"by": "thread"})
    assert store.get(("n",), "k") is not None
    return {"messages": [AIMessage("done")]}


@pytest.mark.parametrize(
    ("node", "by"), [(_by_signature, "signature"), (_by_runtime, "runtime"), (_in_a_thread, "thread")]
)
async def test_graphs_compiled_without_a_store_are_given_one(store: LocalStore, node: Any, by: str) -> None:
    agent = LangGraphAgent(_graph(node))
    await agent.session("one", store=store).run("go")
    item = await DurableStore(store).aget(("n",), "k")
    assert item is not None
    assert item.value == {"by": by}


async def test_tools_and_subgraphs_use_the_same_store(store: LocalStore) -> None:
    @tool
    async def note(text: str, store: Annotated[Any, InjectedStore()]) -> str:
        """Note something."""
        await store.aput(("notes",), "n", {"text": text})
        return "noted"

    script = Script(Say(calls=[ScriptedCall("note", {"text": "tea"})]), "done")
    inner = create_agent(ScriptedChatModel(script=script), [note])
    await LangGraphAgent(_graph(inner)).session("s", store=store).run("go")
    item = await DurableStore(store).aget(("notes",), "n")
    assert item is not None
    assert item.value == {"text": "tea"}


async def test_a_store_of_the_graph_itself_stays(store: LocalStore) -> None:
    own = InMemoryStore()
    await LangGraphAgent(_graph(_by_signature, store=own)).session("s", store=store).run("go")
    assert own.get(("n",), "k") is not None
    assert await DurableStore(store).aget(("n",), "k") is None


async def test_blocking_use_in_async_code_is_named(store: LocalStore) -> None:
    async def blocking(state: MessagesState, *, store: BaseStore) -> dict[str, Any]:
        store.put(("n",), "k", {"v": 1})
        return {}

    with pytest.raises((RunFailed, asyncio.InvalidStateError), match="without `await`"):
        await LangGraphAgent(_graph(blocking)).session("s", store=store).run("go")


async def test_a_run_that_lost_its_lease_writes_nothing(store: LocalStore) -> None:
    tried: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()

    async def lose(state: MessagesState) -> dict[str, Any]:
        opened = await store.store()
        prefix = f'"{opened.url.schema}".' if opened.url.schema else ""
        with opened._engine.connect() as connection:
            connection.execute(text(f"UPDATE {prefix}invocations SET epoch = epoch + 1 WHERE status = 'running'"))
        with pytest.raises(LeaseLost) as caught:
            await get_store().aput(("n",), "k", {"v": 1})
        tried.set_result(caught.value)
        return {}

    run = asyncio.create_task(LangGraphAgent(_graph(lose)).session("s", store=store).run("go"))
    await tried
    run.cancel()
    assert await DurableStore(store).aget(("n",), "k") is None
