"""What every serving process sets up, and the app that a child of `outlast serve --workers N` loads."""

import json
import logging
import multiprocessing
import os
import signal
import sys
import threading
from pathlib import Path

from outlast.cli.target import load
from outlast.core.errors import OutlastError
from outlast.server import Config, DurableAgentServer

ASKED = "OUTLAST_SERVE"
"""Environment variable by which the parent tells its children what to serve, as JSON."""


def app() -> DurableAgentServer:
    """Load what the parent was asked to serve."""
    log_to_stderr()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    asked = json.loads(os.environ[ASKED])
    server = load(asked["target"], Config.read(Path(asked["config"])) if asked["config"] else None)
    server.store_url = asked["store"] or server.store_url
    quieten(server, say=True)
    return server


def _end_with_parent() -> None:
    """Stop as for a deploy when the parent was killed: nobody else would, and the port would stay taken."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)


def log_to_stderr() -> None:
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    for chatty in ("uvicorn", "alembic", "httpx2", "mcp"):
        logging.getLogger(chatty).setLevel(logging.WARNING)


class Quiet(logging.Filter):
    """Replaces uvicorn's traceback of a failed start by our own sentence, or by nothing, when we have one."""

    def __init__(self, server: DurableAgentServer, *, say: bool) -> None:
        super().__init__()
        self._server, self._say = server, say

    @property
    def error(self) -> OutlastError | None:
        return self._server.start_error

    def filter(self, record: logging.LogRecord) -> bool:
        if self.error is None:
            return True
        if not self._say or "Traceback" not in record.getMessage():
            return False
        record.msg, record.args = f"the server cannot start: {self.error}", ()
        return True


def quieten(server: DurableAgentServer, *, say: bool) -> Quiet:
    """Keep uvicorn from showing tracebacks of errors that say themselves what to do."""
    quiet = Quiet(server, say=say)
    logging.getLogger("uvicorn.error").addFilter(quiet)
    return quiet
