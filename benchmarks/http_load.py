"""Whole requests over HTTP: outlast directly after the floor, again and again, each under the same load."""

import asyncio
import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks import servers
from benchmarks.commits import Timer
from benchmarks.load import Connection, Load, Reply, Step, clock, drive, get, post
from benchmarks.measures import Database, Results, Sample
from benchmarks.servers import Served

WARM_UP_CLIENTS = 8
POLL_SECONDS = 0.05
MANY = 64


async def sync(connection: Connection, kind: str = "awaited") -> Reply:
    reply = await connection.send(post(kind))
    return reply.expect(200, b'"completed"')


async def stream(connection: Connection) -> Reply:
    reply = await connection.send(post("awaited", stream=True))
    assert reply.first is not None
    return reply.expect(200, b'"ev-9"').expect(200, b"event: end")


async def submit(connection: Connection, kind: str = "queued") -> Reply:
    reply = await connection.send(post(kind, background=True))
    return reply.expect(202)


async def background(connection: Connection) -> Reply:
    """Submit, and ask until the run is final; the reply is timed from the first request to the last answer."""
    begin = clock()
    submitted = await submit(connection, "awaited")
    path = f"/api/invocations/{json.loads(submitted.body)['id']}"
    while b'"completed"' not in (reply := (await connection.send(get(path))).expect(200)).body:
        await asyncio.sleep(POLL_SECONDS)
    reply.seconds = clock() - begin
    return reply


@dataclass(frozen=True, slots=True)
class Phase:
    """One kind of load, and the figures that come from it. `idle` servers accept runs and start none."""

    clients: int
    step: Step
    figures: Mapping[str, Callable[[Load], float]]
    idle: bool = False


PHASES: Sequence[Phase] = (
    Phase(1, sync, {"sync_c1": lambda load: load.milliseconds}),
    Phase(1, partial(sync, kind="posted"), {"posted_c1": lambda load: load.milliseconds}),
    Phase(1, stream, {"first_c1": lambda load: load.first_milliseconds}),
    Phase(1, submit, {"submit_c1": lambda load: load.milliseconds}, idle=True),
    Phase(MANY, sync, {"sync_c64": lambda load: load.rate, "sync_c64_cpu": lambda load: load.cpu_milliseconds}),
    Phase(MANY, partial(sync, kind="posted"), {"posted_c64": lambda load: load.rate}),
    Phase(MANY, stream, {"stream_c64": lambda load: load.rate, "first_c64": lambda load: load.first_milliseconds}),
    Phase(MANY, submit, {"submit_c64": lambda load: load.rate}, idle=True),
    Phase(MANY, background, {"background_c64": lambda load: load.rate}),
)


@dataclass(frozen=True, slots=True)
class Rival:
    """The servers on one database, and raw commits to compare them with."""

    database: Database
    running: Served
    idle: Served
    commits: Timer


@contextlib.contextmanager
def rival(database: Database, new_url: Callable[[], str], commits: Timer, folder: Path) -> Iterator[Rival]:
    """Start both servers of a database. They have a database each: the running one would take the other's runs."""
    with contextlib.ExitStack() as stack:
        running = stack.enter_context(servers.outlast(new_url(), folder))
        idle = stack.enter_context(servers.outlast(new_url(), folder, concurrency=0))
        yield Rival(database, running, idle, commits)


async def warm_up(floor: Served, rivals: Sequence[Rival], seconds: float) -> None:
    for server in (floor, *(rival.running for rival in rivals)):
        for step in (sync, stream, partial(sync, kind="posted")):
            await drive(server.port, WARM_UP_CLIENTS, step, seconds=seconds / 3)


async def measure(floor: Served, rivals: Sequence[Rival], seconds: float, results: Results) -> None:
    """Do every phase once: the floor, a database, the floor, the next database."""
    for phase in PHASES:
        for rival in rivals:
            commit = rival.commits.milliseconds()
            below = await _loaded(floor, phase, seconds)
            above = await _loaded(rival.idle if phase.idle else rival.running, phase, seconds)
            for key, figure in phase.figures.items():
                results.add(key, rival.database, Sample(figure(above), figure(below), commit))


async def _loaded(server: Served, phase: Phase, seconds: float) -> Load:
    before = server.cpu_seconds()
    load = await drive(server.port, phase.clients, phase.step, seconds=seconds)
    load.cpu_seconds = server.cpu_seconds() - before
    return load
