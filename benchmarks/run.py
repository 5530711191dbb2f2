"""`make bench`: measure outlast against plain FastAPI and against raw commits, and print the table.

Each figure of outlast is taken directly after the same figure of the floor, so that the ratios stay usable on a machine
whose speed changes. Needs Linux; PostgreSQL is measured where its wheel is installed.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import uvloop
from benchmarks import commits, deaths, followers, http_load, imports, report, servers
from benchmarks.measures import DATABASES, Database, Results, Sample

from outlast.testing.postgres import PostgresServer, PostgresUnavailable

PARTS = ("http", "in_process", "followers", "deaths", "imports")


@dataclass(frozen=True, slots=True)
class Options:
    """How much is measured."""

    repeats: int
    seconds: float
    """Time of one load."""
    warm_up: float
    followers: int
    queued: int
    parts: Sequence[str]
    databases: Sequence[Database]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a database is: new ones on request, and raw commits into one of them."""

    new_url: Callable[[], str]
    commits: commits.Timer


def main() -> None:
    arguments = _parser().parse_args()
    options = _options(arguments)
    results = Results()
    found = {
        **report.surroundings(),
        "options": {field.name: getattr(options, field.name) for field in fields(options)},
    }
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="outlast-bench-", dir=arguments.folder)))
        places = _places(stack, folder, options.databases)
        try:
            _measure(options, folder, places, results)
        finally:
            print(report.table(results), flush=True)
            if arguments.output is not None:
                report.save(arguments.output, results, found)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Measure outlast against plain FastAPI and against raw commits.")
    parser.add_argument("--quick", action="store_true", help="a smoke run of a minute: every part once, and shortly")
    parser.add_argument("--repeats", type=int, help="how often everything is measured (default 3)")
    parser.add_argument("--seconds", type=float, help="time of one load (default 2)")
    parser.add_argument("--only", choices=PARTS, nargs="+", default=PARTS, help="measure these parts only")
    parser.add_argument("--database", choices=DATABASES, nargs="+", default=DATABASES, help="use these databases only")
    parser.add_argument("--output", type=Path, help="write the results, as JSON, to this file")
    parser.add_argument("--folder", type=Path, help="put SQLite's files below this folder (default: the system's)")
    return parser


def _options(arguments: argparse.Namespace) -> Options:
    quick: bool = arguments.quick
    return Options(
        repeats=arguments.repeats or (1 if quick else 3),
        seconds=arguments.seconds or (0.3 if quick else 2.0),
        warm_up=0.3 if quick else 3.0,
        followers=100 if quick else 1000,
        queued=500 if quick else 10_000,
        parts=arguments.only,
        databases=arguments.database,
    )


def _places(stack: contextlib.ExitStack, folder: Path, wanted: Sequence[Database]) -> Mapping[Database, Place]:
    """Open the databases that are to be had."""
    places: dict[Database, Place] = {}
    if "sqlite" in wanted:
        numbers = itertools.count(1)
        raw = stack.enter_context(commits.sqlite(folder / "raw.db"))
        places["sqlite"] = Place(lambda: f"sqlite:///{folder / f'{next(numbers)}.db'}", commits.Timer(raw))
    if "postgresql" in wanted:
        try:
            server = stack.enter_context(PostgresServer())
        except PostgresUnavailable as error:
            print(f"without PostgreSQL: {error}", file=sys.stderr)
        else:
            raw = stack.enter_context(commits.postgresql(server.create_database()))
            places["postgresql"] = Place(server.create_database, commits.Timer(raw))
    return places


def _measure(options: Options, folder: Path, places: Mapping[Database, Place], results: Results) -> None:
    for part in options.parts:
        match part:
            case "http":
                uvloop.run(_http(options, folder, places, results))
            case "imports":
                imports.measure(results)
            case _:
                for number, (database, place) in itertools.product(range(options.repeats), places.items()):
                    _say(f"{part} {database}, {number + 1} of {options.repeats}")
                    PARTS_OF_A_DATABASE[part](options, folder, database, place, results)


async def _http(options: Options, folder: Path, places: Mapping[Database, Place], results: Results) -> None:
    with contextlib.ExitStack() as stack:
        floor = stack.enter_context(servers.floor(folder))
        rivals = [
            stack.enter_context(http_load.rival(database, place.new_url, place.commits, folder))
            for database, place in places.items()
        ]
        await http_load.warm_up(floor, rivals, options.warm_up)
        for number in range(options.repeats):
            _say(f"http, {number + 1} of {options.repeats}")
            await http_load.measure(floor, rivals, options.seconds, results)


def _in_process(options: Options, folder: Path, database: Database, place: Place, results: Results) -> None:
    commit = place.commits.milliseconds()
    command = [sys.executable, "-m", "benchmarks.in_process", place.new_url(), place.new_url(), str(folder / "locks")]
    done = subprocess.run(
        [*command, str(options.queued)], cwd=servers.ROOT, check=True, stdout=subprocess.PIPE, text=True
    )
    for key, value in json.loads(done.stdout).items():
        results.add(key, database, Sample(value, commit=commit))


def _followers(options: Options, folder: Path, database: Database, place: Place, results: Results) -> None:
    uvloop.run(followers.measure(database, place.new_url, folder, options.followers, results))


def _deaths(options: Options, folder: Path, database: Database, place: Place, results: Results) -> None:
    asyncio.run(deaths.measure(database, place.new_url(), folder / "locks", results))


PARTS_OF_A_DATABASE: Mapping[str, Callable[[Options, Path, Database, Place, Results], None]] = {
    "in_process": _in_process,
    "followers": _followers,
    "deaths": _deaths,
}


def _say(text: str) -> None:
    print(f"measuring {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
