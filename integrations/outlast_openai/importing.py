"""Conversations of the SDK's own sessions made sessions here: of `SQLiteSession` and of `SQLAlchemySession`, which have the
same tables. They are only read.
"""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import sqlalchemy
from sqlalchemy import Connection, column, select, table

from outlast.adapters.local import LocalStore
from outlast.core import jsontext
from outlast.core.errors import InvalidRequest, OutlastError
from outlast.sessions import SessionStore

SESSIONS, MESSAGES = "agent_sessions", "agent_messages"
"""The tables, as the SDK names them."""


class NoSource(OutlastError):
    """There are no sessions of the SDK where they were said to be."""

    code = "no_source"


@dataclass(slots=True)
class Report:
    """What an import did. `refused` says of sessions why they were left."""

    sessions: int = 0
    items: int = 0
    known_sessions: int = 0
    refused: dict[str, str] = field(default_factory=dict)


async def import_sessions(
    source: str,
    store: LocalStore,
    *,
    agent: str = "agent",
    principal: str = "local",
    only: Sequence[str] = (),
    messages_table: str = MESSAGES,
) -> Report:
    """Import sessions, all or those named, each whole or not at all, from a database URL or an SQLite file. Raise NoSource.

    One that was imported before is known, also when it went on here; when it went on there, it is left.
    """
    report, sessions = Report(), SessionStore(store, principal=principal)
    for name, items in await asyncio.to_thread(_read, source, list(only), messages_table):
        try:
            if not items:
                raise NoSource("there is no such session")
            known = await _is_known(sessions, name)
            await sessions.import_(_lines(name, agent, principal, items))
        except OutlastError as error:
            report.refused[name] = str(error)
            continue
        report.known_sessions += known
        report.sessions += not known
        report.items += 0 if known else len(items)
    return report


async def _is_known(sessions: SessionStore, name: str) -> bool:
    try:
        await sessions.get(name)
    except OutlastError:
        return False
    return True


def _lines(name: str, agent: str, principal: str, items: Iterable[tuple[int, Any]]) -> list[str]:
    """Say a session as an export of ours does."""
    head = {"type": "session", "id": name, "agent": agent, "actor_id": principal}
    rows = [{"type": "item", "id": f"imported-{number}", "content": item} for number, item in items]
    return [jsontext.encode(line) for line in (head, *rows)]


def _read(source: str, only: list[str], messages_table: str) -> list[tuple[str, list[tuple[int, Any]]]]:
    rows = table(messages_table, column("id"), column("session_id"), column("message_data"))
    with _connected(source) as connection:
        names = only or list(
            connection.execute(select(rows.c.session_id).distinct().order_by(rows.c.session_id)).scalars()
        )
        found = []
        for name in names:
            query = select(rows.c.id, rows.c.message_data).where(rows.c.session_id == name).order_by(rows.c.id)
            found.append((name, list(_items(connection.execute(query)))))
        return found


def _items(rows: Iterable[Any]) -> Iterator[tuple[int, Any]]:
    """Give the items that can be read, as the SDK does: it passes over others."""
    for number, text in rows:
        try:
            yield number, jsontext.parse(text.encode())
        except (InvalidRequest, UnicodeEncodeError):
            continue


@contextmanager
def _connected(source: str) -> Iterator[Connection]:
    """Open a database: `chat.db`, or a URL, of which a driver for asyncio is passed over."""
    if "://" in source:
        url = sqlalchemy.make_url(source)
        backend = url.get_backend_name()
        url = url.set(drivername="postgresql+psycopg" if backend == "postgresql" else backend)
    else:
        url = sqlalchemy.URL.create("sqlite", database=source)
    if url.get_backend_name() == "sqlite" and not Path(url.database or "").is_file():
        raise NoSource(f"there is no file {url.database!r}")
    engine = sqlalchemy.create_engine(url)
    try:
        with closing(engine.connect()) as connection:
            yield connection
    except sqlalchemy.exc.SQLAlchemyError as error:
        raise NoSource(
            f"there are no sessions of the SDK in {url.render_as_string()}: {error.__class__.__name__}"
        ) from error
    finally:
        engine.dispose()
