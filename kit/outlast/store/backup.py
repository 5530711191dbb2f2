"""A copy of an SQLite store while it is used, made by SQLite itself."""

import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from outlast.core.errors import StoreError, StoreSetupError
from outlast.store.sqlite import READ_BUSY_TIMEOUT_SECONDS
from outlast.store.url import StoreURL

PAGES = 1024
"""Copied at once, between two calls of `progress`."""


def backup(url: StoreURL, to: Path, progress: Callable[[int, int], None]) -> int:
    """Copy the database to a file that is not there, check the copy, and return its bytes. Blocks.

    The copy is the database as it was at one moment, whatever is written meanwhile. `progress` is told the pages that
    are copied, and all there are. Raises StoreSetupError and StoreError; then there is no file.
    """
    if url.path is None:
        raise StoreSetupError(
            f"PostgreSQL is backed up by its own tool: pg_dump --format=custom --schema={url.schema} --file=FILE DATABASE"
        )
    if to.exists():
        raise StoreSetupError(f"{to} exists already; a backup goes to a new file")
    partial = to.with_name(f".{to.name}.partial")
    try:
        _copy(url.path, partial, progress)
        _sync(partial)
        os.link(partial, to)  # unlike a rename, it does not replace what came there meanwhile
    except (sqlite3.Error, OSError) as error:
        raise StoreError(f"the backup failed: {error}") from error
    finally:
        for file in (partial, partial.with_name(f"{partial.name}-journal")):
            file.unlink(missing_ok=True)
    return to.stat().st_size


def _copy(source: Path, target: Path, progress: Callable[[int, int], None]) -> None:
    target.unlink(missing_ok=True)
    target.touch(0o600)
    shutil.copymode(source, target)
    with closing(_opened(source)) as old, closing(_opened(target)) as new:
        # Within a read transaction the copy never begins anew, however much is written.
        old.execute("BEGIN")
        old.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        old.backup(new, pages=PAGES, progress=lambda _, left, total: progress(total - left, total))
        # One file, without a log beside it, until somebody opens it as a store.
        new.execute("PRAGMA journal_mode = DELETE")
        (found,) = new.execute("PRAGMA quick_check(1)").fetchone()
    if found != "ok":
        raise StoreError(f"the copy is damaged, and so is the store: {found}")


def _opened(file: Path) -> sqlite3.Connection:
    return sqlite3.connect(file, timeout=READ_BUSY_TIMEOUT_SECONDS, isolation_level=None)


def _sync(file: Path) -> None:
    for path in (file, file.parent):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
