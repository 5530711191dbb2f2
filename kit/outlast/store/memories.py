"""Memories and the search in them. What is searched is a copy in words, made here, so that both databases find the same.

Words are runs of letters and digits, in lower case without accents, stemmed as English by the database. Chinese,
Japanese and Korean have no spaces: each run of them is kept as its characters and its pairs of neighbours (grams).

The score is our own. Those of the databases count the rows of everybody, so that one actor could see by the score
whether another has a word (bm25 of SQLite), or do not look at how rare a word is (ts_rank of PostgreSQL). For the same
reason, and so that a search costs what its actor has, each copy has its owner as a further word.
"""

import asyncio
import re
import sqlite3
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from hashlib import blake2b
from typing import Any, Literal, NamedTuple

from sqlalchemy import (
    BigInteger,
    Column,
    MetaData,
    Select,
    Table,
    Text,
    bindparam,
    cast,
    func,
    literal_column,
    select,
    true,
    tuple_,
)
from sqlalchemy import Connection as PooledConnection
from sqlalchemy.dialects.postgresql import ARRAY, TSQUERY

from outlast.core import jsontext
from outlast.core.errors import Conflict, InvalidRequest, NotFound
from outlast.store.statements import Again, Connection, Rows, Statement, query
from outlast.store.tables import memories
from outlast.store.writer import seen_once

Mode = Literal["add", "put", "append", "update"]

RECENT_KEYS = 16
"""Changes of one memory that are recognised when they are repeated."""

Submit = Callable[[str, Callable[[Connection], Any]], "asyncio.Future[Any]"]

LONGEST_WORD = 500
"""Characters of a word that are looked at: PostgreSQL stores a longer one as another word, out of order, and does not say so."""

# Without the marks among the kana, such as the middle dot: SQLite takes them for spaces.
_CJK = (
    "\u3005-\u3007\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
)
_RUN = re.compile(rf"[{_CJK}]+|[^\W_{_CJK}]+")
_IS_CJK = re.compile(rf"[{_CJK}]")
_ACCENTS = re.compile("[\u0300-\u036f]")


class StoredMemory(NamedTuple):
    """One stored memory. `content` is JSON text of a string; `session_id` is empty for none."""

    number: int
    actor_id: str
    session_id: str
    path: str
    content: str
    created_at: int
    updated_at: int


class Key(NamedTuple):
    """What names a memory."""

    principal: str
    actor_id: str
    path: str
    session_id: str


def words_and_runs(text: str) -> tuple[list[str], list[str]]:
    """Return the words of a text, each once, and its runs of CJK."""
    words: dict[str, None] = {}
    runs: dict[str, None] = {}
    bare = _ACCENTS.sub("", unicodedata.normalize("NFKD", text))
    for run in _RUN.findall(unicodedata.normalize("NFKC", bare).casefold()):
        if _IS_CJK.match(run):
            runs[run] = None
        else:
            words[run[:LONGEST_WORD]] = None
    return list(words), list(runs)


def _pairs(run: str) -> list[str]:
    return [run[at : at + 2] for at in range(len(run) - 1)]


def _owner(principal: str, actor_id: str) -> str:
    """Return the word that only memories of this actor have: digits, which no database stems."""
    name = jsontext.encode([principal, actor_id]).encode()
    return str(int.from_bytes(blake2b(name, digest_size=20).digest()))


class MemoryChanges:
    """The writing verbs. Each future resolves after its commit."""

    def __init__(self, submit: Submit) -> None:
        self._submit = submit

    def write(self, key: Key, content: str, *, mode: Mode, token: str, limit: int) -> "asyncio.Future[StoredMemory]":
        """Store text at a path. `token` names this change, so that a repeat of it changes nothing.

        The future raises Conflict (`memory_exists`; `idempotency_conflict` when another change had the token), NotFound,
        and InvalidRequest (`memory_too_large`) for more than `limit` characters.
        """
        return self._submit("memory", lambda connection: _write(connection, key, content, mode, token, limit))

    def delete(self, key: Key) -> "asyncio.Future[None]":
        """Remove a memory. The future raises NotFound."""
        return self._submit("memory", seen_once(lambda connection: _delete(connection, key)))


_COLUMNS = "m.number, m.actor_id, m.session_id, m.path, m.content, m.created_at, m.updated_at"
_KEY = "principal = :principal AND actor_id = :actor_id AND path = :path AND session_id = :session_id"
_FIND = Statement("SELECT " + _COLUMNS + ", m.recent_keys FROM {p}memories m WHERE " + _KEY + " {update}")
_INSERT = Statement(
    """
    INSERT INTO {p}memories (principal, actor_id, path, session_id, content, recent_keys, created_at, updated_at)
    VALUES (:principal, :actor_id, :path, :session_id, '""', '[]', {now}, {now})
    ON CONFLICT (principal, actor_id, path, session_id) DO NOTHING
    """
)
_UPDATE = Statement(
    "UPDATE {p}memories SET content = :content, recent_keys = :keys, updated_at = {now} WHERE number = :number"
)
_DELETE = Statement("DELETE FROM {p}memories WHERE number = :number")
_FORGET = {
    "sqlite": Statement("DELETE FROM memory_words WHERE rowid = :number"),
    "postgresql": Statement("DELETE FROM {p}memory_words WHERE number = :number"),
}
# `session_id <> ''` is the condition of the index `memories_of_session`.
_OF_SESSIONS = """
    SELECT m.number FROM {p}sessions s JOIN {p}memories m ON m.principal = s.principal AND m.session_id = s.id
    WHERE m.session_id <> '' AND s.number IN (SELECT f.value FROM {values} f)
"""
_FORGET_SESSIONS = Statement(f"DELETE FROM memory_words WHERE rowid IN ({_OF_SESSIONS})")
_DELETE_SESSIONS = Statement(f"DELETE FROM {{p}}memories WHERE number IN ({_OF_SESSIONS})")
_LEARN_SQLITE = Statement(
    "INSERT INTO memory_words (rowid, owner, words, grams) VALUES (:number, :owner, :words, :grams)"
)
_LEARN_POSTGRES = Statement(
    """
    INSERT INTO {p}memory_words (number, words)
    SELECT CAST(:number AS bigint), COALESCE(array_to_tsvector(array_agg(DISTINCT
        CASE WHEN i.g THEN i.w ELSE COALESCE((ts_lexize('english_stem', i.w))[1], i.w) END)), CAST('' AS tsvector))
    FROM {rows} i
    """,
    {"w": "text", "g": "boolean"},
)
"""`g` is for what is kept as it is."""


def _write(connection: Connection, key: Key, content: str, mode: Mode, token: str, limit: int) -> StoredMemory:
    fields = key._asdict()
    created = False
    if mode != "update":
        created = connection.send(_INSERT, **fields).count() == 1
    found = query(connection, _FIND, **fields)
    if not found:
        if mode != "update":
            raise Again("the memory was removed between two statements")
        raise NotFound(f"there is no memory at {key.path!r}")
    *row, keys = found[0]
    memory, recent, digest = StoredMemory(*row), jsontext.decode(keys), _digest(mode, content)
    for known, what in recent:
        if known == token and what != digest:
            raise Conflict(
                f"the key {token!r} was used for another change of this memory; use a new key for a new change",
                code="idempotency_conflict",
            )
        if known == token:
            return memory
    if mode == "add" and not created:
        raise Conflict(f"there is a memory at {key.path!r}; use put or update", code="memory_exists")
    text = jsontext.decode(memory.content) + content if mode == "append" else content
    if len(text) > limit:
        raise InvalidRequest(
            f"the memory would have {len(text)} characters; the limit is {limit}",
            code="memory_too_large",
            field="content",
        )
    kept = jsontext.encode([[token, digest], *recent][:RECENT_KEYS])
    connection.send(_UPDATE, number=memory.number, content=jsontext.encode(text), keys=kept)
    _learn(connection, memory.number, _owner(key.principal, key.actor_id), f"{key.path} {text}")
    *row, _ = query(connection, _FIND, **fields)[0]
    return StoredMemory(*row)


def _digest(mode: Mode, content: str) -> str:
    return blake2b(jsontext.encode([mode, content]).encode(), digest_size=8).hexdigest()


def _delete(connection: Connection, key: Key) -> None:
    found = query(connection, _FIND, **key._asdict())
    if not found:
        raise NotFound(f"there is no memory at {key.path!r}")
    connection.send(_FORGET[connection.dialect], number=found[0][0])
    connection.send(_DELETE, number=found[0][0])


def delete_of_sessions(connection: Connection, numbers: Rows) -> None:
    """Remove what belongs to sessions that are about to be deleted."""
    if connection.dialect == "sqlite":
        connection.send(_FORGET_SESSIONS, values=numbers)
    connection.send(_DELETE_SESSIONS, values=numbers)


def _learn(connection: Connection, number: int, owner: str, text: str) -> None:
    words, runs = words_and_runs(text)
    grams = dict.fromkeys(gram for run in runs for gram in (*run, *_pairs(run)))
    connection.send(_FORGET[connection.dialect], number=number)
    if connection.dialect == "sqlite":
        learnt = {"words": " ".join(words), "grams": " ".join(grams)}
        connection.send(_LEARN_SQLITE, number=number, owner=owner, **learnt)
        return
    rows = [(f"@{owner}", True), *((word, False) for word in words), *((gram, True) for gram in grams)]
    connection.send(_LEARN_POSTGRES, number=number, rows=Rows(["w", "g"], rows))


_WORDS = Table("memory_words", MetaData(), Column("number", BigInteger), Column("words"))
_FTS = Table("memory_words", MetaData(), Column("rowid", BigInteger), Column("words"))
_MEMORIES = select(
    memories.c.number, memories.c.actor_id, memories.c.session_id, memories.c.path, memories.c.content,
    memories.c.created_at, memories.c.updated_at,
)  # fmt: skip


def read(connection: PooledConnection, key: Key) -> StoredMemory | None:
    """Return a memory, or None."""
    named = _MEMORIES.where(
        memories.c.principal == key.principal, memories.c.actor_id == key.actor_id, memories.c.path == key.path,
        memories.c.session_id == key.session_id,
    )  # fmt: skip
    row = connection.execute(named).first()
    return None if row is None else StoredMemory._make(row)


def listed(
    connection: PooledConnection,
    principal: str,
    actor_id: str,
    *,
    path: str | None,
    prefix: str,
    session_id: str | None,
    after: tuple[str, str] | None,
    limit: int,
) -> list[StoredMemory]:
    """Return memories at `path` or whose path begins with `prefix`, by path and session; those behind `after`."""
    found = _of(_MEMORIES, principal, actor_id, session_id)
    if path is not None:
        found = found.where(memories.c.path == path)
    if prefix:
        # The first condition is for the index.
        found = found.where(memories.c.path >= prefix, func.substr(memories.c.path, 1, len(prefix)) == prefix)
    if after is not None:
        found = found.where(tuple_(memories.c.path, memories.c.session_id) > after)
    rows = connection.execute(found.order_by(memories.c.path, memories.c.session_id).limit(limit))
    return [StoredMemory._make(row) for row in rows]


ONE = 1_000_000_000
"""The weight of a word that a single memory has. Sums of integers are the same in any order, those of floats are not."""


def search(
    connection: PooledConnection, principal: str, actor_id: str, text: str, *, session_id: str | None, limit: int
) -> list[tuple[StoredMemory, float]]:
    """Return the memories that have any of the words, the best first, each with its score.

    A word counts the less, the more of the actor's memories (of the session, if one is named) have it.
    """
    words, runs = words_and_runs(text)
    grams = list(dict.fromkeys(gram for run in runs for gram in _pairs(run) or [run]))
    if not words and not grams:
        return []
    owner = _owner(principal, actor_id)
    if connection.dialect.name == "sqlite":
        hits = _in_sqlite(owner, _distinct(words), grams)
    else:
        hits = _in_postgres(owner, [*_stems(connection, words), *grams])
    # Materialized, so that no planner looks for each word in each memory by itself.
    hit = hits.cte("hit").prefix_with("MATERIALIZED")
    counted = select(hit.c.number, memories.c.updated_at, func.count().over(partition_by=hit.c.term).label("having"))
    counted = counted.join(memories, memories.c.number == hit.c.number)
    if session_id is not None:
        counted = counted.where(memories.c.session_id == session_id)
    one = counted.subquery()
    score = func.sum(literal_column(str(ONE), BigInteger) // one.c.having).label("score")
    best = (
        select(one.c.number, score)
        .group_by(one.c.number, one.c.updated_at)
        .order_by(score.desc(), one.c.updated_at.desc(), one.c.number.desc())
        .limit(limit)
        .subquery()
    )
    found = _of(_MEMORIES.add_columns(best.c.score), principal, actor_id, session_id)
    found = found.join(best, best.c.number == memories.c.number)
    found = found.order_by(best.c.score.desc(), memories.c.updated_at.desc(), memories.c.number.desc())
    return [(StoredMemory._make(row[:-1]), int(row[-1]) / ONE) for row in connection.execute(found)]


def _in_sqlite(owner: str, words: Iterable[str], grams: Iterable[str]) -> Select[Any]:
    terms = [*(f'words : "{word}"' for word in words), *(f'grams : "{gram}"' for gram in grams)]
    texts = jsontext.encode([f'owner : "{owner}" AND {term}' for term in terms])
    asked = func.json_each(texts).table_valued("value", name="asked")
    matched = literal_column("memory_words").op("MATCH")(asked.c.value)
    return select(asked.c.value.label("term"), _FTS.c.rowid.label("number")).select_from(asked).join(_FTS, matched)


def _distinct(words: Sequence[str]) -> list[str]:
    """Return one word of each stem. SQLite tells stems only of what a table has, so they are put into one in memory."""
    with closing(sqlite3.connect(":memory:")) as memory:
        memory.execute("CREATE VIRTUAL TABLE asked USING fts5(word, tokenize = 'porter unicode61')")
        memory.execute("CREATE VIRTUAL TABLE stems USING fts5vocab(asked, instance)")
        memory.executemany("INSERT INTO asked (rowid, word) VALUES (?, ?)", enumerate(words))
        return [words[row] for (row,) in memory.execute("SELECT DISTINCT min(doc) FROM stems GROUP BY term")]


def _in_postgres(owner: str, terms: Iterable[str]) -> Select[Any]:
    quoted = [f"'{term}'" for term in terms]
    asked = func.unnest(bindparam("terms", quoted, ARRAY(Text))).table_valued("value", name="asked").render_derived()
    matched = select(_WORDS.c.number).where(
        _WORDS.c.words.op("@@")(cast(f"'@{owner}'", TSQUERY)), _WORDS.c.words.op("@@")(cast(asked.c.value, TSQUERY))
    )  # fmt: skip
    # An offset keeps the planner from comparing each word with each memory of the actor.
    each = matched.offset(literal_column("0")).lateral()
    return select(asked.c.value.label("term"), each.c.number).select_from(asked).join(each, true())


def _of(found: Select[Any], principal: str, actor_id: str, session_id: str | None) -> Select[Any]:
    found = found.where(memories.c.principal == principal, memories.c.actor_id == actor_id)
    return found if session_id is None else found.where(memories.c.session_id == session_id)


def _stems(connection: PooledConnection, words: Sequence[str]) -> list[str]:
    word = func.unnest(bindparam("words", list(words), ARRAY(Text))).column_valued("word")
    stem = func.ts_lexize(literal_column("'english_stem'"), word, type_=ARRAY(Text))[1]
    return [str(found) for found in connection.execute(select(func.coalesce(stem, word)).distinct()).scalars()]
