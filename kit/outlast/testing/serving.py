"""A real server for tests: in a thread of the test's process, or in a process that can be stopped and killed."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import uvicorn

from outlast.core.errors import OutlastError
from outlast.testing._ports import LOOPBACK, free_port

START_SECONDS = 60.0
STOP_SECONDS = 60.0
POLL_SECONDS = 0.02
CUT_SECONDS = 1  # for streams that a test left open
KEEP_ALIVE_SECONDS = 60  # a test that holds the loop for long must not find its idle connections closed


class ServerNotStarted(OutlastError):
    """A server did not come up; the text has its log."""

    code = "test_server"


class ServerThread:
    """Serve an ASGI app by uvicorn in a thread. `url` is its address within the `with` block."""

    def __init__(self, app: Any, **options: Any) -> None:
        self._socket = socket.create_server((LOOPBACK, 0), backlog=1024)
        self.url = f"http://{LOOPBACK}:{self._socket.getsockname()[1]}"
        config = {
            "log_level": "warning",
            "lifespan": "on",
            "ws": "none",
            "timeout_graceful_shutdown": CUT_SECONDS,
            "timeout_keep_alive": KEEP_ALIVE_SECONDS,
        }
        self.server = uvicorn.Server(uvicorn.Config(app, **{**config, **options}))
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        with contextlib.suppress(SystemExit):  # the lifespan failed; `__enter__` notices
            self.server.run([self._socket])

    def __enter__(self) -> Self:
        self._thread.start()
        give_up = time.monotonic() + START_SECONDS
        while not self.server.started:
            if not self._thread.is_alive() or time.monotonic() > give_up:
                raise ServerNotStarted("the app did not start")
            time.sleep(POLL_SECONDS)
        return self

    def __exit__(self, *_: object) -> None:
        self.server.should_exit = True
        self._thread.join(STOP_SECONDS)
        self._socket.close()
        assert not self._thread.is_alive(), "the server does not stop"


class ServerProcess:
    """Run `command` in a process of its own; it is killed at the end of the `with` block.

    `{port}` in the command is replaced by a free port, which stays the same over `start`.
    """

    def __init__(
        self, command: Sequence[str], *, log: Path, env: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> None:
        port = free_port()
        self.url = f"http://{LOOPBACK}:{port}"
        self.log = log
        self._command = [part.replace("{port}", str(port)) for part in command]
        self._env, self._cwd = {**os.environ, **(env or {})}, cwd
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    def serving(cls, target: str, store_url: str, *options: str, log: Path, **more: Any) -> Self:
        """Make one for `outlast serve`."""
        command = [sys.executable, "-c", "from outlast.cli import main; main()", "serve", target, "--port", "{port}"]
        return cls([*command, "--store", store_url, *options], log=log, **more)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> Self:
        """Start it and return when it is ready."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                env=self._env,
                cwd=self._cwd,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        give_up = time.monotonic() + START_SECONDS
        while not self._ready():
            if self._process.poll() is not None or time.monotonic() > give_up:
                self.kill()
                raise ServerNotStarted(self.log.read_text("utf-8", "replace"))
            time.sleep(POLL_SECONDS)
        return self

    def _ready(self) -> bool:
        try:
            return httpx.get(f"{self.url}/readyz", timeout=START_SECONDS).status_code == httpx.codes.OK
        except httpx.TransportError:
            return False

    def terminate(self) -> None:
        """Ask it to stop, as a deploy does."""
        os.kill(self.pid, signal.SIGTERM)

    def wait(self, timeout: float = STOP_SECONDS) -> int:
        """Return its exit code. Raise subprocess.TimeoutExpired when it does not end."""
        assert self._process is not None
        return self._process.wait(timeout)

    def kill(self) -> None:
        """Kill it, as a crash does, with the workers it has."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            self._process.wait()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        self.kill()
