"""Memories and the search in them. What is searched is a copy in words, made here, so that both databases find the same.

Words are runs of letters and digits, in lower case without accents, stemmed as English by the database. Chinese,
Japanese and Korean have no spaces: each run of them is kept as its characters and its pairs of neighbours (grams).
"""

import asyncio
import re
import unicodedata
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

from sqlalchemy import BigInteger, Column, MetaData, Select, Table, Text, bindparam, cast, func, literal_column, select
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


def words_and_grams(text: str) -> tuple[list[str], list[list[str]]]:
    """Return the words of a text, and for each run of CJK its grams."""
    words: list[str] = []
    grams: list[list[str]] = []
    bare = _ACCENTS.sub("", unicodedata.normalize("NFKD", text))
    for run in _RUN.findall(unicodedata.normalize("NFKC", bare).casefold()):
        if _IS_CJK.match(run):
            pairs = [run[at : at + 2] for at in range(len(run) - 1)]
            grams.append(pairs or [run])
        else:
            words.append(run[:LONGEST_WORD])
    return words, grams


class MemoryChanges:
    """The writing verbs. Each future resolves after its commit."""

    def __init__(self, submit: Submit) -> None:
        self._submit = submit

    def write(self, key: Key, content: str, *, mode: Mode, token: str, limit: int) -> "asyncio.Future[StoredMemory]":
        """Store text at a path. `token` names this change, so that a repeat of it changes nothing.

        The future raises Conflict (`memory_exists`), NotFound, and InvalidRequest (`memory_too_large`) for more than
        `limit` characters.
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
_LEARN_SQLITE = Statement("INSERT INTO memory_words (rowid, words, grams) VALUES (:number, :words, :grams)")
_LEARN_POSTGRES = Statement(
    """
    INSERT INTO {p}memory_words (number, words)
    SELECT CAST(:number AS bigint), COALESCE(array_to_tsvector(array_agg(DISTINCT
        CASE WHEN i.g THEN i.w ELSE COALESCE((ts_lexize('english_stem', i.w))[1], i.w) END)), CAST('' AS tsvector))
    FROM {rows} i
    """,
    {"w": "text", "g": "boolean"},
)


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
    memory, recent = StoredMemory(*row), jsontext.decode(keys)
    if token in recent:
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
    kept = jsontext.encode([token, *recent][:RECENT_KEYS])
    connection.send(_UPDATE, number=memory.number, content=jsontext.encode(text), keys=kept)
    _learn(connection, memory.number, f"{key.path} {text}")
    *row, _ = query(connection, _FIND, **fields)[0]
    return StoredMemory(*row)


def _delete(connection: Connection, key: Key) -> None:
    found = query(connection, _FIND, **key._asdict())
    if not found:
        raise NotFound(f"there is no memory at {key.path!r}")
    connection.send(_FORGET[connection.dialect], number=found[0][0])
    connection.send(_DELETE, number=found[0][0])


def _learn(connection: Connection, number: int, text: str) -> None:
    words, runs = words_and_grams(text)
    grams = [gram for run in runs for gram in {*run, *"".join(run)}]
    connection.send(_FORGET[connection.dialect], number=number)
    if connection.dialect == "sqlite":
        connection.send(_LEARN_SQLITE, number=number, words=" ".join(words), grams=" ".join(grams))
        return
    rows = [*((word, False) for word in dict.fromkeys(words)), *((gram, True) for gram in dict.fromkeys(grams))]
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
    limit: int,
) -> list[StoredMemory]:
    """Return memories at `path` or whose path begins with `prefix`, by path."""
    found = _of(_MEMORIES, principal, actor_id, session_id)
    if path is not None:
        found = found.where(memories.c.path == path)
    if prefix:
        found = found.where(func.substr(memories.c.path, 1, len(prefix)) == prefix)
    rows = connection.execute(found.order_by(memories.c.path, memories.c.session_id).limit(limit))
    return [StoredMemory._make(row) for row in rows]


def search(
    connection: PooledConnection, principal: str, actor_id: str, text: str, *, session_id: str | None, limit: int
) -> list[tuple[StoredMemory, float]]:
    """Return the memories that have any of the words, the best first, each with its score."""
    words, runs = words_and_grams(text)
    if not words and not runs:
        return []
    words = list(dict.fromkeys(words))
    if connection.dialect.name == "sqlite":
        terms = [
            *(f'words : "{word}"' for word in words),
            *(f"grams : ({_all(run, chr(34), ' AND ')})" for run in runs),
        ]
        score: Any = -func.bm25(literal_column("memory_words"))
        joined = memories.join(_FTS, _FTS.c.rowid == memories.c.number)
        matches: Any = literal_column("memory_words").op("MATCH")(" OR ".join(terms))
    else:
        stems = _stems(connection, words)
        terms = [*(f"'{stem}'" for stem in stems), *(f"({_all(run, chr(39), ' & ')})" for run in runs)]
        asked = cast(" | ".join(terms), TSQUERY)
        score = func.ts_rank(_WORDS.c.words, asked)
        joined = memories.join(_WORDS, _WORDS.c.number == memories.c.number)
        matches = _WORDS.c.words.op("@@")(asked)
    found = _of(_MEMORIES.add_columns(score.label("score")), principal, actor_id, session_id)
    found = found.select_from(joined).where(matches)
    found = found.order_by(literal_column("score").desc(), memories.c.updated_at.desc(), memories.c.number.desc())
    return [(StoredMemory._make(row[:-1]), float(row[-1])) for row in connection.execute(found.limit(limit))]


def _of(found: Select[Any], principal: str, actor_id: str, session_id: str | None) -> Select[Any]:
    found = found.where(memories.c.principal == principal, memories.c.actor_id == actor_id)
    return found if session_id is None else found.where(memories.c.session_id == session_id)


def _all(run: Sequence[str], quote: str, operator: str) -> str:
    return operator.join(f"{quote}{gram}{quote}" for gram in run)


def _stems(connection: PooledConnection, words: Sequence[str]) -> list[str]:
    word = func.unnest(bindparam("words", list(words), ARRAY(Text))).column_valued("word")
    stem = func.ts_lexize(literal_column("'english_stem'"), word, type_=ARRAY(Text))[1]
    return [str(found) for found in connection.execute(select(func.coalesce(stem, word))).scalars()]
