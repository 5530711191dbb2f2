"""How soon the death of a process is seen on the same machine, and its run goes on.

`python -m benchmarks.deaths URL FOLDER` is the process that dies: it starts a run that does not end, and says so.
"""

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from benchmarks.in_process import request, running
from benchmarks.load import clock
from benchmarks.measures import Database, Results, Sample
from benchmarks.servers import ROOT

from outlast.engine import InvocationContext, locks

POLL_SECONDS = 0.0002
HANG_SECONDS = 60
BEGUN = b"begun\n"


async def never(context: InvocationContext) -> None:
    print(BEGUN.decode(), end="", flush=True)
    await asyncio.Event().wait()


async def victim(url: str, folder: Path) -> None:
    async with running(url, folder, never) as engine:
        await engine.wait(await engine.accept(request()))


class Witness:
    """An agent that goes on with the runs of the dead, and notes when it was asked to."""

    def __init__(self) -> None:
        self.called = asyncio.Event()
        self.at = 0.0

    async def __call__(self, context: InvocationContext) -> None:
        self.at = clock()
        self.called.set()

    async def since(self, begin: float) -> float:
        """Return the milliseconds from `begin` to the call."""
        async with asyncio.timeout(HANG_SECONDS):
            await self.called.wait()
        self.called.clear()
        return 1000 * (self.at - begin)


async def measure(database: Database, url: str, folder: Path, results: Results) -> None:
    """Kill a process and start a worker; then kill another beside that worker."""

    def add(key: str, value: float) -> None:
        results.add(key, database, Sample(value))

    witness = Witness()
    async with _killable(url, folder) as (kill, lock):
        died = kill()
        add("lock_freed", _until_free(lock, died))
    begin = clock()
    async with running(url, folder, witness):
        add("restart", await witness.since(begin))
        async with _killable(url, folder) as (kill, _):
            add("peer", await witness.since(kill()))


def _until_free(lock: Path, since: float) -> float:
    while not locks.is_free(str(lock)):
        time.sleep(POLL_SECONDS)
    return 1000 * (clock() - since)


@contextlib.asynccontextmanager
async def _killable(url: str, folder: Path) -> AsyncIterator[tuple[Callable[[], float], Path]]:
    """Run a victim until the end of the block; give a function that kills it and returns when, and its lock file."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.deaths", url, str(folder), cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None

    def kill() -> float:
        process.kill()
        return clock()

    try:
        assert await process.stdout.readline() == BEGUN
        (lock,) = folder.glob(f"*-{process.pid}-*.lock")
        yield kill, lock
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


if __name__ == "__main__":
    asyncio.run(victim(sys.argv[1], Path(sys.argv[2])))
