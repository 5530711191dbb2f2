"""The warm process of the kill harness: imports everything once, then forks one child a case.

Not `multiprocessing`'s fork server: there is one of those a process with one list of preloads, it hides
failed imports, and its children import the parent's main module again (70 ms under the `pytest` command).
"""

import contextlib
import importlib
import json
import os
import selectors
import signal
import socket
import sys
from pathlib import Path

from outlast.testing import _case

READY = b"ready\n"
MESSAGE_BYTES = 4096


class Warm:
    """Serve the parent at the other end of `control` until it goes away."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._cases: dict[int, socket.socket] = {}
        self._wakeup, self._signals = socket.socketpair()
        for end in (self._wakeup, self._signals):
            end.setblocking(False)

    def serve(self) -> None:
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(self._signals.fileno(), warn_on_full_buffer=False)
        with selectors.DefaultSelector() as selector:
            selector.register(self._control, selectors.EVENT_READ, self._take_case)
            selector.register(self._wakeup, selectors.EVENT_READ, self._report)
            while all(key.data() for key, _ in selector.select()):
                pass
        self._kill_all()

    def _take_case(self) -> bool:
        """Fork a child for the next case; tell whether the parent is still there."""
        message, descriptors, _, _ = socket.recv_fds(self._control, MESSAGE_BYTES, 1)
        if not message:
            return False
        channel = socket.socket(fileno=descriptors[0])
        pid = os.fork()
        if pid == 0:
            self._become_case(Path(message.decode()), channel)
        self._cases[pid] = channel
        _tell(channel, f"started {pid}")
        return True

    def _become_case(self, folder: Path, channel: socket.socket) -> None:
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for other in (self._control, self._wakeup, self._signals, *self._cases.values()):
                other.close()
            code = _case.run(folder, channel)
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else int(error.code is not None)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def _report(self) -> bool:
        with contextlib.suppress(BlockingIOError):
            self._wakeup.recv(MESSAGE_BYTES)
        for pid, channel in list(self._cases.items()):
            changed, status = os.waitpid(pid, os.WNOHANG | os.WUNTRACED)
            if not changed:
                continue
            if os.WIFSTOPPED(status):
                _tell(channel, "stopped")
            else:
                self._end(pid, os.waitstatus_to_exitcode(status))
        return True

    def _end(self, pid: int, exit_code: int) -> None:
        """Kill what the case started and left behind, and report."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        with self._cases.pop(pid) as channel:
            _tell(channel, f"ended {exit_code}")

    def _kill_all(self) -> None:
        for pid in self._cases:
            os.kill(pid, signal.SIGKILL)
        for pid in list(self._cases):
            _, status = os.waitpid(pid, 0)
            self._end(pid, os.waitstatus_to_exitcode(status))


def _tell(channel: socket.socket, news: str) -> None:
    with contextlib.suppress(BrokenPipeError):
        channel.sendall(f"{news}\n".encode())


def main(control: int, imports: str) -> None:
    """Import the libraries that a JSON file lists as far as they can be, then what it says to preload; then serve."""
    wanted = json.loads(Path(imports).read_text())
    with socket.socket(fileno=control) as connection:
        for name in wanted["libraries"]:
            with contextlib.suppress(Exception):
                importlib.import_module(name)
        for reference in wanted["preload"]:
            _case.load(reference)
        connection.sendall(READY)
        Warm(connection).serve()
