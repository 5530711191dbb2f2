"""Hints that something was committed elsewhere. They only save waiting: polling alone is correct.

PostgreSQL: LISTEN on a connection of its own. SQLite: `PRAGMA data_version`, which changes with every commit of another
connection and costs microseconds to read.
"""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable

from outlast.store.sqlite import SQLiteConnection
from outlast.store.statements import Connection, DatabaseError, Statement, query
from outlast.store.store import Store

logger = logging.getLogger("outlast.store")

FAST_SECONDS = 0.02
SLOW_SECONDS = 0.25
RETRY_SECONDS = 1.0

_VERSION = Statement("PRAGMA data_version")


class Hints:
    """A thread that calls `changed` on the loop: with a payload of `Store.notify`, or None for "something"."""

    def __init__(
        self,
        store: Store,
        loop: asyncio.AbstractEventLoop,
        changed: Callable[[str | None], None],
        *,
        busy: Callable[[], bool],
    ) -> None:
        self._store, self._loop, self._changed, self._busy = store, loop, changed, busy
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="outlast-hints", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop and wait for the thread."""
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over:
            try:
                with contextlib.closing(self._store.connect()) as connection:
                    if isinstance(connection, SQLiteConnection):
                        self._watch(connection)
                    else:
                        self._listen(connection)
            except DatabaseError as error:
                logger.debug("no hints for a while: %s", error)
                self._closing.wait(RETRY_SECONDS)

    @property
    def _over(self) -> bool:
        return self._closing.is_set() or self._loop.is_closed()

    def _tell(self, payload: str | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed
            self._loop.call_soon_threadsafe(self._changed, payload)

    def _watch(self, connection: SQLiteConnection) -> None:
        known = query(connection, _VERSION)
        while not self._closing.wait(FAST_SECONDS if self._busy() else SLOW_SECONDS) and not self._over:
            if (version := query(connection, _VERSION)) != known:
                known = version
                self._tell(None)

    def _listen(self, connection: Connection) -> None:
        connection.listen()
        self._tell(None)
        while not self._over:
            for payload in connection.notifications(SLOW_SECONDS):
                self._tell(payload)
