"""The event loop of programs without asyncio: one a process, whoever asks for it first."""

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from outlast.core import portal as portals
from outlast.core.portal import Portal, portal


async def forty_two() -> int:
    return 42


def in_child(work: Callable[[], Any], seconds: float = 30) -> int:
    """Do something in a forked process and return its exit code; a process that hangs is killed."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    give_up = time.monotonic() + seconds
    while (ended := os.waitpid(pid, os.WNOHANG))[0] == 0:
        if time.monotonic() > give_up:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
    return os.waitstatus_to_exitcode(ended[1])


def test_threads_that_ask_at_once_share_one(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(Portal):
        def __init__(self) -> None:
            time.sleep(0.1)
            super().__init__()

    monkeypatch.setattr(portals, "Portal", Slow)
    monkeypatch.setattr(portals, "_portals", {})
    found: list[Portal] = []
    threads = [threading.Thread(target=lambda: found.append(portal())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(map(id, found))) == 1


def test_a_forked_process_has_one_of_its_own() -> None:
    assert portal().call(forty_two()) == 42
    assert in_child(lambda: portal().call(forty_two())) == 0
    assert portal().call(forty_two()) == 42


def test_blocking_in_it_is_refused_instead_of_waiting_for_ever() -> None:
    async def block() -> None:
        await asyncio.sleep(0)
        portal().call(forty_two())

    with pytest.raises(RuntimeError, match="use the `async` method"):
        portal().call(block())
