"""What `outlast doctor` looks at, each with a fix for what it finds."""

import contextlib
import importlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import socket
import sqlite3
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from outlast.adapters import servers
from outlast.cli import target as targets
from outlast.cli.access import PATIENCE_SECONDS, client
from outlast.cli.output import duration, size
from outlast.cli.workers import state as worker_state
from outlast.core.errors import OutlastError
from outlast.core.integrations import INTEGRATIONS
from outlast.core.times import shown
from outlast.engine.settings import default_state_dir
from outlast.server import Config
from outlast.store import Store
from outlast.store.migrate import HEAD
from outlast.store.overview import Overview
from outlast.store.url import StoreURL, file_of, file_system, is_remote, parse

OLDEST_PYTHON = (3, 11)
OLDEST_SQLITE = (3, 38, 0)
LITTLE_BYTES, TOO_LITTLE_BYTES = 1 << 30, 64 << 20
SKEW_SECONDS = 5.0
BUILT = 1_760_000_000
"""Seconds since 1970: no right clock shows an earlier time."""

_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)(?:\[[^]]*\])?>=([0-9.]+)(.*)")


class State(StrEnum):
    """How bad it is."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found, and what to do about it."""

    check: str
    state: State
    message: str
    fix: str | None = None


def _ok(check: str, message: str) -> Finding:
    return Finding(check, State.OK, message)


def python() -> Iterator[Finding]:
    """Look at the interpreter and at the SQLite in it."""
    version = f"{platform.python_implementation()} {platform.python_version()}"
    if sys.version_info < OLDEST_PYTHON:
        yield Finding("python", State.ERROR, version, "install Python 3.11 or newer, and outlast in it")
    else:
        yield _ok("python", version)
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        fix = "use a Python that comes with SQLite 3.38 or newer, or a PostgreSQL store"
        yield Finding("python", State.ERROR, f"SQLite {sqlite3.sqlite_version} is too old", fix)


def packages() -> Iterator[Finding]:
    """Compare what is installed with what outlast needs, and with what its extras need where they are used."""
    try:
        distribution = importlib.metadata.distribution("outlast")
    except importlib.metadata.PackageNotFoundError:
        yield Finding("packages", State.WARNING, "outlast is not installed as a package", "pip install outlast")
        return
    wrong = list(_wrong_packages(distribution.requires or []))
    yield from wrong
    if not wrong:
        yield _ok("packages", f"outlast {distribution.version} has what it needs")


def _wrong_packages(requirements: list[str]) -> Iterator[Finding]:
    seen = set()
    for requirement in requirements:
        found = _REQUIREMENT.match(requirement)
        if found is None or found[1] in seen or "extra == 'dev'" in found[3]:
            continue
        name, least, marker = found.groups()
        seen.add(name)
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            if ";" not in marker:
                yield Finding("packages", State.ERROR, f"{name} is missing", f"pip install '{name}>={least}'")
            continue
        if _numbers(version) < _numbers(least):
            fix = f"pip install --upgrade '{name}>={least}'"
            yield Finding("packages", State.ERROR, f"{name} {version} is older than {least}", fix)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:3])


def adapters() -> Iterator[Finding]:
    """See for each integration whether its framework is there, and has what the adapter builds on."""
    for point in sorted(importlib.metadata.entry_points(group=INTEGRATIONS), key=lambda point: point.name):
        try:
            importlib.import_module(point.module)
            if importlib.util.find_spec(f"{point.module}.seams") is not None:
                importlib.import_module(f"{point.module}.seams").check()
        except ModuleNotFoundError as error:
            yield Finding("adapters", State.NOTE, f"{point.name} cannot be used: {error}", None)
        except Exception as error:  # noqa: BLE001 - a framework may fail in any way when it is imported
            fix = f"install a version that outlast knows: pip install --upgrade 'outlast[{point.name}]'"
            yield Finding("adapters", State.ERROR, f"{point.name}: {type(error).__name__}: {error}", fix)
        else:
            yield _ok("adapters", f"{point.name} is covered")


def agents(target: str) -> Iterator[Finding]:
    """Load what is to be served, and see what happens to its runs when a worker dies."""
    try:
        found = targets.load(target).agents.handlers()
    except OutlastError as error:
        yield Finding("agent", State.ERROR, str(error), "mend the target; `outlast serve` would say the same")
        return
    for name, handlers in found.items():
        if handlers.recover is None:
            fix = "decorate a function with @app.recover"
            yield Finding("agent", State.WARNING, f"{name}: a run whose worker dies ends failed", fix)
        else:
            yield _ok("agent", f"{name} recovers" + (" and resumes" if handlers.resume is not None else ""))


def tools(config: Config) -> Iterator[Finding]:
    """Ask each declared server for its tools."""
    for one in config.file.tools:
        try:
            found = servers.tools(one, config.folder)
        except OutlastError as error:
            fix = f"start it, or see [[tools]] {one.name!r} in {config.path.name}"
            yield Finding("tools", State.ERROR, str(error), fix)
        else:
            yield _ok("tools", f"{one.name} has {', '.join(tool.name for tool in found) or 'none'}")


async def store(url: str) -> AsyncIterator[Finding]:
    """See whether a store can be reached, read and written, without changing it."""
    try:
        place = None if url == "memory" else parse(url, create=False)
        revision = None if place is None else await Store.revision(url)
    except OutlastError as error:
        if (missing := file_of(url)) is not None and not missing.exists():
            yield Finding(
                "store", State.NOTE, f"there is none yet at {missing}", "`outlast serve` makes it when it starts"
            )
            for finding in _disk(missing):
                yield finding
            return
        yield Finding("store", State.ERROR, str(error), "see the URL: --store, or OUTLAST_STORE")
        return
    if place is None:
        fix = "name a file or a database: --store sqlite:///./.outlast/state.db"
        yield Finding("store", State.WARNING, "`memory` keeps nothing when its process ends", fix)
        return
    yield _ok("store", f"{place} can be reached")
    if place.path is not None:
        for finding in _disk(place.path):
            yield finding
    if revision != HEAD:
        known = f"has the schema {revision or 'none'}, and this version of outlast knows {HEAD}"
        fix = "`outlast store migrate`, or upgrade outlast if the store is newer"
        yield Finding("migrations", State.ERROR if revision else State.WARNING, f"it {known}", fix)
        return
    yield _ok("migrations", f"the schema {revision} is up to date")
    async for finding in _opened(url, place):
        yield finding


async def _opened(url: str, place: StoreURL) -> AsyncIterator[Finding]:
    try:
        opened = await Store.open(url, upgrade=False)
    except OutlastError as error:
        yield Finding("store", State.ERROR, str(error), "see the log of the database")
        return
    try:
        yield await _written(opened)
        seen = await opened.read.overview()
        yield _clock(seen, place)
        states = [worker_state(one) for one in await opened.read.working()]
    except OutlastError as error:
        yield Finding("store", State.ERROR, str(error), "see the log of the database")
        return
    finally:
        await opened.close()
    living = sum(state in ("alive", "stalled") for state in states)
    if seen.oldest_unfinished is not None and not living:
        waits = duration((seen.now - seen.oldest_unfinished) / 1000)
        fix = "start one: `outlast serve TARGET` with this store"
        yield Finding("workers", State.WARNING, f"runs wait since {waits}, and no worker lives", fix)
    elif "stalled" in states:
        fix = "the log of the worker names the line that blocks; use `async` calls or a `def` tool there"
        yield Finding("workers", State.WARNING, "the event loop of a worker is blocked", fix)
    else:
        yield _ok("workers", f"{living} live")


async def _written(opened: Store) -> Finding:
    try:
        await opened.check_writable()
    except OutlastError as error:
        fix = "see the permissions of the file and its folder, or of the database user, and the free space"
        return Finding("store", State.ERROR, str(error), fix)
    return _ok("store", "it can be written")


def _disk(file: Path) -> Iterator[Finding]:
    folder = next(one for one in (file.parent, *file.parents) if one.is_dir())
    if not os.access(folder, os.W_OK | os.X_OK):
        fix = f"let this user write there, or choose another file: chmod u+wx {folder}"
        yield Finding("file system", State.ERROR, f"{folder} cannot be written", fix)
    free = shutil.disk_usage(folder).free
    kind = file_system(folder) or "of an unknown kind"
    if is_remote(kind):
        fix = "use a local disk, or PostgreSQL"
        yield Finding("file system", State.ERROR, f"{folder} is {kind}, where SQLite's locks are not reliable", fix)
    if free < LITTLE_BYTES:
        state = State.ERROR if free < TOO_LITTLE_BYTES else State.WARNING
        fix = "free some space, or have old runs deleted: `outlast store prune --older-than 7d`"
        yield Finding("file system", state, f"{folder} has {size(free)} left", fix)
    else:
        yield _ok("file system", f"{folder} is {kind}, with {size(free)} left")


def locks() -> Iterator[Finding]:
    """See whether workers can have lock files, by which a death is noticed at once."""
    folder = default_state_dir()
    parent = folder if folder.is_dir() else folder.parent
    if os.access(parent, os.W_OK | os.X_OK):
        yield _ok("lock files", f"can be made in {folder}")
    else:
        fix = "set TMPDIR to a folder that can be written, the same one for all workers of this machine"
        yield Finding("lock files", State.WARNING, f"{folder} cannot be written: deaths are noticed later", fix)


def _clock(seen: Overview, place: StoreURL) -> Finding:
    """Nothing is decided by clocks; but people compare the times that they are shown."""
    here = time.time()
    if here < BUILT:
        fix = "set it, by NTP if possible"
        return Finding("clock", State.WARNING, f"it shows {shown(round(here * 1000))}", fix)
    skew = seen.now / 1000 - here
    if abs(skew) > SKEW_SECONDS and not place.is_sqlite:
        told = f"the database is {duration(abs(skew))} {'ahead' if skew > 0 else 'behind'}"
        return Finding("clock", State.WARNING, told, "set both clocks by NTP")
    return _ok("clock", "agrees with the database")


def port(host: str, number: int) -> Iterator[Finding]:
    """See whether a server can listen."""
    with contextlib.closing(socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)) as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind((host, number))
        except OSError as error:
            fix = "end what listens there, or `outlast serve --port` with another one"
            yield Finding("port", State.WARNING, f"{host}:{number}: {error.strerror}", fix)
        else:
            yield _ok("port", f"{host}:{number} is free")


async def server(url: str) -> AsyncIterator[Finding]:
    """Ask a server who it is."""
    mine = importlib.metadata.version("outlast")
    try:
        async with client(url, patience=PATIENCE_SECONDS) as asked:
            found = await asked.describe()
    except OutlastError as error:
        yield Finding("server", State.ERROR, f"{url}: {error}", "start it by `outlast serve`, or see --url")
        return
    names = ", ".join(agent["name"] for agent in found["agents"])
    if found["version"] != mine:
        told = f"{url} is outlast {found['version']}, and this is {mine}"
        yield Finding("server", State.WARNING, told, "use the same version in both places")
    else:
        yield _ok("server", f"{url} answers, with {names}")
