"""What happens inside a case of the kill harness: the forked child.

Everything the parent must know after a SIGKILL is in files of the case's folder; the channel carries
only `held` to the parent and the release back, so a parent that does not listen blocks nobody.
"""

import asyncio
import faulthandler
import importlib
import importlib.util
import inspect
import json
import os
import re
import resource
import signal
import socket
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import CoroutineType, ModuleType
from typing import Any, Literal, Self

from outlast.core import faults

FaultKind = Literal["kill", "hold", "stop"]
HELD = b"held\n"
FILE_MODULE_PREFIX = "outlast_scenario_"


@dataclass(frozen=True, slots=True)
class Fault:
    kind: FaultKind
    point: str
    nth: int


@dataclass(frozen=True, slots=True)
class Request:
    """Say what a case does; travels to the child as a JSON file."""

    scenario: str
    arguments: dict[str, Any]
    faults: list[Fault] = field(default_factory=list)
    timeout_seconds: float = 0.0

    def save(self, folder: Path) -> None:
        (folder / "request.json").write_text(json.dumps(asdict(self)))

    @classmethod
    def load(cls, folder: Path) -> Self:
        fields = json.loads((folder / "request.json").read_text())
        return cls(**{**fields, "faults": [Fault(**fault) for fault in fields["faults"]]})


class Recorder:
    """Write down every point that is reached, and carry out the faults there."""

    def __init__(self, faults: list[Fault], folder: Path, channel: socket.socket) -> None:
        self._faults = faults
        self._file, self._entered = (_appending(folder / name) for name in ("reached", "entered"))
        self._channel = channel
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def __call__(self, point: str) -> None:
        with self._lock:
            self._counts[point] += 1
            nth = self._counts[point]
            os.write(self._file, f"{point}\n".encode())
        for fault in self._faults:
            if (fault.point, fault.nth) == (point, nth):
                self._carry_out(fault.kind)

    def entered(self, key: str, name: str, repeatable: bool) -> None:
        """Write down that the body of a tool call was entered."""
        os.write(self._entered, f"{json.dumps([key, name, repeatable])}\n".encode())

    def _carry_out(self, kind: FaultKind) -> None:
        if kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif kind == "stop":
            # To this thread: one for the process may be taken by another, and this one would go on for a moment.
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
        else:
            self._channel.sendall(HELD)
            self._channel.recv(1)


def run(folder: Path, channel: socket.socket) -> int:
    """Carry out the request of a folder, leave `result.json` or `error` there, and return the exit code."""
    try:
        _detach(folder)
        request = Request.load(folder)
        recorder = Recorder(request.faults, folder, channel)
        faults.install(recorder, recorder.entered)
        result = json.dumps(_call(request))
    except SystemExit:
        raise
    except BaseException:  # noqa: BLE001 (end of the process; CancelledError has no other reader)
        (folder / "error").write_text(traceback.format_exc())
        return 1
    (folder / "result.json").write_text(result)
    return 0


def load(reference: str) -> ModuleType:
    """Import a module by its name, or a file by its path, once a process."""
    if not reference.endswith(".py"):
        return importlib.import_module(reference)
    path = Path(reference).resolve()
    name = FILE_MODULE_PREFIX + re.sub(r"\W", "_", str(path))
    return sys.modules.get(name) or _load_file(name, path)


def _load_file(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _appending(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def _detach(folder: Path) -> None:
    log = _appending(folder / "log")
    os.setsid()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    faulthandler.enable(log)


def _call(request: Request) -> Any:
    module, _, name = request.scenario.rpartition(":")
    function: Callable[..., Any] = getattr(load(module), name)
    value = function(**request.arguments)
    return asyncio.run(_watched(value, request.timeout_seconds)) if inspect.iscoroutine(value) else value


async def _watched(work: Coroutine[Any, Any, Any], timeout_seconds: float) -> Any:
    asyncio.get_running_loop().call_later(timeout_seconds, _print_tasks)
    return await work


def _print_tasks() -> None:
    """Show where the tasks wait; no thread's stack tells, and `Task.print_stack` knows only the outermost frame."""
    for task in asyncio.all_tasks():
        print(
            f"Task {task.get_name()} (most recent call last):", *_awaits(task.get_coro()), sep="\n  ", file=sys.stderr
        )


def _awaits(awaited: object) -> Iterator[str]:
    while isinstance(awaited, CoroutineType) and awaited.cr_frame:
        code = awaited.cr_code
        yield f'File "{code.co_filename}", line {awaited.cr_frame.f_lineno} in {code.co_name}'
        awaited = awaited.cr_await
