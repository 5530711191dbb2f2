"""The unit of most goals: what a commit of one small row costs on this machine, with one plain connection."""

import contextlib
import sqlite3
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg

EVENT = '{"type":"token","text":"ev-0"}'
TABLE = "CREATE TABLE raw (run text, position integer, event text, PRIMARY KEY (run, position))"

RawCommit = Callable[[int], None]
"""Commit the n-th row."""


@contextlib.contextmanager
def sqlite(path: Path) -> Iterator[RawCommit]:
    """WAL and `synchronous=FULL`, as outlast uses it."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(TABLE)

        def commit(number: int) -> None:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("INSERT INTO raw VALUES ('run', ?, ?)", (number, EVENT))
            connection.execute("COMMIT")

        yield commit


@contextlib.contextmanager
def postgresql(url: str) -> Iterator[RawCommit]:
    """A prepared insert in autocommit."""
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(TABLE)

        def commit(number: int) -> None:
            connection.execute("INSERT INTO raw VALUES ('run', %s, %s)", (number, EVENT), prepare=True)

        yield commit


class Timer:
    """Times raw commits on one connection, as often as it is asked."""

    def __init__(self, commit: RawCommit) -> None:
        self._commit = commit
        self._count = 0

    def milliseconds(self, commits: int = 100) -> float:
        """Return the median of some commits."""
        times = []
        for _ in range(commits):
            self._count += 1
            begin = time.perf_counter()
            self._commit(self._count)
            times.append(time.perf_counter() - begin)
        return 1000 * statistics.median(times)
