"""Many followers of one run, many runs that wait, and a follower whose run is in another process."""

import asyncio
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks import servers
from benchmarks.load import DATA, Connection, Reply, clock, drive, get, post
from benchmarks.measures import Database, Results, Sample
from benchmarks.servers import Served

RUNS_AT_ONCE = 1_000_000
OPENERS = 32
SETTLE_SECONDS = 0.5
CROWD_EVENTS = 50
REMOTE_EVENTS = 60
REMOTE_EVERY_SECONDS = 0.05
WARM_UP_SECONDS = 0.5


async def measure(database: Database, new_url: Callable[[], str], folder: Path, count: int, results: Results) -> None:
    """Measure with `count` followers and `count` waiting runs."""

    def add(key: str, value: float) -> None:
        results.add(key, database, Sample(value))

    url = new_url()
    with servers.outlast(url, folder, concurrency=RUNS_AT_ONCE) as server:
        await drive(server.port, OPENERS, _echo, seconds=WARM_UP_SECONDS)
        before = server.resident_bytes()
        await _hold(server, count)
        held = server.resident_bytes()
        add("waiting", (held - before) / count / 1024)
        crowd = await Crowd.gather(server, count)
        add("follower", (server.resident_bytes() - held) / count / 1024)
        add("frames", await crowd.frames_a_second())
        with servers.outlast(url, folder) as other:
            add("remote", await _remote_milliseconds(server, other))


async def _echo(connection: Connection) -> Reply:
    return (await connection.send(post("awaited"))).expect(200)


async def _hold(server: Served, count: int) -> None:
    """Start runs that wait for a gate which nobody opens."""
    left = iter(range(count))

    async def submit(connection: Connection) -> None:
        for _ in left:
            (await connection.send(post("hold", background=True, hold={"gate": "shut"}))).expect(202)
        connection.close()

    await asyncio.gather(*[submit(await Connection.open(server.port)) for _ in range(OPENERS)])
    await asyncio.sleep(SETTLE_SECONDS)


class Crowd:
    """Followers of one run that waits for its gate."""

    def __init__(self, server: Served, followers: list["asyncio.Future[Reply]"]) -> None:
        self._server, self._followers = server, followers

    @classmethod
    async def gather(cls, server: Served, count: int) -> "Crowd":
        """Open a run and its followers, and return when they all wait."""
        connection = await Connection.open(server.port)
        hold = {"gate": "crowd", "events": CROWD_EVENTS}
        submitted = (await connection.send(post("hold", background=True, hold=hold))).expect(202)
        path = f"/api/invocations/{json.loads(submitted.body)['id']}/events"
        followers = [_follow(await Connection.open(server.port), path) for _ in range(count)]
        await asyncio.gather(*(opened for opened, _ in followers))
        await asyncio.sleep(SETTLE_SECONDS)
        connection.close()
        return cls(server, [ended for _, ended in followers])

    async def frames_a_second(self) -> float:
        """Open the gate and return how many frames a second arrived, all followers together."""
        connection = await Connection.open(self._server.port)
        begin = clock()
        await connection.send(post("open", gate="crowd"))
        for reply in await asyncio.gather(*self._followers):
            reply.expect(200)
        connection.close()
        return CROWD_EVENTS * len(self._followers) / (clock() - begin)


def _follow(connection: Connection, path: str) -> tuple["asyncio.Future[None]", "asyncio.Future[Reply]"]:
    """Follow a run; the first future is done when the stream is open, the second when it ended."""
    opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    connection.watch = lambda _: None if opened.done() else opened.set_result(None)
    return opened, connection.send(get(path))


async def _remote_milliseconds(home: Served, other: Served) -> float:
    """Return the median time from an event's making in one process to its arrival from another."""
    at_home, away = await Connection.open(home.port), await Connection.open(other.port)
    hold = {"gate": "remote", "events": REMOTE_EVENTS, "every": REMOTE_EVERY_SECONDS}
    submitted = (await at_home.send(post("hold", background=True, hold=hold))).expect(202)
    delays: list[float] = []

    def arrived(frames: bytes) -> None:
        now = time.monotonic()
        delays.extend(now - json.loads(data)["at"] for data in _made(frames))

    opened, ended = _follow(away, f"/api/invocations/{json.loads(submitted.body)['id']}/events")
    await opened
    away.watch = arrived
    await at_home.send(post("open", gate="remote"))
    (await ended).expect(200)
    return 1000 * statistics.median(delays)


def _made(frames: bytes) -> list[bytes]:
    return [line.removeprefix(DATA) for line in frames.split(b"\n") if line.startswith(DATA + b'{"at"')]
