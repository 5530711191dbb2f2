"""`outlast serve`: uvicorn with one process or several, a line that says when it is ready, and a clean end."""

import http.client
import ipaddress
import json
import logging
import math
import os
import signal
import socket
import sys
import threading
import time
from typing import Annotated, Any

import typer
import uvicorn
from uvicorn.config import STARTUP_FAILURE
from uvicorn.supervisors import Multiprocess

from outlast.cli import agent_toml, worker
from outlast.cli.errors import FAILED, USAGE, fail
from outlast.cli.target import load
from outlast.core.errors import OutlastError
from outlast.server import DurableAgentServer
from outlast.server.runtime import LEAVE_SECONDS

READY_POLL_SECONDS = 0.1
JOIN_POLL_SECONDS = 0.1
# Longer than the 60 s that proxies keep an idle connection: whoever hangs up first loses the requests that are on their
# way at that moment, and a proxy answers them with 502.
KEEP_ALIVE_SECONDS = 75


def serve(
    target: Annotated[
        str | None,
        typer.Argument(
            help="module:object or path.py:object: a server, an adapter, or an agent. Default: agent.toml's."
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 8000,
    store: Annotated[
        str | None, typer.Option(help="Store URL. Default: what agent.toml, the program or OUTLAST_STORE says.")
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes that share the port and the store.")] = 1,
    insecure: Annotated[bool, typer.Option(help="Let everybody who can reach the address use the agents.")] = False,
) -> None:
    """Serve an agent.

    Without TARGET, what the agent.toml of the current folder says, or the one that OUTLAST_CONFIG names. What it says
    counts for a TARGET too, unless it names another one; the variables of `.env` beside it are always set.
    """
    worker.log_to_stderr()
    try:
        target, config = (target, agent_toml.about(target)) if target is not None else agent_toml.served()
        server = load(target, config)
    except OutlastError as error:
        fail(str(error), USAGE)
    if not (insecure or server.authenticated or _is_loopback(host)):
        fail(f"{host} can be reached from other machines and there is no authentication; add --insecure to allow it",
             USAGE)  # fmt: skip
    listening = _bind(host, port)
    # Before the app is up, uvicorn raises the signal again at its end; this makes that end a clean one too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    if workers == 1:
        _run_here(server, store, host, listening)
    else:
        _run_workers(
            server,
            {"target": target, "store": store, "config": str(config.path) if config else None},
            host,
            listening,
            workers,
        )


def _run_here(server: DurableAgentServer, store: str | None, host: str, listening: socket.socket) -> None:
    server.store_url = store or server.store_url
    quiet = worker.quieten(server, say=False)
    try:
        _Server(_config(server, server), host, listening).run([listening])
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    except SystemExit:
        if quiet.error is None:
            raise
        fail(str(quiet.error), FAILED)


class _Server(uvicorn.Server):
    """Says when requests are answered."""

    def __init__(self, config: uvicorn.Config, host: str, listening: socket.socket) -> None:
        super().__init__(config)
        self._address = _address(host, listening)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            _say_ready(self._address)


def _run_workers(
    server: DurableAgentServer, asked: dict[str, str | None], host: str, listening: socket.socket, workers: int
) -> None:
    os.environ[worker.ASKED] = json.dumps(asked)
    config = _config(server, f"{worker.__name__}:app", factory=True, workers=workers)
    threading.Thread(target=_watch_ready, args=(host, listening), daemon=True).start()
    supervisor = _Supervisor(config, [listening])
    supervisor.run()
    if any(process.process.exitcode == STARTUP_FAILURE for process in supervisor.processes):
        fail("the workers did not start; see above", FAILED)


class _Supervisor(Multiprocess):
    """Passes on a request to stop that comes while the workers stop; uvicorn's own hears of nothing more by then."""

    def join_all(self) -> None:
        for worker_ in self.processes:
            while worker_.process.is_alive():
                worker_.process.join(JOIN_POLL_SECONDS)
                if self.signal_queue:
                    self.signal_queue.clear()
                    self._terminate_again()

    def _terminate_again(self) -> None:
        # uvicorn's `terminate` closes the pipes of a process, which it can do once.
        for worker_ in self.processes:
            if worker_.process.is_alive():
                worker_.process.terminate()


def _watch_ready(host: str, listening: socket.socket) -> None:
    """Ask until a worker answers; the socket itself is there before any of them."""
    name, port = _reachable(host), listening.getsockname()[1]
    while True:
        connection = http.client.HTTPConnection(name, port, timeout=5)
        try:
            connection.request("GET", "/readyz")
            if connection.getresponse().status == http.client.OK:
                break
        except OSError:
            pass
        finally:
            connection.close()
        time.sleep(READY_POLL_SECONDS)
    _say_ready(_address(host, listening))


def _say_ready(address: str) -> None:
    print(f"Outlast is ready on {address}", file=sys.stderr, flush=True)


def _config(server: DurableAgentServer, app: Any, **options: Any) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        access_log=False,
        lifespan="on",
        log_config=None,
        log_level=logging.WARNING,
        server_header=False,
        timeout_graceful_shutdown=math.ceil(server.settings.engine.drain_timeout + LEAVE_SECONDS),
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        **options,
    )


def _bind(host: str, port: int) -> socket.socket:
    """Take the address before anything starts, so that a taken one is found while nothing runs yet."""
    try:
        return _bound(host, port)
    except OSError as error:
        fail(f"cannot listen on {host}:{port}: {error.strerror or error}", FAILED)


def _bound(host: str, port: int) -> socket.socket:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, kind, protocol, _, address = found[0]
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
    except OSError:
        listening.close()
        raise
    listening.set_inheritable(True)
    return listening


def _address(host: str, listening: socket.socket) -> str:
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{listening.getsockname()[1]}"


def _reachable(host: str) -> str:
    """Return where a client on this machine finds a server that listens on `host`."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
