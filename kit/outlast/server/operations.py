"""Health, metrics, and what this server is: for load balancers, monitoring and clients that look around."""

import importlib.metadata
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from fastapi import APIRouter
from starlette.responses import PlainTextResponse, Response

from outlast.core.errors import OutlastError
from outlast.core.records import Status
from outlast.server import problems
from outlast.server.agents import Agents
from outlast.server.runtime import Runtime


class Serving(Protocol):
    """What these routes need of their server."""

    agents: Agents

    def runtime(self) -> Runtime: ...


def operations(serving: Serving) -> APIRouter:
    """Return the routes."""
    router = APIRouter(tags=["operations"])

    def checked(wrong: bool, code: str, detail: str) -> Response:
        return problems.problem(503, code, detail) if wrong else PlainTextResponse("ok\n")

    @router.get("/livez", summary="The process works; restart it when this fails.", response_class=PlainTextResponse)
    async def livez() -> Response:
        return _guarded(lambda: checked(serving.runtime().engine.stalled, "stalled", "the event loop was blocked"))

    @router.get("/readyz", summary="Send requests here.", response_class=PlainTextResponse)
    async def readyz() -> Response:
        def ready() -> Response:
            runtime = serving.runtime()
            if runtime.draining:
                return checked(True, "draining", "this worker is shutting down")
            return checked(not runtime.engine.connected, "store_unavailable", "the database does not answer")

        return _guarded(ready)

    @router.get("/startupz", summary="The start is over.", response_class=PlainTextResponse)
    async def startupz() -> Response:
        return _guarded(lambda: checked(serving.runtime() is None, "", ""))

    @router.get("/metrics", summary="In the Prometheus text format.", response_class=PlainTextResponse)
    async def metrics() -> Response:
        return _guarded(lambda: Response("".join(_metrics(serving.runtime())), media_type="text/plain; version=0.0.4"))

    @router.get("/api/agent", summary="Name, version, framework and capabilities of the agents.")
    async def agent() -> dict[str, Any]:
        return describe(serving.agents)

    return router


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


def _guarded(answer: Any) -> Response:
    try:
        response: Response = answer()
    except OutlastError as error:
        return problems.of(error)
    return response


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
