"""Health, metrics, and what this server is: for load balancers, monitoring and clients that look around."""

import importlib.metadata
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from outlast.core import jsontext
from outlast.core.records import Status
from outlast.server import problems
from outlast.server.agents import Agents
from outlast.server.answers import json_answer, route
from outlast.server.runtime import Runtime


class Serving(Protocol):
    """What these routes need of their server."""

    agents: Agents
    prefix: str

    def runtime(self) -> Runtime: ...


class Operations:
    """The routes. `HEAD` is answered too: some load balancers ask so."""

    def __init__(self, server: Serving) -> None:
        self._server = server

    def routes(self) -> list[Route]:
        asked = {
            "/livez": self.livez,
            "/readyz": self.readyz,
            "/startupz": self.startupz,
            "/metrics": self.metrics,
            "/api/agent": self.agent,
        }
        return [
            route(f"{self._server.prefix}{path}", {"GET": answer, "HEAD": answer}) for path, answer in asked.items()
        ]

    async def livez(self, _request: Request) -> Response:
        """The process works; restart it when this fails."""
        return _checked(self._server.runtime().engine.stalled, "stalled", "the event loop was blocked")

    async def readyz(self, _request: Request) -> Response:
        """Requests can be sent here."""
        runtime = self._server.runtime()
        if runtime.draining:
            return _checked(True, "draining", "this worker is shutting down")
        return _checked(not runtime.engine.connected, "store_unavailable", "the database does not answer")

    async def startupz(self, _request: Request) -> Response:
        """The start is over."""
        self._server.runtime()
        return PlainTextResponse("ok\n")

    async def metrics(self, _request: Request) -> Response:
        """Tell the counts, in the text format of Prometheus."""
        return Response("".join(_metrics(self._server.runtime())), media_type="text/plain; version=0.0.4")

    async def agent(self, _request: Request) -> Response:
        """Tell name, version, framework and capabilities of the agents."""
        return json_answer(jsontext.encode(describe(self._server.agents)))


def _checked(wrong: bool, code: str, detail: str) -> Response:
    return problems.problem(503, code, detail) if wrong else PlainTextResponse("ok\n")


def describe(agents: Agents) -> dict[str, Any]:
    """Describe the agents; when there is only one, also at the top level."""
    described: dict[str, dict[str, Any]] = {}
    for name, agent in agents.by_name().items():
        handlers = agent.handlers()
        described[name] = {
            "name": name,
            "framework": agent.framework,
            "capabilities": {
                "recover": handlers.recover is not None,
                "resume": handlers.resume is not None,
                "config": sorted(handlers.config_keys),
            },
        }
    only: Mapping[str, Any] = next(iter(described.values())) if len(described) == 1 else {}
    return {**only, "version": importlib.metadata.version("outlast"), "agents": list(described.values())}


def _metrics(runtime: Runtime) -> Iterator[str]:
    counts = runtime.engine.counts
    yield from _metric("accepted_total", "counter", "Invocations this process stored.", counts.accepted)
    yield from _metric("attempts_total", "counter", "Attempts this process began.", counts.attempts)
    yield from _metric("attempts_running", "gauge", "Attempts running in this process.", runtime.engine.running)
    yield from _metric("streams_open", "gauge", "Event streams open in this process.", runtime.streams.count)
    yield from _metric("draining", "gauge", "1 while this process shuts down.", int(runtime.draining))
    yield _head("finished_total", "counter", "Invocations that ended in this process.")
    for status in Status:
        if status.final:
            yield f'outlast_finished_total{{status="{status}"}} {counts.ended[status]}\n'
    yield _head("queue_wait_seconds", "summary", "From acceptance to the first attempt.")
    yield f"outlast_queue_wait_seconds_sum {counts.waited_ms / 1000}\n"
    yield f"outlast_queue_wait_seconds_count {counts.started}\n"


def _metric(name: str, kind: str, help: str, value: int) -> Iterator[str]:
    yield _head(name, kind, help)
    yield f"outlast_{name} {value}\n"


def _head(name: str, kind: str, help: str) -> str:
    return f"# HELP outlast_{name} {help}\n# TYPE outlast_{name} {kind}\n"
