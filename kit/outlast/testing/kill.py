"""Run scenarios in processes of their own that die, or stand still, at a named fault point.

A warm process imports everything once and forks for each case, so a case costs milliseconds.
"""

import contextlib
import inspect
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from outlast.core import faults
from outlast.core.errors import OutlastError
from outlast.testing import _case, _warm

Scenario = str | Callable[..., Any]
"""A module-level function, plain or async: itself, or `"package.module:name"`, or `"file.py:name"`."""

HANG_SECONDS = 60.0
READY_SECONDS = 60.0
STOP_SECONDS = 10.0
GRACE_SECONDS = 0.5  # after its time is up, for an async case to print its tasks
ABORT_SECONDS = 5.0
# Imported when an engine or tables are made, in each child again: most of the time of a case.
LATE = ("sqlalchemy.dialects.sqlite.pysqlite", "sqlalchemy.dialects.postgresql.psycopg", "psycopg", "alembic.command")
BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from outlast.testing import _warm; _warm.main(int(sys.argv[2]), sys.argv[3])"
)


class HarnessError(OutlastError):
    """The kill harness could not do what a test asked of it."""

    code = "kill_harness"


class FaultNotReached(HarnessError):
    """A scenario ended without coming to the point where it was to be killed or held."""


class ScenarioFailed(HarnessError):
    """A scenario raised, or its process ended without a result; the text has the traceback or the log."""


class ScenarioHung(HarnessError):
    """A scenario outlived its time and was killed; the text has the stacks of its threads and asyncio tasks."""


@dataclass(frozen=True, slots=True)
class _At:
    point: str
    nth: int = 1

    def __post_init__(self) -> None:
        if self.point not in faults.POINTS:
            raise ValueError(f"there is no fault point {self.point!r}")
        if self.nth < 1:
            raise ValueError("points are counted from 1")


@dataclass(frozen=True, slots=True)
class KillAt(_At):
    """Let the process SIGKILL itself when it reaches a point for the n-th time."""


@dataclass(frozen=True, slots=True)
class HoldAt(_At):
    """Block the thread that reaches a point for the n-th time; the other threads of the process go on."""


@dataclass(frozen=True, slots=True)
class StopAt(_At):
    """Stop the whole process by SIGSTOP when it reaches a point for the n-th time."""


_KINDS: dict[type[_At], _case.FaultKind] = {KillAt: "kill", HoldAt: "hold", StopAt: "stop"}


@dataclass(frozen=True, slots=True)
class Entered:
    """A tool call whose body was entered: its key, the tool, and whether another attempt may enter it again."""

    key: str
    name: str
    repeatable: bool


@dataclass(frozen=True, slots=True)
class Ended:
    """Tell how a case ended: the exit code, the points it reached in order, and what it printed."""

    exit_code: int
    reached: tuple[str, ...]
    log: str
    error: str | None
    value: Any = None
    entered: tuple[Entered, ...] = ()
    """The bodies of tool calls that were entered, in order."""

    @property
    def killed(self) -> bool:
        return self.exit_code == -signal.SIGKILL

    @property
    def result(self) -> Any:
        """Return what the scenario returned, None if it was killed; raise ScenarioFailed if it failed."""
        if self.error is not None:
            raise ScenarioFailed(self.error)
        return self.value


class Child:
    """A running case."""

    def __init__(self, folder: Path, channel: socket.socket, request: _case.Request) -> None:
        self._folder = folder
        self._channel = channel
        self._request = request
        self._deadline = time.monotonic() + request.timeout_seconds + GRACE_SECONDS
        self._unread = b""
        self._held_by: str | None = None
        self._ended: Ended | None = None
        self.pid = 0
        while not self.pid:
            self._listen(self._deadline)

    def wait_held(self) -> None:
        """Return when the case stands still; raise FaultNotReached if it ends first, ScenarioHung if neither comes."""
        while not self._held_by:
            if self._ended:
                raise FaultNotReached(f"{self._request.scenario} was not held; it ended: {self._ended}")
            self._listen_or_abort()

    def freeze(self) -> None:
        """Stop the whole process by SIGSTOP, wherever it is."""
        self.send_signal(signal.SIGSTOP)
        self.wait_held()

    def release(self) -> None:
        """Let a case go on that is held, stopped or frozen."""
        self.wait_held()
        if self._held_by == "stopped":
            self.send_signal(signal.SIGCONT)
        else:
            self._channel.sendall(b"\n")
        self._held_by = None

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the process unless it has ended."""
        if not self._ended:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> Ended:
        """Kill the process from outside, and return when it is gone."""
        self.send_signal(signal.SIGKILL)
        return self.wait()

    def wait(self) -> Ended:
        """Return how the case ended; raise ScenarioHung when its time is up first."""
        while not self._ended:
            self._listen_or_abort()
        return self._ended

    def _listen_or_abort(self) -> None:
        try:
            self._listen(self._deadline)
        except TimeoutError:
            self._abort()
            raise ScenarioHung(
                f"{self._request.scenario} did not end in {self._request.timeout_seconds} s; "
                f"it reached {list(self._reached())}\n{self._read('log')}"
            ) from None

    def _abort(self) -> None:
        """Make faulthandler write the stacks, which it does on SIGABRT, and see the process dead."""
        self.send_signal(signal.SIGCONT)
        self.send_signal(signal.SIGABRT)
        try:
            self._listen_until_ended(time.monotonic() + ABORT_SECONDS)
        except TimeoutError:
            self.send_signal(signal.SIGKILL)
            self._listen_until_ended(time.monotonic() + STOP_SECONDS)

    def _listen_until_ended(self, deadline: float) -> None:
        while not self._ended:
            self._listen(deadline)

    def _listen(self, deadline: float) -> None:
        """Take in what the case and the warm process have to say next."""
        self._channel.settimeout(max(deadline - time.monotonic(), 0.001))
        received = self._channel.recv(_warm.MESSAGE_BYTES)
        if not received:
            raise HarnessError(f"the warm process is gone; {self._request.scenario} with it")
        *lines, self._unread = (self._unread + received).split(b"\n")
        for line in lines:
            self._note(*line.decode().split())

    def _note(self, news: str, number: str = "") -> None:
        match news:
            case "started":
                self.pid = int(number)
            case "ended":
                self._ended = self._read_ended(int(number))
                self._channel.close()
            case _:
                self._held_by = news

    def _read_ended(self, exit_code: int) -> Ended:
        error = self._read("error") or None
        if not error and exit_code not in (0, -signal.SIGKILL):
            error = f"the process ended with exit code {exit_code}\n{self._read('log')}"
        value = json.loads(self._read("result.json") or "null")
        entered = tuple(Entered(*json.loads(line)) for line in self._read("entered").splitlines())
        return Ended(exit_code, self._reached(), self._read("log"), error, value, entered)

    def _reached(self) -> tuple[str, ...]:
        return tuple(self._read("reached").splitlines())

    def _read(self, name: str) -> str:
        path = self._folder / name
        return path.read_text("utf-8", "replace") if path.exists() else ""


class KillHarness:
    """Run scenarios in child processes within a `with` block; what is still running at its end is killed.

    `preload` names modules, and `.py` files, that the children find imported, besides what a store needs;
    `preload=[__file__]` warms a test file with all its imports. `libraries` are modules that are imported as far as
    they can be. A case that takes longer than `timeout_seconds` is
    aborted. Each case is a process group: when its process ends, what it started ends too.
    """

    def __init__(
        self,
        *,
        preload: Sequence[str] = (),
        libraries: Sequence[str] = (),
        timeout_seconds: float = HANG_SECONDS,
    ) -> None:
        self._libraries = [*libraries, *LATE]
        self._preload = [_absolute(reference) for reference in preload]
        self._timeout_seconds = timeout_seconds
        self._lock = threading.Lock()
        self._children: list[Child] = []

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory(prefix="outlast-kill-")
        self._control, theirs = socket.socketpair()
        try:
            with theirs:
                self._process = self._spawn(theirs.fileno())
        except OSError:
            self._control.close()
            self._folder.cleanup()
            raise
        if not self._is_ready():
            raise HarnessError(f"the warm process did not start:\n{self._close_and_read_log()}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def start(
        self,
        scenario: Scenario,
        arguments: Mapping[str, Any] | None = None,
        *,
        kill: KillAt | None = None,
        hold: HoldAt | StopAt | None = None,
        timeout_seconds: float | None = None,
    ) -> Child:
        """Start a scenario with JSON keyword arguments, and return the running case."""
        planned = [_case.Fault(_KINDS[type(at)], at.point, at.nth) for at in (kill, hold) if at]
        request = _case.Request(
            _reference(scenario), dict(arguments or {}), planned, timeout_seconds or self._timeout_seconds
        )
        folder = Path(tempfile.mkdtemp(dir=self._folder.name))
        request.save(folder)
        ours, theirs = socket.socketpair()
        with theirs, self._lock:
            socket.send_fds(self._control, [str(folder).encode()], [theirs.fileno()])
            child = Child(folder, ours, request)
            self._children.append(child)
        return child

    def run(
        self,
        scenario: Scenario,
        arguments: Mapping[str, Any] | None = None,
        *,
        kill: KillAt | None = None,
        timeout_seconds: float | None = None,
    ) -> Ended:
        """Start a scenario and wait for its end; raise FaultNotReached when it was to be killed and was not."""
        ended = self.start(scenario, arguments, kill=kill, timeout_seconds=timeout_seconds).wait()
        if kill and not ended.killed:
            raise FaultNotReached(f"{_reference(scenario)} never reached {kill}; it ended: {ended}")
        return ended

    def trace(self, scenario: Scenario, arguments: Mapping[str, Any] | None = None) -> list[KillAt]:
        """Run a scenario undisturbed and return, in order, every place where it can be killed.

        Raise ScenarioFailed when it fails.
        """
        ended = self.run(scenario, arguments)
        if ended.error is not None:
            raise ScenarioFailed(ended.error)
        counts: Counter[str] = Counter()
        places = []
        for point in ended.reached:
            counts[point] += 1
            places.append(KillAt(point, counts[point]))
        return places

    def close(self) -> None:
        """Kill every case and the warm process."""
        self._close_and_read_log()

    def _close_and_read_log(self) -> str:
        self._control.close()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for child in self._children:
            child._channel.close()
        with self._folder as folder:
            return (Path(folder) / "log").read_text("utf-8", "replace")

    def _is_ready(self) -> bool:
        self._control.settimeout(READY_SECONDS)
        with contextlib.suppress(TimeoutError, ConnectionError):
            return self._control.recv(len(_warm.READY)) == _warm.READY
        return False

    def _spawn(self, control: int) -> subprocess.Popen[bytes]:
        # In a file, for the names of all that a large program imports are more than the system takes as an argument.
        imports = Path(self._folder.name) / "imports.json"
        imports.write_text(json.dumps({"libraries": self._libraries, "preload": self._preload}))
        command = [sys.executable, "-c", BOOT, json.dumps(sys.path), str(control), str(imports)]
        with (Path(self._folder.name) / "log").open("wb") as log:
            return subprocess.Popen(
                command,
                pass_fds=[control],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )


def _reference(scenario: Scenario) -> str:
    if isinstance(scenario, str):
        module, separator, name = scenario.rpartition(":")
        return _absolute(module) + separator + name
    if "." in scenario.__qualname__:
        raise ValueError(f"{scenario.__qualname__} is not a module-level function")
    return f"{inspect.getfile(scenario)}:{scenario.__name__}"


def _absolute(reference: str) -> str:
    return str(Path(reference).resolve()) if reference.endswith(".py") else reference
