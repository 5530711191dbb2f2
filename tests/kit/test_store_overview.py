"""What people who look after a store see, and its copy."""

import asyncio
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from outlast.core.errors import StoreError, StoreSetupError, StoreUnavailable
from outlast.core.records import Outcome, Request, Status
from outlast.sessions import MemoryStore, SessionStore
from outlast.store import Store
from outlast.store.backup import backup
from outlast.store.migrate import HEAD
from outlast.store.url import parse

pytestmark = pytest.mark.anyio


async def test_a_store_that_is_not_there_is_not_made_by_looking(fresh_url: Callable[[], str], tmp_path: Path) -> None:
    url = fresh_url()
    with pytest.raises(StoreSetupError, match="outlast store migrate"):
        await Store.open(url, upgrade=False)
    if url.startswith("sqlite"):
        with pytest.raises(StoreSetupError, match="there is no store at"):
            await Store.revision(url)
        assert not list(tmp_path.glob(f"{Path(url).name}*"))
    else:
        assert await Store.revision(url) is None
    await (await Store.open(url)).close()
    assert await Store.revision(url) == HEAD
    await (await Store.open(url, upgrade=False)).close()
    with pytest.raises(StoreSetupError, match="ends with its process"):
        await Store.open("memory", upgrade=False)


async def test_a_store_of_another_version_is_refused_unless_it_may_be_changed(tmp_path: Path) -> None:
    store_url = f"sqlite:///{tmp_path / 'state.db'}"
    await (await Store.open(store_url)).close()
    with sqlite3.connect(tmp_path / "state.db") as connection:
        connection.execute("UPDATE schema_version SET version_num = '9999'")
    connection.close()
    with pytest.raises(StoreSetupError, match="is 9999, and this version of outlast knows"):
        await Store.open(store_url, upgrade=False)


async def test_an_overview_counts(store: Store, make_request: Callable[..., Request]) -> None:
    running = (await store.accept(make_request("s"), lease=True)).invocation
    done = (await store.accept(make_request(), lease=True)).invocation
    await store.finish(done.number, done.epoch, None, Outcome(Status.COMPLETED, output="1"))
    await SessionStore(store).create("t")
    await MemoryStore(store).put("a", "b")
    seen = await store.read.overview()
    assert {status: count for status, count in seen.invocations.items() if count} == {"running": 1, "completed": 1}
    assert (seen.sessions, seen.memories, seen.open_approvals, seen.workers) == (2, 1, 0, 1)
    assert seen.oldest_unfinished == running.created_at <= seen.now
    assert seen.bytes > 0 and seen.version.startswith(("SQLite 3", "PostgreSQL 1"))
    (worker,) = await store.read.working()
    assert (worker.row.id, worker.running) == ("w1", 1)
    assert 0 <= worker.silent_ms < 60_000
    assert await store.read.old(status=Status.COMPLETED, age_ms=0) == 1
    assert await store.read.old(status=Status.COMPLETED, age_ms=3_600_000) == 0
    await store.check_writable()
    assert len(await store.read.workers()) == 1


async def test_a_store_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    store = await Store.open(f"sqlite:///{tmp_path / 'state.db'}")
    with sqlite3.connect(tmp_path / "state.db") as connection:
        connection.execute("CREATE TRIGGER no BEFORE INSERT ON workers BEGIN SELECT RAISE(ABORT, 'no more'); END")
    connection.close()
    with pytest.raises(StoreUnavailable, match="cannot be written: no more"):
        await store.check_writable()
    await store.close()


async def test_a_backup_is_the_store_at_one_moment_while_it_is_written(tmp_path: Path) -> None:
    url, copy = f"sqlite:///{tmp_path / 'state.db'}", tmp_path / "copy.db"
    store = await Store.open(url)
    sessions = SessionStore(store)
    await sessions.create("s")
    await sessions.append("s", [{"n": number, "text": "x" * 10_000} for number in range(1000)])
    steps: list[tuple[int, int]] = []
    loop = asyncio.get_running_loop()

    def write_meanwhile(copied: int, pages: int) -> None:
        steps.append((copied, pages))
        asyncio.run_coroutine_threadsafe(sessions.append("s", [{"n": "later"}]), loop).result(60)

    size = await asyncio.to_thread(backup, parse(url), copy, write_meanwhile)
    assert size == copy.stat().st_size
    assert len(steps) > 2 and steps[-1][0] == steps[-1][1]
    assert [step[0] for step in steps] == sorted({step[0] for step in steps})  # it never began anew
    assert len([item async for item in sessions.items("s")]) == 1000 + len(steps)
    await store.close()

    with pytest.raises(StoreSetupError, match="exists already"):
        await asyncio.to_thread(backup, parse(url), copy, lambda *_: None)
    restored = await Store.open(f"sqlite:///{copy}", upgrade=False)
    assert [item.content["n"] async for item in SessionStore(restored).items("s")] == list(range(1000))
    await restored.close()


async def test_a_backup_that_fails_leaves_no_file(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'state.db'}"
    await (await Store.open(url)).close()

    def fail(copied: int, pages: int) -> None:
        raise OSError("the disk is full")

    with pytest.raises(StoreError, match="the disk is full"):
        await asyncio.to_thread(backup, parse(url), tmp_path / "copy.db", fail)
    assert [file.name for file in tmp_path.iterdir()] == ["state.db"]
    with pytest.raises(StoreSetupError, match="pg_dump"):
        backup(parse("postgresql://u@h/d"), tmp_path / "copy.db", lambda *_: None)
