"""`/api/sessions`: conversations, their items, and how they were interrupted.

Session ids travel percent-encoded and may hold a slash, so the path is taken apart as it was sent.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol
from urllib.parse import unquote

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from outlast.adapters.session import Resumable, Stateful, States
from outlast.core import ids, jsontext
from outlast.core.conversations import JSON_LINES, item_as_json, session_as_json
from outlast.core.errors import AgentResumeError, Conflict, InvalidRequest, NotFound
from outlast.core.records import OnActive
from outlast.core.resume import ResumePoint, point_as_json
from outlast.engine.threads import call
from outlast.server import body, parameters
from outlast.server.agents import AgentLike, Agents
from outlast.server.answers import Methods, json_answer, page_as_read, route
from outlast.server.invocations import Invocations
from outlast.server.principal import caller
from outlast.server.runtime import Runtime, Serving
from outlast.sessions import Session, SessionItem, SessionStore
from outlast.store.sessions import kept_as_checkpoints
from outlast.wires.native import accept, project


class ServingAgents(Serving, Protocol):
    """What these routes need of their server besides."""

    agents: Agents


class Sessions:
    """The endpoints of one server. A resume is answered as an invocation is, by `invocations`."""

    def __init__(self, server: ServingAgents, invocations: Invocations) -> None:
        self._server = server
        self._invocations = invocations

    def routes(self) -> list[BaseRoute]:
        root = f"{self._server.prefix}/api/sessions"
        below = {
            "": {"GET": self.get, "HEAD": self.get, "PATCH": self.update, "DELETE": self.delete},
            "items": {"GET": self.items, "HEAD": self.items, "POST": self.append, "DELETE": self.clear},
            "items/pop": {"POST": self.pop},
            "fork": {"POST": self.fork},
            "messages": {"GET": self.messages, "HEAD": self.messages},
            "resume-point": {"GET": self.resume_point, "HEAD": self.resume_point},
            "resume": {"POST": self.resume},
            "state": {"GET": self.state, "HEAD": self.state, "POST": self.update_state},
            "history": {"GET": self.history, "HEAD": self.history},
        }
        one = _OfOneSession({action: Methods(endpoints) for action, endpoints in below.items()})
        return [
            route(root, {"POST": self.create, "GET": self.list, "HEAD": self.list}),
            Route(f"{root}/{{rest:path}}", one, include_in_schema=False),
        ]

    async def create(self, request: Request) -> Response:
        """Make a session, or store what was exported, under its own name or that in the query."""
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() == JSON_LINES:
            query = parameters.query(request, ("id",))
            lines = (await self._body(request)).split(b"\n")
            imported = await self._store(request).import_(
                [line.decode(errors="surrogateescape") for line in lines], id=query.get("id")
            )
            return json_answer(_session(imported), 201)
        fields = await self._fields(request, "id", "agent", "actor_id", "parent", "labels")
        made = await self._store(request).create(
            fields.get("id"),
            agent=accept.agent(fields.get("agent"), list(self._server.agents.by_name())),
            actor_id=fields.get("actor_id"),
            parent=fields.get("parent"),
            labels=fields.get("labels"),
        )
        return json_answer(_session(made), 201)

    async def list(self, request: Request) -> Response:
        """Newest first; `cursor` is the `next_cursor` of the page before."""
        query = parameters.query(request, ("agent", "actor_id", "parent", "cursor", "limit"), labels="labels")
        page = await self._store(request).page(
            agent=query.get("agent"),
            actor_id=query.get("actor_id"),
            parent=query.get("parent"),
            labels=parameters.labelled(query, "labels"),
            cursor=parameters.position(query.get("cursor")) or None,
            limit=parameters.limit(query.get("limit")),
        )
        return json_answer(project.page([_session(one) for one in page.sessions], page.cursor))

    async def get(self, request: Request) -> Response:
        return json_answer(_session(await self._store(request).get(_id(request))))

    async def update(self, request: Request) -> Response:
        fields = await self._fields(request, "labels")
        updated = await self._store(request).update(_id(request), labels=fields.get("labels", {}))
        return json_answer(_session(updated))

    async def delete(self, request: Request) -> Response:
        force = parameters.flag(parameters.query(request, ("force",)), "force")
        await self._store(request).delete(_id(request), force=force)
        return Response(status_code=204)

    async def items(self, request: Request) -> Response:
        """A page of items; `after` is the `next_cursor` of the page before, in the order that is asked."""
        query = parameters.query(request, ("after", "limit", "order"))
        limit, order = parameters.limit(query.get("limit")), query.get("order", "asc")
        if order not in ("asc", "desc"):
            raise InvalidRequest("`order` must be asc or desc", code="invalid_parameter", field="order")
        after = parameters.position(query["after"]) if "after" in query else None
        found = self._store(request).items(_id(request), after=after, limit=limit + 1, newest_first=order == "desc")
        return await page_as_read(found, limit, _item, lambda item: item.position)

    async def append(self, request: Request) -> Response:
        await self._refuse_checkpoints(request)
        fields = await self._fields(request, "items", "key")
        items: Any = fields.get("items")
        stored = await self._store(request).append(_id(request), items, key=fields.get("key"))
        return json_answer(project.page([_item(one) for one in stored], None), 201)

    async def pop(self, request: Request) -> Response:
        await self._refuse_checkpoints(request)
        popped = await self._store(request).pop(_id(request))
        return json_answer(f'{{"item":{"null" if popped is None else _item(popped)}}}')

    async def clear(self, request: Request) -> Response:
        await self._refuse_checkpoints(request)
        removed = await self._store(request).clear(_id(request))
        return json_answer(jsontext.encode({"removed": removed}))

    async def fork(self, request: Request) -> Response:
        """Copy a session: its items, or its states."""
        fields = await self._fields(request, "id", "checkpoint_id", "up_to_item_id", "actor_id", "labels")
        session = await self._store(request).get(_id(request))
        if (checkpoint := _text(fields, "checkpoint_id")) is not None or self._keeps_checkpoints(session):
            states = self._states(request, session)
            if unknown := [name for name in ("up_to_item_id", "actor_id", "labels") if fields.get(name) is not None]:
                raise InvalidRequest(
                    f"`{unknown[0]}` is for copies of items", code="invalid_parameter", field=unknown[0]
                )
            copied = await states.fork(fields.get("id"), checkpoint_id=checkpoint)
            return json_answer(_session(await self._store(request).get(copied)), 201)
        copy = await self._store(request).fork(
            _id(request), fields.get("id"), up_to_item_id=fields.get("up_to_item_id"), actor_id=fields.get("actor_id"),
            labels=fields.get("labels"),
        )  # fmt: skip
        return json_answer(_session(copy), 201)

    async def messages(self, request: Request) -> Response:
        """A page of what was said, wherever the agent keeps it; `after` is the `next_cursor` of the page before."""
        query = parameters.query(request, ("after", "limit"))
        limit, after = parameters.limit(query.get("limit")), parameters.position(query.get("after"))
        session = await self._store(request).get(_id(request))
        agent = self._agent_of(session)
        if not isinstance(agent, Resumable):
            raise Conflict(
                f"the agent {session.agent!r} is made of handlers: outlast does not know its messages, only its items",
                code="unsupported_for_agent",
            )
        store, principal = self._server.runtime().store, caller(request).principal
        found = agent.session_messages(store, principal, session.id, after=after)
        return await page_as_read(found, limit, lambda one: jsontext.encode(one[1]), lambda one: one[0])

    async def resume_point(self, request: Request) -> Response:
        """Tell how the session was interrupted. Reads only."""
        session = await self._store(request).get(_id(request))
        if session.active is not None:
            return json_answer(jsontext.encode({"active": session.active, "point": None}))
        try:
            point = await self._point(request, session)
        except AgentResumeError:
            point = None
        return json_answer(f'{{"active":null,"point":{_point(point)}}}')

    async def state(self, request: Request) -> Response:
        """The state that the agent keeps of the session, now or at a checkpoint. Reads only."""
        query = parameters.query(request, ("checkpoint_id",))
        session = await self._store(request).get(_id(request))
        found = await self._states(request, session).state(parameters.name(query, "checkpoint_id"))
        return json_answer(jsontext.encode(found))

    async def history(self, request: Request) -> Response:
        """A page of states, the newest first; `before` is the `next_cursor` of the page before. Reads only."""
        query = parameters.query(request, ("before", "limit"))
        limit, before = parameters.limit(query.get("limit")), parameters.name(query, "before")
        session = await self._store(request).get(_id(request))
        found = self._states(request, session).history(before=before)
        return await page_as_read(found, limit, jsontext.encode, lambda state: str(state["checkpoint_id"]))

    async def update_state(self, request: Request) -> Response:
        """Change the state as if a node had written it, or go on from an earlier one, changed."""
        fields = await self._fields(request, "values", "as_node", "checkpoint_id")
        if fields.get("values") is None:
            raise InvalidRequest("`values` is what is to be changed", code="invalid_parameter", field="values")
        session = await self._store(request).get(_id(request))
        changed = await self._states(request, session).update(
            fields["values"], as_node=_text(fields, "as_node"), checkpoint_id=_text(fields, "checkpoint_id")
        )
        return json_answer(jsontext.encode(changed))

    async def resume(self, request: Request) -> Response:
        """Go on where the session was interrupted, as a run without a message of its own."""
        runtime, auth = self._server.runtime(), caller(request)
        session = await self._store(request).get(_id(request))
        ask = accept.resume(
            jsontext.parse(await body.read(request, runtime.settings.max_body_bytes)),
            session_id=session.id,
            idempotency_key=request.headers.get("idempotency-key"),
            principal=auth.principal,
            agents=[session.agent],
        )
        ask = replace(ask, request=replace(ask.request, on_active=OnActive.REJECT))
        if not await self._known(runtime, ask) and session.active is None:
            await self._require_resumable(request, session)
        return await self._invocations.answer(request, runtime, ask, auth, 0)

    async def _require_resumable(self, request: Request, session: Session) -> None:
        """Refuse to resume where there is nothing to resume."""
        agent = self._server.agents.by_name().get(session.agent)
        if isinstance(agent, Resumable):
            await agent.require_resumable(self._server.runtime().store, caller(request).principal, session.id)
        else:
            await self._point(request, session)

    async def _known(self, runtime: Runtime, ask: accept.Ask) -> bool:
        """Say whether this very request was accepted before: then it is joined, whatever became of the session."""
        try:
            await runtime.engine.get(ask.request.principal, ask.request.id)
        except NotFound:
            return False
        return True

    async def _point(self, request: Request, session: Session) -> Any:
        """Return how a session was interrupted, as its agent tells it. Raise AgentResumeError when it was not."""
        agent = self._agent_of(session)
        if isinstance(agent, Resumable):
            store = self._server.runtime().store
            return await agent.require_session_resume_point(store, caller(request).principal, session.id)
        handler = self._server.agents.handwritten.resume_point
        if handler is None:
            raise Conflict(
                "this server cannot tell how a session was interrupted: it has no resume_point handler",
                code="resume_unsupported",
            )
        point = await call(handler, session.id)
        if point is None:
            raise AgentResumeError("completed")
        return point

    def _agent_of(self, session: Session) -> AgentLike:
        agent = self._server.agents.by_name().get(session.agent)
        if agent is None:
            raise Conflict(
                f"this session belongs to the agent {session.agent!r}, which this server does not have",
                code="session_of_other_agent",
            )
        return agent

    async def _refuse_checkpoints(self, request: Request) -> None:
        """Refuse items that the session's agent would never read."""
        session = await self._store(request).get(_id(request))
        if self._keeps_checkpoints(session):
            raise kept_as_checkpoints(session.agent)

    def _keeps_checkpoints(self, session: Session) -> bool:
        return getattr(self._server.agents.by_name().get(session.agent), "history", "items") == "checkpoints"

    def _states(self, request: Request, session: Session) -> States:
        agent = self._agent_of(session)
        if not isinstance(agent, Stateful):
            raise Conflict(
                f"the agent {session.agent!r} keeps items, and no states of its sessions", code="unsupported_for_agent"
            )
        return agent.session_states(self._server.runtime().store, caller(request).principal, session.id)

    def _store(self, request: Request) -> SessionStore:
        runtime = self._server.runtime()
        return SessionStore(
            runtime.store, principal=caller(request).principal,
            idempotency_retention=runtime.settings.engine.idempotency_retention,
        )  # fmt: skip

    async def _fields(self, request: Request, *known: str) -> dict[str, Any]:
        """Return the fields of a body; no body is one without fields."""
        raw = await self._body(request)
        return accept.fields(jsontext.parse(raw) if raw else {}, frozenset(known))

    async def _body(self, request: Request) -> bytes:
        return await body.read(request, self._server.runtime().settings.max_body_bytes)


class _OfOneSession:
    """What is below one session, by the path as it was sent."""

    def __init__(self, actions: Mapping[str, Methods]) -> None:
        self._actions = actions
        self._nothing = Methods({}, "there is nothing at this path")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sent = scope.get("raw_path") or scope["path"].encode()
        id, slash, action = sent.partition(b"/api/sessions/")[2].decode("ascii", "replace").partition("/")
        known = bool(id) and bool(slash) == bool(action)
        app = self._actions.get(action, self._nothing) if known else self._nothing
        await app({**scope, "path_params": {"id": id}}, receive, send)


def _id(request: Request) -> str:
    try:
        return ids.session_id(unquote(request.path_params["id"], errors="strict"))
    except UnicodeDecodeError:
        raise InvalidRequest(
            "the session id in the path is not UTF-8", code="invalid_session_id", field="session_id"
        ) from None


def _text(fields: Mapping[str, Any], name: str) -> str | None:
    """Return a field that is a name, None when it is not there."""
    found = fields.get(name)
    return None if found is None else ids.name(found, name)


def _session(session: Session) -> str:
    return jsontext.encode(session_as_json(session))


def _item(item: SessionItem) -> str:
    return jsontext.encode(item_as_json(item))


def _point(point: Any) -> str:
    """Return a resume point as JSON text: ours, or what a handler told."""
    return jsontext.encode(point_as_json(point) if isinstance(point, ResumePoint) else point)
