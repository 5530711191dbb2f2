"""Hear of a shutdown when it is asked for, not when the web server is done waiting for open connections.

uvicorn calls the lifespan's end only after every connection is closed, and streams are connections: without this, a
plain `uvicorn main:app` with an open stream would wait for ever.
"""

import contextlib
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)
SAME_SECONDS = 1.0
"""One request to stop may reach a worker twice: from the terminal, and as SIGTERM from the process above it."""

Handler = Callable[[int, FrameType | None], Any]


@contextlib.contextmanager
def watched(drain: Callable[[], None], hurry: Callable[[], None], *, longest_seconds: float) -> Iterator[None]:
    """Call `drain` when the process is asked to stop, and `hurry` when it is asked again.

    The handler that was there before is called too; uvicorn's only from the third time on, and then it waits for
    nothing. Does nothing outside the main thread, nor where nobody handles the signal. `longest_seconds` is how long
    `drain` may take to end the open connections; after it, uvicorn is told not to wait for them.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    asked = _Asked(drain, hurry)
    installed: dict[signal.Signals, tuple[Handler, Handler]] = {}
    for number in SIGNALS:
        before = signal.getsignal(number)
        if callable(before):
            handler = _chained(before, asked, longest_seconds)
            signal.signal(number, handler)
            installed[number] = handler, before
    try:
        yield
    finally:
        for number, (handler, before) in installed.items():
            if signal.getsignal(number) is handler:
                signal.signal(number, before)


class _Asked:
    """Counts how often somebody asked to stop, and not how many signals came of it."""

    def __init__(self, drain: Callable[[], None], hurry: Callable[[], None]) -> None:
        self.times = 0
        self._drain, self._hurry = drain, hurry
        self._heard_at = -math.inf
        self._interrupted = False

    def hear(self, number: int) -> None:
        now = time.monotonic()
        # Nothing but a person at a terminal sends SIGINT twice, and people do it quickly.
        pressed_again = self._interrupted and number == signal.SIGINT
        if pressed_again or now - self._heard_at > SAME_SECONDS:
            self.times += 1
            (self._drain if self.times == 1 else self._hurry)()
        self._heard_at = now
        self._interrupted = self._interrupted or number == signal.SIGINT


def _chained(before: Handler, asked: _Asked, longest_seconds: float) -> Handler:
    def handle(number: int, frame: FrameType | None) -> None:
        asked.hear(number)
        server = getattr(before, "__self__", None)
        if not hasattr(server, "should_exit") or asked.times > 2:
            before(number, frame)
            return
        # A uvicorn server. Its own handler would raise the signal again after a clean shutdown, so that the process
        # dies by the signal instead of ending with 0.
        server.should_exit = True  # type: ignore[union-attr]  # duck-typed; checked by getattr
        config = getattr(server, "config", None)
        if getattr(config, "timeout_graceful_shutdown", 0) is None:
            config.timeout_graceful_shutdown = math.ceil(longest_seconds)  # type: ignore[union-attr]

    return handle
