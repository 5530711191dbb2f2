"""Hear of a shutdown when it is asked for, not when the web server is done waiting for open connections.

uvicorn calls the lifespan's end only after every connection is closed, and streams are connections: without this, a
plain `uvicorn main:app` with an open stream would wait for ever.
"""

import contextlib
import math
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)
PATIENT_SIGNALS = 2
"""The first begins a shutdown, the second shortens it; the next ones are the web server's, which then waits for nothing."""

Handler = Callable[[int, FrameType | None], Any]


@contextlib.contextmanager
def watched(on_shutdown: Callable[[], None], *, longest_seconds: float) -> Iterator[None]:
    """Call `on_shutdown` when the process is asked to stop; then the handler that was there before.

    Does nothing outside the main thread, nor where nobody handles the signal. `longest_seconds` is how long
    `on_shutdown` may take to end the open connections; after it, uvicorn is told not to wait for them.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    installed: dict[signal.Signals, tuple[Handler, Handler]] = {}
    for number in SIGNALS:
        before = signal.getsignal(number)
        if callable(before):
            handler = _chained(before, on_shutdown, longest_seconds)
            signal.signal(number, handler)
            installed[number] = handler, before
    try:
        yield
    finally:
        for number, (handler, before) in installed.items():
            if signal.getsignal(number) is handler:
                signal.signal(number, before)


def _chained(before: Handler, on_shutdown: Callable[[], None], longest_seconds: float) -> Handler:
    asked = 0

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        asked += 1
        on_shutdown()
        server = getattr(before, "__self__", None)
        if not hasattr(server, "should_exit") or asked > PATIENT_SIGNALS:
            before(number, frame)
            return
        # A uvicorn server. Its own handler would raise the signal again after a clean shutdown, so that the process
        # dies by the signal instead of ending with 0.
        server.should_exit = True  # type: ignore[union-attr]  # duck-typed; checked by getattr
        config = getattr(server, "config", None)
        if getattr(config, "timeout_graceful_shutdown", 0) is None:
            config.timeout_graceful_shutdown = math.ceil(longest_seconds)  # type: ignore[union-attr]

    return handle
