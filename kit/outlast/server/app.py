"""`DurableAgentServer`: a FastAPI app with the invocation API, a store and a worker inside."""

import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import BaseRoute, Match, Mount, Route

from outlast.core.errors import OutlastError, StoreUnavailable
from outlast.engine import EngineSettings
from outlast.server import openapi, problems
from outlast.server.agents import Agents, AgentSetupError
from outlast.server.approvals import Approvals
from outlast.server.config import Config
from outlast.server.invocations import Invocations
from outlast.server.memories import Memories
from outlast.server.operations import Operations
from outlast.server.runtime import Runtime, running
from outlast.server.sessions import Sessions
from outlast.server.settings import ServerSettings, store_url

H = TypeVar("H", bound=Callable[..., Any])
Lifespan = Callable[[Any], contextlib.AbstractAsyncContextManager[Any]]


class NotStarted(StoreUnavailable):
    """The lifespan of the server did not run, so that it has neither a store nor a worker."""

    code = "not_started"


class DurableAgentServer(FastAPI):
    """Serve one agent, several, or the functions that its decorators take.

    `agent` is an adapter, `AgentHandlers`, or a framework object that an installed integration recognises; `agents`
    maps names to such objects. `store` is a URL (default: OUTLAST_STORE, else an SQLite file below the current
    folder). `config` is an `agent.toml` that was read; what it says comes before the other arguments. Other keyword
    arguments go to FastAPI.
    """

    def __init__(
        self,
        agent: object | None = None,
        *,
        agents: Mapping[str, object] | None = None,
        name: str | None = None,
        config: Config | None = None,
        store: str | None = None,
        settings: EngineSettings | None = None,
        sync_wait: float | None = None,
        max_body_bytes: int = ServerSettings().max_body_bytes,
        keep_alive: float = ServerSettings().keep_alive,
        **fastapi: Any,
    ) -> None:
        name = name if config is None else config.file.agent.name or name
        self.agents = Agents(agent, agents, name)
        self.store_url = store
        self.start_error: OutlastError | None = None
        """Why the last start failed, when it is something that people can mend."""
        self.settings = ServerSettings(
            engine=settings or EngineSettings(),
            sync_wait=sync_wait,
            max_body_bytes=max_body_bytes,
            keep_alive=keep_alive,
        )
        super().__init__(**{"title": name or "outlast", "redirect_slashes": False, **fastapi})
        self.config: Config | None = None
        if config is not None:
            self.configure(config)
        _Part(self, "").add_to(self)
        self._answer_with_problems(fastapi.get("exception_handlers") or {})

    def _answer_with_problems(self, chosen: Mapping[Any, Any]) -> None:
        """Make every error a problem, except where the user's own handlers decide."""
        handlers: dict[Any, Any] = {
            HTTPException: problems.on_http_exception,
            RequestValidationError: problems.on_validation_error,
            Exception: problems.on_exception,
        }
        for error, handler in handlers.items():
            if error not in chosen:
                self.add_exception_handler(error, handler)

    def configure(self, config: Config) -> None:
        """Do as an `agent.toml` says, before the server starts. Raise AgentSetupError when it names another agent."""
        name = config.file.agent.name
        if name is not None and name not in (names := self.agents.by_name()):
            raise AgentSetupError(f"{config.path.name} names the agent {name!r}; the server has {', '.join(names)}")
        self.config = config
        if self.store_url is None or "store.url" in config.sources:
            self.store_url = config.store_url
        self.settings = replace(self.settings, engine=config.engine(self.settings.engine))
        if origins := config.file.cors.allowed_origins:
            self.add_middleware(
                CORSMiddleware,
                allow_origins=origins,
                allow_methods=["*"],
                allow_headers=["*"],
                expose_headers=["Location", "Retry-After"],
            )

    def invoke(self, handler: H) -> H:
        """Register the function that runs an invocation: `async def f(context: InvocationContext)`, or `def`."""
        return self._decorated("invoke", handler)

    def recover(self, handler: H) -> H:
        """Register the function that goes on with an invocation whose worker died."""
        return self._decorated("recover", handler)

    def resume(self, handler: H) -> H:
        """Register the function that resumes a session without a user message; without it, `invoke` does."""
        return self._decorated("resume", handler)

    def resume_point(self, handler: H) -> H:
        """Register the function that tells how a session was interrupted: `async def f(session_id: str)`."""
        return self._decorated("resume_point", handler)

    def _decorated(self, role: str, handler: H) -> H:
        self.agents.handwritten.set(role, handler)
        self.agents.by_name()
        return handler

    def install(self, outer: FastAPI, prefix: str = "") -> None:
        """Add the API, and the lifespan that makes it work, to an existing FastAPI app.

        `prefix` comes before `/api` and the health routes, e.g. `/agents`. Raise AgentSetupError when the app has a
        route of its own where one of these belongs; one that is added later makes the start fail.
        """
        if prefix and (not prefix.startswith("/") or prefix.endswith("/")):
            raise AgentSetupError("a prefix begins with a slash and does not end with one, e.g. /agents")
        _Part(self, prefix).add_to(outer)

    @property
    def authenticated(self) -> bool:
        """Whether callers must say who they are; without it everybody is one principal."""
        return False

    def check(self) -> None:
        """Raise AgentSetupError when there is nothing to serve."""
        self.agents.handlers()

    def openapi(self) -> dict[str, Any]:
        return openapi.described(super().openapi(), "")


class _Part:
    """The server as a part of an app: its own or another's. What runs exists between the lifespan's start and end."""

    def __init__(self, server: DurableAgentServer, prefix: str) -> None:
        self.prefix = prefix
        self.agents = server.agents
        self._server = server
        self._runtime: Runtime | None = None
        self._routes: list[BaseRoute] = []

    def runtime(self) -> Runtime:
        if self._runtime is None:
            raise NotStarted(
                "this server was not started: its lifespan did not run. A mounted app's lifespan never runs; use "
                "server.install(app) instead of app.mount(). In tests, use `with TestClient(app) as client`"
            )
        return self._runtime

    def agent_names(self) -> Sequence[str]:
        return list(self.agents.by_name())

    def add_to(self, app: FastAPI) -> None:
        invocations = Invocations(self)
        # None of them is made by FastAPI, which remembers the endpoints of its routes, and so the server, for good.
        self._routes = [
            *invocations.routes(),
            *Sessions(self, invocations).routes(),
            *Memories(self).routes(),
            *Approvals(self).routes(),
            *Operations(self).routes(),
        ]
        self._refuse_taken(app)
        # First, for they are the hot path, and a catch-all of the app must not take them.
        app.router.routes[:] = [*self._routes, *app.router.routes]
        app.router.lifespan_context = self._around(app.router.lifespan_context)
        if app is not self._server:
            openapi.describe(app, self.prefix)

    def _around(self, inner: Lifespan) -> Lifespan:
        """Run the user's own lifespan around ours: what it opens is there before the first run and until the last."""

        @contextlib.asynccontextmanager
        async def lifespan(app: Any) -> AsyncIterator[Any]:
            async with inner(app) as state, self._running(app):
                yield state

        return lifespan

    @contextlib.asynccontextmanager
    async def _running(self, app: FastAPI) -> AsyncIterator[None]:
        server = self._server
        server.start_error = None
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(self._forget)
            try:
                self._refuse_switched(app)
                self._refuse_taken(app)
                agents, url = self.agents.handlers(), store_url(server.store_url)
                self._runtime = await stack.enter_async_context(running(url, agents, server.settings))
            except OutlastError as error:
                server.start_error = error
                raise
            yield

    def _refuse_switched(self, app: FastAPI) -> None:
        """Raise AgentSetupError when the configuration was switched between the two servers and the program was not."""
        config, installed = self._server.config, app is not self._server
        if config is not None and config.custom is not installed:
            made = "a server installed in an app" if installed else "the app of outlast itself"
            raise AgentSetupError(
                f'{config.path.name} says server = "{config.file.agent.server}", and what runs is {made}; the line alone '
                "switches nothing: change it back, or the program too (`outlast init --server` makes either)"
            )

    def _refuse_taken(self, app: FastAPI) -> None:
        """Raise AgentSetupError when the app has routes of its own at our paths: one of the two would be dead."""
        others = [route for route in app.router.routes if route not in self._routes]
        if taken := [path for path in _fixed(self._routes) if any(_stands_at(path, route) for route in others)]:
            raise AgentSetupError(
                f"the app has a route of its own at {', '.join(taken)}, where the server's stands; give it another "
                "path, or move the server's: server.install(app, prefix='/agents')"
            )

    def _forget(self) -> None:
        self._runtime = None


def _fixed(routes: Iterable[BaseRoute]) -> list[str]:
    """Return the paths without parameters."""
    return [route.path for route in routes if isinstance(route, Route) and "{" not in route.path]


def _stands_at(path: str, route: BaseRoute) -> bool:
    """Whether a route is for this path and not for any that looks like it."""
    if isinstance(route, Mount):
        return route.path == path
    match, found = route.matches({"type": "http", "method": "GET", "path": path, "headers": []})
    return match is not Match.NONE and not found.get("path_params")
