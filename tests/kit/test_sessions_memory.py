import asyncio
import contextlib
import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
from sqlalchemy import NullPool, create_engine

from outlast import Agent, AgentClient, open_store
from outlast.adapters import MEMORY_TOOLS
from outlast.client import RemoteMemoryStore
from outlast.core.errors import Conflict, InvalidRequest, NotFound, StoreError
from outlast.sessions import MemoryStore, SessionStore
from outlast.sessions.memory import MAX_CONTENT
from outlast.store import Store
from outlast.testing.scripted import Say, Script, ScriptedCall, ScriptedModel

pytestmark = pytest.mark.anyio

Lose = Callable[[str], AbstractContextManager[None]]


Memories = MemoryStore | RemoteMemoryStore


@pytest.fixture
def memory(store: Store, served: AgentClient | None) -> Memories:
    return MemoryStore(store) if served is None else served.memory


async def found(memory: Memories, text: str, **options: Any) -> list[str]:
    return [one.memory.path for one in await memory.search(text, **options)]


async def test_a_memory_is_readable_as_it_was_stored(memory: Memories) -> None:
    added = await memory.add("notes/a b.md", "likes tea\x00\ud800", actor_id="ann")
    assert await memory.get("notes/a b.md", actor_id="ann") == added
    assert (added.content, added.actor_id, added.session_id) == ("likes tea\x00\ud800", "ann", None)
    with pytest.raises(NotFound):
        await memory.get("notes/a b.md")


async def test_add_refuses_a_path_that_exists_and_update_one_that_does_not(memory: Memories) -> None:
    await memory.add("a", "one")
    with pytest.raises(Conflict) as caught:
        await memory.add("a", "two")
    assert caught.value.code == "memory_exists"
    with pytest.raises(NotFound):
        await memory.update("b", "two")
    assert (await memory.update("a", "three")).content == "three"
    assert (await memory.put("b", "four")).content == "four"


async def test_appends_of_many_are_all_there(memory: Memories, store_url: str) -> None:
    other = await Store.open(store_url)
    two = MemoryStore(other)
    await asyncio.gather(*(one.put("log", "x", append=True) for one in (memory, two) for _ in range(20)))
    assert (await memory.get("log")).content == "x" * 40
    await other.close()


async def test_an_append_with_a_key_happens_once(memory: Memories) -> None:
    for _ in range(3):
        await memory.put("log", "x", append=True, key="k")
    assert (await memory.get("log")).content == "x"


async def test_a_key_is_refused_for_another_change(memory: MemoryStore) -> None:
    await memory.put("log", "x\ud800", key="k")
    for change in ({"content": "y"}, {"content": "x\ud800", "append": True}):
        with pytest.raises(Conflict) as caught:
            await memory.put("log", key="k", **change)
        assert caught.value.code == "idempotency_conflict"
    await memory.put("log", "y", append=True)
    assert (await memory.put("log", "x\ud800", key="k")).content == "x\ud800y"
    assert (await memory.put("other", "y", key="k")).content == "y"


async def test_a_change_with_a_key_is_made_once_whatever_came_between(memory: Memories) -> None:
    added = await memory.add("a", "one", key="first")
    assert await memory.add("a", "one", key="first") == added
    await memory.update("a", "two", key="second")
    three = await memory.put("a", "three")
    assert await memory.update("a", "two", key="second") == three


@pytest.mark.parametrize("moment", ["before_commit", "after_commit"])
async def test_a_change_whose_commit_has_an_unknown_outcome_happens_once(
    memory: Memories, lost_once: Lose, moment: str
) -> None:
    with lost_once(f"memory.{moment}"):
        await memory.add("log", "x")
    with lost_once(f"memory.{moment}"):
        await memory.put("log", "y", append=True)
    assert (await memory.get("log")).content == "xy"
    with lost_once(f"memory.{moment}"):
        await memory.delete("log")
    assert await memory.list() == []


async def test_a_put_that_meets_a_removal_stores(memory: Memories, store_url: str) -> None:
    other = await Store.open(store_url)

    async def remove() -> None:
        with contextlib.suppress(NotFound):
            await MemoryStore(other).delete("log")

    stored = await asyncio.gather(*(act() for _ in range(200) for act in (lambda: memory.put("log", "x"), remove)))
    await other.close()
    assert [one.content for one in stored if one is not None] == ["x"] * 200


async def test_actors_sessions_and_principals_do_not_see_each_other(store: Store, memory: Memories) -> None:
    await memory.put("a", "tea")
    await memory.put("a", "coffee", session_id="s")
    await memory.put("a", "milk", actor_id="ann")
    await MemoryStore(store, principal="bob").put("a", "water")
    assert [one.content for one in await memory.list()] == ["tea", "coffee"]
    assert [one.content for one in await memory.list(session_id="s")] == ["coffee"]
    assert [one.content for one in await memory.list(actor_id="ann")] == ["milk"]
    assert await found(memory, "milk water") == []


@pytest.mark.parametrize("moment", ["before_commit", "after_commit"])
async def test_what_is_kept_for_a_session_goes_with_it(
    store: Store, memory: MemoryStore, lost_once: Lose, moment: str
) -> None:
    sessions, bob = SessionStore(store), MemoryStore(store, principal="bob")
    await sessions.create("s")
    await sessions.create("child", parent="s")
    for session_id in ("s", "child", None, "no session"):
        await memory.put("a", "tea", session_id=session_id)
    await memory.put("a", "tea", session_id="s", actor_id="ann")
    await bob.put("a", "tea", session_id="s")
    with lost_once(f"session.delete.{moment}"):
        await sessions.delete("s", force=True)
    await sessions.create("s")
    assert [one.session_id for one in await memory.list()] == [None, "no session"]
    assert [one.memory.session_id for one in await memory.search("tea")] == ["no session", None]
    assert (await found(memory, "tea", session_id="s"), await found(memory, "tea", actor_id="ann")) == ([], [])
    assert [one.session_id for one in await bob.list()] == ["s"]


async def test_memories_are_listed_by_the_beginning_of_their_path(memory: Memories) -> None:
    for path in ("notes/b", "notes/a", "note%", "n_tes", "other"):
        await memory.put(path, "x")
    assert [one.path for one in await memory.list(path_prefix="notes/")] == ["notes/a", "notes/b"]
    assert [one.path for one in await memory.list(path_prefix="note%")] == ["note%"]
    assert [one.path for one in await memory.list(path_prefix="n_")] == ["n_tes"]
    assert len(await memory.list(limit=2)) == 2
    await memory.put("other", "y", session_id="s")
    assert [one.content for one in await memory.list("other")] == ["x", "y"]
    assert await memory.list("other", "notes/") == []


async def test_a_long_list_is_read_in_parts_in_the_order_of_code_points(memory: MemoryStore) -> None:
    names = [
        ("A", None),
        ("B", "s"),
        ("a b", None),
        ("a b", "S"),
        ("a b", "s"),
        ("a-c", None),
        ("\u00e4", None),
        ("\uff41", None),
        ("\U00010000", None),
    ]
    for path, session_id in reversed(names):
        await memory.put(path, "x", session_id=session_id)
    read: list[tuple[str, str | None]] = []
    while part := await memory.list(after=read[-1] if read else None, limit=2):
        read += [(one.path, one.session_id) for one in part]
    assert read == names
    assert [one.path for one in await memory.list(path_prefix="a", after=("a b", "S"))] == ["a b", "a-c"]
    assert [one.path for one in await memory.list(session_id="s", after=("B", None))] == ["B", "a b"]


async def test_words_are_found_in_any_form_and_the_best_comes_first(memory: Memories) -> None:
    await memory.put("one", "She runs every morning, and running makes her happy.")
    await memory.put("two", "He walks to work.")
    await memory.put("three", "Morning coffee, no sport.")
    assert await found(memory, "run") == ["one"]
    assert await found(memory, "WALKING") == ["two"]
    assert (await found(memory, "running in the morning"))[0] == "one"
    assert set(await found(memory, "morning")) == {"one", "three"}
    assert await found(memory, "morning", limit=1) == (await found(memory, "morning"))[:1]


async def scores(memory: MemoryStore, text: str, **options: Any) -> dict[str, float]:
    return {one.memory.path: one.score for one in await memory.search(text, **options)}


async def test_a_word_counts_the_less_the_more_of_the_actors_memories_have_it(memory: MemoryStore) -> None:
    await memory.put("a", "tea in the morning")
    await memory.put("b", "tea, tea, tea")
    await memory.put("c", "tea with sugar")
    await memory.put("d", "sugar", session_id="s")
    assert await scores(memory, "sugar tea at the lake") == {
        "a": 1.333333333,
        "c": 0.833333333,
        "d": 0.5,
        "b": 0.333333333,
    }
    assert list(await scores(memory, "sugar tea at the lake")) == ["a", "c", "d", "b"]
    assert await scores(memory, "sugar tea", session_id="s") == {"d": 1}


async def test_a_score_tells_nothing_of_the_memories_of_others(store: Store, memory: MemoryStore) -> None:
    await memory.put("a", "tea and sugar")
    await memory.put("b", "coffee")
    before = await memory.search("tea coffee secret")
    for other in (memory, MemoryStore(store, principal="bob")):
        for number in range(5):
            await other.put(f"{number}", "secret tea, coffee", actor_id="bob")
    assert await memory.search("tea coffee secret") == before


async def test_forms_of_one_word_count_once_and_equals_come_newest_first(memory: MemoryStore) -> None:
    await memory.put("one", "she runs")
    two = await memory.put("two", "tea")
    while (await memory.put("one", ", again", append=True)).updated_at == two.updated_at:
        """Both in one millisecond: then neither is the newer one."""
    for query in ("run tea", "run tea running RUNS", "tea runs running"):
        assert await scores(memory, query) == {"one": 1, "two": 1}
        assert await found(memory, query) == ["one", "two"]


async def test_a_longer_run_of_japanese_finds_what_has_a_part_of_it_the_best_first(memory: MemoryStore) -> None:
    await memory.put("tower", "\u6771\u4eac\u30bf\u30ef\u30fc")
    await memory.put("metro", "\u6771\u4eac\u30e1\u30c8\u30ed")
    await memory.put("kyoto", "\u4eac\u90fd\u306e\u5bff\u53f8")
    assert await found(memory, "\u6771\u4eac\u30bf\u30ef\u30fc\u3078") == ["tower", "metro"]
    assert await found(memory, "\u4eac\u6771") == []


@pytest.mark.parametrize("letters", ["abcdefghijklmnop", "".join(map(chr, range(0x4E00, 0x4E10)))])
async def test_the_longest_query_of_different_words_finds(memory: MemoryStore, letters: str) -> None:
    words = ["".join(word) for word in itertools.product(letters, repeat=4)]
    query = " ".join(words)[:MAX_CONTENT]
    await memory.put("a", words[7_000])
    await memory.put("b", "zebra")
    assert await found(memory, query) == ["a"]


@pytest.mark.parametrize(
    ("query", "paths"),
    [
        ("\u6771\u4eac", {"tokyo"}),
        ("\u4eac\u90fd", {"kyoto"}),
        ("\u6771", {"tokyo"}),
        ("\u6771\u4eac \u4eac\u90fd", {"tokyo", "kyoto"}),
        ("\u6771\u90fd", set()),
        ("\u5bff\u53f8 sushi", {"kyoto", "food"}),
        ("\u3059\u3057", {"food"}),
    ],
)
async def test_chinese_and_japanese_are_found_by_two_characters(memory: Memories, query: str, paths: set[str]) -> None:
    await memory.put("tokyo", "\u6771\u4eac\u306b\u4f4f\u3093\u3067\u3044\u307e\u3059")
    await memory.put("kyoto", "\u4eac\u90fd\u306e\u5bff\u53f8")
    await memory.put("food", "likes sushi (\u3059\u3057)")
    assert set(await found(memory, query)) == paths


@pytest.mark.parametrize(
    ("query", "paths"),
    [
        ("cafe", {"cafe"}),
        ("CAF\u00c9", {"cafe"}),
        ("cafe\u0301", {"cafe"}),
        ("strasse", {"cafe"}),
        ("\u0130stanbul", {"istanbul"}),
        ("\u03bb\u03cc\u03b3\u03bf\u03c3", {"greek"}),
        ("\u30c9\u30ec", {"dress"}),
        ("\u30c8\u30ec", set()),
        ("\u30fb", set()),
        ("\u30fb\u30c9\u30ec", {"dress"}),
        ("\U00020bb7\u91ce", {"yoshino"}),
        ("\uff83\uff9e\uff9d", {"den"}),
    ],
)
async def test_accents_and_widths_make_no_difference_and_marks_that_change_a_kana_do(
    memory: Memories, query: str, paths: set[str]
) -> None:
    await memory.put("cafe", "a caf\u00e9 in some Stra\u00dfe")
    await memory.put("istanbul", "Istanbul")
    await memory.put("greek", "\u03bb\u03cc\u03b3\u03bf\u03c2")
    await memory.put("dress", "\u30a2\u30f3\u30fb\u30c9\u30ec\u30b9")
    await memory.put("yoshino", "\U00020bb7\u91ce\u5bb6")
    await memory.put("field", "\u91ce\u7403")
    await memory.put("den", "\u30c7\u30f3")
    assert set(await found(memory, query)) == paths


@pytest.mark.parametrize("length", [2047, 2048, 3000, 60_000])
async def test_a_very_long_word_hides_no_other_and_is_found(memory: Memories, length: int) -> None:
    await memory.put("a", f"apple {'m' * length} zebra")
    for query in ("apple", "m" * length, "zebra", f"{'q' * length} apple"):
        assert await found(memory, query) == ["a"]
    assert await found(memory, "q" * length) == []


# BR-66
@pytest.mark.parametrize(
    "query",
    ["it's", "gateway/run.py", "user@host", "e=mc2", "#tag", "50%", "C++", "tag AND", "NEAR(tag)", '"unclosed tag', "-tag",
     "tag*", "^tag", "words:tag", "tag:*", "'; DROP TABLE tag", "tag " * 2500, "TAG\x00\ud800"],
)  # fmt: skip
async def test_no_character_of_a_query_is_an_operator(memory: Memories, query: str) -> None:
    await memory.put("it", "it's in gateway/run.py, ask user@host: e=mc2 #tag 50% (C++)")
    await memory.put("other", "nothing here")
    assert await found(memory, query) == ["it"]


# BR-66
@pytest.mark.parametrize("query", ["a AND", "NEAR(", "/", "*", "col:x", "", " ", '"', "\\", "&|!", "\x00"])
async def test_what_is_in_no_memory_finds_none(memory: Memories, query: str) -> None:
    await memory.put("it", "it's in gateway/run.py")
    assert await found(memory, query) == []


# BR-66
async def test_a_search_that_fails_is_an_error_and_not_nothing(store: Store, store_url: str) -> None:
    memory = MemoryStore(store)
    await memory.put("it", "tag")
    with create_engine(store_url, poolclass=NullPool).begin() as connection:
        connection.exec_driver_sql(f"DROP TABLE {'' if store_url.startswith('sqlite') else 'outlast.'}memory_words")
    with pytest.raises(StoreError):
        await memory.search("tag")


async def test_what_was_changed_or_removed_is_found_no_more(memory: Memories) -> None:
    await memory.put("a", "tea")
    await memory.put("a", "coffee")
    assert (await found(memory, "tea"), await found(memory, "coffee")) == ([], ["a"])
    await memory.delete("a")
    assert await found(memory, "coffee") == []
    with pytest.raises(NotFound):
        await memory.delete("a")


async def test_the_longest_memory_is_stored_and_found_whatever_its_script(memory: Memories) -> None:
    await memory.put("words", " ".join(f"w{number}" for number in range(MAX_CONTENT // 8))[:MAX_CONTENT])
    characters = [chr(0x4E00 + (number * 7919) % 20_000) for number in range(MAX_CONTENT)]
    await memory.put("cjk", "".join(characters))
    assert await found(memory, "w17") == ["words"]
    assert await found(memory, "".join(characters[500:502])) == ["cjk"]
    with pytest.raises(InvalidRequest) as caught:
        await memory.put("cjk", "x", append=True)
    assert caught.value.code == "memory_too_large"


async def test_the_longest_names_are_stored(memory: Memories) -> None:
    path, actor = ("".join(chr(0x4E00 + (start + number * 7919) % 20_000) for number in range(415)) for start in (0, 9))
    await memory.put(path, "x", actor_id=actor)
    assert (await memory.get(path, actor_id=actor)).content == "x"


@pytest.mark.parametrize(
    ("act", "field"),
    [
        (lambda memory: memory.put("", "x"), "path"),
        (lambda memory: memory.put("a\x00", "x"), "path"),
        (lambda memory: memory.put("a", 7), "content"),
        (lambda memory: memory.put("a", "x", actor_id=""), "actor_id"),
        (lambda memory: memory.put("\u6771" * 500, "x", actor_id="\u4eac" * 500), "path"),
        (lambda memory: memory.put("a", "x", append="yes"), "append"),
        (lambda memory: memory.put(None, "x"), "path"),
        (lambda memory: memory.add("a", "x", key=5), "key"),
        (lambda memory: memory.update("a", "x", session_id=5), "session_id"),
        (lambda memory: memory.get(5), "path"),
        (lambda memory: memory.delete(None), "path"),
        (lambda memory: memory.list(path_prefix=None), "path_prefix"),
        (lambda memory: memory.list(""), "path"),
        (lambda memory: memory.list(path_prefix="\x00"), "path_prefix"),
        (lambda memory: memory.list(after="a"), "after"),
        (lambda memory: memory.list(after=("", None)), "after"),
        (lambda memory: memory.search(7), "text"),
        (lambda memory: memory.search("x" * (MAX_CONTENT + 1)), "text"),
        (lambda memory: memory.search("a", limit="5"), "limit"),
        (lambda memory: memory.put("a", "x", session_id="\x00"), "session_id"),
        (lambda memory: memory.search("a", limit=0), "limit"),
        (lambda memory: memory.list(limit="5"), "limit"),
        (lambda memory: memory.list(limit=1001), "limit"),
        (lambda memory: memory.search("a", limit=101), "limit"),
    ],
)
async def test_bad_requests_are_refused_and_named(memory: Memories, act: Any, field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await act(memory)
    assert caught.value.field == field
    assert await memory.list() == []


async def test_a_model_remembers_for_the_actor_of_its_session(store_url: str) -> None:
    said: list[Say | str] = [
        Say(calls=[ScriptedCall("remember", {"path": "food", "content": "likes tea"})]),
        Say(calls=[ScriptedCall("recall", {"query": "tea"}), ScriptedCall("list_memories", {})]),
        Say(calls=[ScriptedCall("forget", {"path": "food"}), ScriptedCall("forget", {"path": "food"})]),
        "Done.",
    ]
    async with open_store(store_url) as store:
        await SessionStore(store).create("s", actor_id="ann")
        reply = await Agent(ScriptedModel(Script(*said)), tools=MEMORY_TOOLS).session("s", store=store).run("hi")
        told = [message["content"] for message in reply.messages if message["role"] == "tool"]
        assert told[:3] == ["Kept at food.", "food:\nlikes tea", "food"]
        assert sorted(told[3:]) == ["Forgot food.", "Not done: there is no memory at 'food'"]
        assert await MemoryStore(store).list(actor_id="ann") == []


async def test_a_model_is_told_that_there_is_more_than_it_is_shown(store_url: str) -> None:
    calls = [ScriptedCall("list_memories"), ScriptedCall("list_memories", {"path_prefix": "tea/9"})]
    calls.append(ScriptedCall("recall", {"query": "green"}))
    async with open_store(store_url) as store:
        await asyncio.gather(*(MemoryStore(store).put(f"tea/{number:03}", "green") for number in range(101)))
        await MemoryStore(store).put("tea/9", "green")
        chat = Agent(ScriptedModel(Say(calls=calls), "Done."), tools=MEMORY_TOOLS).session("s", store=store)
        said = (await chat.run("hi")).messages
    listed, narrowed, recalled = [message["content"] for message in said if message["role"] == "tool"]
    assert listed.startswith("tea/000\ntea/001\n")
    assert listed.endswith("tea/099\nThese are the first 100; there are more. A longer `path_prefix` lists fewer.")
    assert narrowed == "tea/9"
    assert recalled.count("green") == 10
    assert "These are the 10 best; more was found." in recalled
