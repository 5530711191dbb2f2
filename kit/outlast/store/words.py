"""What is searched is a copy in words, made here, so that both databases find the same.

Words are runs of letters and digits, in lower case without accents, stemmed as English by the database. Chinese,
Japanese and Korean have no spaces: each run of them is kept as its characters and its pairs of neighbours (grams).

The score is our own. Those of the databases count the rows of everybody, so that one owner could see by the score
whether another has a word (bm25 of SQLite), or do not look at how rare a word is (ts_rank of PostgreSQL). For the same
reason, and so that a search costs what its owner has, each copy has its owner as a further word.
"""

import re
import sqlite3
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from hashlib import blake2b
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    MetaData,
    Select,
    Subquery,
    Table,
    Text,
    bindparam,
    cast,
    func,
    literal_column,
    select,
    true,
)
from sqlalchemy.dialects.postgresql import ARRAY, TSQUERY

from outlast.core import jsontext
from outlast.store.statements import DialectName, Rows, Statement

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


ONE = 1_000_000_000
"""The weight of a word that a single memory has. Sums of integers are the same in any order, those of floats are not."""


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


def owner(*names: str) -> str:
    """Return the word that only copies of this owner have: digits, which no database stems."""
    name = jsontext.encode(list(names)).encode()
    return str(int.from_bytes(blake2b(name, digest_size=20).digest()))


_LEXEMES = """COALESCE(array_to_tsvector(array_agg(DISTINCT
    CASE WHEN i.g THEN i.w ELSE COALESCE((ts_lexize('english_stem', i.w))[1], i.w) END)), CAST('' AS tsvector))"""


class WordIndex:
    """The copies in one table. `numbers` is a query that gives the number of the row that is meant."""

    def __init__(self, table: str, numbers: str) -> None:
        self._table = table
        self._forget: Mapping[DialectName, Statement] = {
            "sqlite": Statement(f"DELETE FROM {table} WHERE rowid IN ({numbers})"),
            "postgresql": Statement(f"DELETE FROM {{p}}{table} WHERE number IN ({numbers})"),
        }
        self._learn: Mapping[DialectName, Statement] = {
            "sqlite": Statement(
                f"INSERT INTO {table} (rowid, owner, words, grams) SELECT n.number, :owner, :words, :grams "
                f"FROM ({numbers}) n"
            ),
            # `g` is for what is kept as it is.
            "postgresql": Statement(
                f"INSERT INTO {{p}}{table} (number, words) SELECT n.number, (SELECT {_LEXEMES} FROM {{rows}} i) "
                f"FROM ({numbers}) n",
                {"w": "text", "g": "boolean"},
            ),
        }
        self._lexemes = Table(table, MetaData(), Column("number", BigInteger), Column("words"))
        self._fts = Table(table, MetaData(), Column("rowid", BigInteger), Column("words"))

    def forget(self, dialect: DialectName) -> Statement:
        """Return what removes the copy of a row; to be sent before the row is removed."""
        return self._forget[dialect]

    def learn(self, dialect: DialectName, owner: str, text: str) -> tuple[Statement, dict[str, Any]]:
        """Return what makes the copy of a row that has none, with the parameters it has of its own."""
        words, runs = words_and_runs(text)
        grams = dict.fromkeys(gram for run in runs for gram in (*run, *_pairs(run)))
        if dialect == "sqlite":
            return self._learn[dialect], {"owner": owner, "words": " ".join(words), "grams": " ".join(grams)}
        rows = [(f"@{owner}", True), *((word, False) for word in words), *((gram, True) for gram in grams)]
        return self._learn[dialect], {"rows": Rows(["w", "g"], rows)}

    def scores(
        self, connection: Connection, owner: str, text: str, rows: Table, where: Sequence[ColumnElement[bool]]
    ) -> Select[Any] | None:
        """Return a query for the number and the score, times ONE, of what has any word of the text, the best first.

        A word counts the less, the more of the rows where the conditions hold have it. None: the text has no word.
        """
        words, runs = words_and_runs(text)
        grams = list(dict.fromkeys(gram for run in runs for gram in _pairs(run) or [run]))
        if not words and not grams:
            return None
        if connection.dialect.name == "sqlite":
            hits = self._in_sqlite(owner, _distinct(words), grams)
        else:
            hits = self._in_postgres(owner, [*_stems(connection, words), *grams])
        # Materialized, so that no planner looks for each word in each row by itself.
        hit = hits.cte("hit").prefix_with("MATERIALIZED")
        having = func.count().over(partition_by=hit.c.term).label("having")
        one = select(hit.c.number, rows.c.updated_at, having).join(rows, rows.c.number == hit.c.number)
        each: Subquery = one.where(*where).subquery()
        score = func.sum(literal_column(str(ONE), BigInteger) // each.c.having).label("score")
        return (
            select(each.c.number, score)
            .group_by(each.c.number, each.c.updated_at)
            .order_by(score.desc(), each.c.updated_at.desc(), each.c.number.desc())
        )

    def _in_sqlite(self, owner: str, words: Iterable[str], grams: Iterable[str]) -> Select[Any]:
        terms = [*(f'words : "{word}"' for word in words), *(f'grams : "{gram}"' for gram in grams)]
        texts = jsontext.encode([f'owner : "{owner}" AND {term}' for term in terms])
        asked = func.json_each(texts).table_valued("value", name="asked")
        matched = literal_column(self._table).op("MATCH")(asked.c.value)
        return (
            select(asked.c.value.label("term"), self._fts.c.rowid.label("number"))
            .select_from(asked)
            .join(self._fts, matched)
        )

    def _in_postgres(self, owner: str, terms: Iterable[str]) -> Select[Any]:
        quoted = [f"'{term}'" for term in terms]
        asked = (
            func.unnest(bindparam("terms", quoted, ARRAY(Text))).table_valued("value", name="asked").render_derived()
        )
        matched = select(self._lexemes.c.number).where(
            self._lexemes.c.words.op("@@")(cast(f"'@{owner}'", TSQUERY)), self._lexemes.c.words.op("@@")(cast(asked.c.value, TSQUERY))
        )  # fmt: skip
        # An offset keeps the planner from comparing each word with each memory of the actor.
        each = matched.offset(literal_column("0")).lateral()
        return select(asked.c.value.label("term"), each.c.number).select_from(asked).join(each, true())


def _distinct(words: Sequence[str]) -> list[str]:
    """Return one word of each stem. SQLite tells stems only of what a table has, so they are put into one in memory."""
    with closing(sqlite3.connect(":memory:")) as memory:
        memory.execute("CREATE VIRTUAL TABLE asked USING fts5(word, tokenize = 'porter unicode61')")
        memory.execute("CREATE VIRTUAL TABLE stems USING fts5vocab(asked, instance)")
        memory.executemany("INSERT INTO asked (rowid, word) VALUES (?, ?)", enumerate(words))
        return [words[row] for (row,) in memory.execute("SELECT DISTINCT min(doc) FROM stems GROUP BY term")]


def _stems(connection: Connection, words: Sequence[str]) -> list[str]:
    word = func.unnest(bindparam("words", list(words), ARRAY(Text))).column_valued("word")
    stem = func.ts_lexize(literal_column("'english_stem'"), word, type_=ARRAY(Text))[1]
    return [str(found) for found in connection.execute(select(func.coalesce(stem, word)).distinct()).scalars()]
