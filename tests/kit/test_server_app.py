"""The app around the API: agents, lifespan, install, mount, health, errors, description."""

import contextlib
import gc
import uuid
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import APIRouter, Depends, FastAPI, HTTPException
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient

from outlast import AgentHandlers, DurableAgentServer, InvocationContext
from outlast.core.conversations import memory_cursor
from outlast.core.errors import InvalidRequest
from outlast.engine import RequestAuth
from outlast.server import AgentLike, AgentSetupError, problems


def echo(context: InvocationContext) -> Any:
    return {"agent": context.agent, "input": context.input}


ECHO = AgentHandlers(echo, echo)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'state.db'}"


def post(client: TestClient, input: Any = None, path: str = "/api/invocations", **fields: Any) -> Any:
    return client.post(path, json={"id": str(uuid.uuid4()), "input": input, **fields})


def code(response: Any) -> tuple[int, str]:
    assert response.headers["content-type"] == "application/problem+json", response.text
    return response.status_code, response.json()["code"]


class Adapter:
    """What a framework's adapter looks like to a server."""

    name = "helper"
    framework = "test"

    def handlers(self) -> AgentHandlers:
        return AgentHandlers(echo, config_keys=frozenset({"b", "a"}))


def test_decorated_functions_are_an_agent(url: str) -> None:
    app = DurableAgentServer(store=url)

    @app.invoke
    async def invoke(context: InvocationContext) -> Any:
        return [context.input]

    @app.recover
    def recover(context: InvocationContext) -> Any:
        return None

    @app.resume
    async def resume(context: InvocationContext) -> Any:
        return None

    @app.resume_point
    async def resume_point(session_id: str) -> Any:
        return None

    assert callable(invoke) and callable(recover) and callable(resume) and callable(resume_point)
    with TestClient(app) as client:
        assert post(client, 1).json()["output"] == [1]


def test_an_adapter_names_its_agent_unless_the_server_does(url: str) -> None:
    for app, name in ((DurableAgentServer(Adapter(), store=url), "helper"),
                      (DurableAgentServer(Adapter(), name="other", store=url), "other")):  # fmt: skip
        with TestClient(app) as client:
            assert post(client, 1).json()["output"]["agent"] == name
            assert client.get("/api/agent").json() | {"version": ""} == {
                "name": name, "framework": "test", "version": "",
                "capabilities": {"recover": False, "resume": False, "config": ["a", "b"]},
                "agents": [{"name": name, "framework": "test",
                            "capabilities": {"recover": False, "resume": False, "config": ["a", "b"]}}],
            }  # fmt: skip


def test_several_agents_are_chosen_by_name(url: str) -> None:
    with TestClient(DurableAgentServer(agents={"support": ECHO, "sales": Adapter()}, store=url)) as client:
        assert post(client, 1, agent="sales").json()["output"]["agent"] == "sales"
        assert code(post(client, 1)) == (422, "agent_required")
        assert code(post(client, 1, agent="x")) == (422, "unknown_agent")
        assert post(client, 1, agent="support", session_id="s").status_code == 200
        assert code(post(client, 1, agent="sales", session_id="s")) == (409, "session_of_other_agent")
        assert {one["name"] for one in client.get("/api/agent").json()["agents"]} == {"support", "sales"}


def test_an_adapter_satisfies_the_protocol() -> None:
    assert isinstance(Adapter(), AgentLike)


def test_a_server_has_exactly_one_invoke_handler(url: str) -> None:
    app = DurableAgentServer(store=url)
    with pytest.raises(AgentSetupError, match="no invoke handler"), TestClient(app):
        pass
    app.invoke(echo)
    with pytest.raises(AgentSetupError, match="two invoke handlers"):
        app.invoke(echo)
    with pytest.raises(AgentSetupError, match="two invoke handlers"):
        DurableAgentServer(ECHO).invoke(echo)
    with pytest.raises(AgentSetupError, match="without parentheses"):
        DurableAgentServer().recover(None)  # type: ignore[type-var]  # what `@app.recover()` would do
    with pytest.raises(AgentSetupError, match="not both"):
        DurableAgentServer(ECHO, agents={"a": ECHO})
    with pytest.raises(AgentSetupError, match=r"builtins\.int is no agent"):
        DurableAgentServer(5)


def test_the_store_comes_from_the_environment(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTLAST_STORE", url)
    app = DurableAgentServer(ECHO)
    with TestClient(app) as client:
        run = post(client, 1).json()
    with TestClient(DurableAgentServer(ECHO, store=url)) as client:
        assert client.get(run["status_url"]).json() == run
    with TestClient(app) as client:  # the same app may start again
        assert client.get(run["status_url"]).json() == run


def test_the_user_s_lifespan_is_around_the_worker(url: str) -> None:
    """What it opens is there when the first run starts and until the last one ends."""
    seen: list[str] = []

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[dict[str, str]]:
        seen.append("opened")
        yield {"key": "value"}
        seen.append("closed")

    app = DurableAgentServer(store=url, lifespan=lifespan)

    @app.invoke
    def invoke(context: InvocationContext) -> Any:
        seen.append("ran")

    with TestClient(app) as client:
        assert client.app_state == {"key": "value"}
        post(client)
    assert seen == ["opened", "ran", "closed"]


def test_the_server_is_a_fastapi_app(url: str) -> None:
    app = DurableAgentServer(ECHO, store=url, title="Mine")

    def user() -> Iterator[str]:
        yield "ada"

    @app.get("/hello")
    def hello(name: str = Depends(user), times: int = 1) -> str:
        return f"hello {name}" * times

    @app.get("/refused")
    def refused() -> None:
        raise HTTPException(418, "short and stout", {"X-Teapot": "yes"})

    @app.get("/broken")
    def broken() -> None:
        raise RuntimeError("SELECT secret FROM somewhere")

    with TestClient(app, raise_server_exceptions=False) as client:
        assert client.get("/hello").json() == "hello ada"
        teapot = client.get("/refused")
        assert (code(teapot), teapot.headers["x-teapot"]) == ((418, "im_a_teapot"), "yes")
        assert teapot.json()["detail"] == "short and stout"
        invalid = client.get("/hello?times=x")
        assert code(invalid) == (422, "invalid_request")
        assert invalid.json()["errors"][0]["loc"] == ["query", "times"]
        broken_ = client.get("/broken")
        assert code(broken_) == (500, "internal_error")
        assert "SELECT" not in broken_.text and "Traceback" not in broken_.text
        assert code(client.get("/nothing")) == (404, "not_found")
        assert client.get("/openapi.json").json()["info"]["title"] == "Mine"


def test_the_user_s_own_error_handlers_win(url: str) -> None:
    async def mine(_request: Any, error: Exception) -> PlainTextResponse:
        return PlainTextResponse(f"mine: {error}", 500)

    app = DurableAgentServer(ECHO, store=url, exception_handlers={Exception: mine})

    @app.get("/broken")
    def broken() -> None:
        raise RuntimeError("no")

    with TestClient(app, raise_server_exceptions=False) as client:
        assert client.get("/broken").text == "mine: no"


def test_an_unexpected_failure_of_the_api_says_nothing(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with TestClient(DurableAgentServer(ECHO, store=url)) as client:
        monkeypatch.setattr("outlast.engine.engine.Engine.accept", lambda *_, **__: 1 / 0)
        response = post(client)
        assert code(response) == (500, "internal_error")
        assert "division" not in response.text


# BR-55 at the one place where the principal is decided; the providers come later
def test_another_principal_s_invocations_are_not_there(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outlast.server.invocations.caller", lambda request: RequestAuth(request.headers["x-user"]))
    with TestClient(DurableAgentServer(ECHO, store=url)) as client:
        client.headers["x-user"] = "a"
        run = post(client, "secret", session_id="s").json()
        client.headers["x-user"] = "b"
        unknown = client.get(f"/api/invocations/{uuid.uuid4()}").json() | {"detail": ""}
        for method, path in (("GET", ""), ("GET", "/events"), ("POST", "/cancel"), ("DELETE", "")):
            answer = client.request(method, run["status_url"] + path)
            assert answer.json() | {"detail": ""} == unknown
        assert client.get("/api/invocations").json()["items"] == []
        assert post(client, "mine", id=run["id"], session_id="s").json()["output"]["input"] == "mine"
        client.headers["x-user"] = "a"
        assert client.get(run["status_url"]).json() == run


def test_install_adds_the_api_to_another_app(url: str) -> None:
    seen: list[str] = []

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        seen.append("opened")
        yield
        seen.append("closed")

    outer = FastAPI(lifespan=lifespan)

    @outer.get("/mine")
    def mine() -> str:
        return "mine"

    DurableAgentServer(ECHO, store=url).install(outer, prefix="/agents")
    with TestClient(outer) as client:
        run = post(client, 1, "/agents/api/invocations").json()
        assert run["status_url"] == f"/agents/api/invocations/{run['id']}"
        assert client.get(run["status_url"]).json() == run
        assert "event: end\n" in client.get(run["events_url"]).text
        assert client.get("/mine").json() == "mine"
        assert client.get("/agents/readyz").status_code == 200
        assert code(client.get("/agents/api/invocations/", follow_redirects=False)) == (404, "not_found")
        assert code(client.put(run["status_url"])) == (405, "method_not_allowed")
        assert client.get("/nothing").json() == {"detail": "Not Found"}, "the rest is the outer app's"
        paths = client.get("/openapi.json").json()["paths"]
        assert {"/mine", "/agents/api/invocations", "/agents/api/invocations/{id}/events"} <= set(paths)
    assert seen == ["opened", "closed"]


@pytest.mark.parametrize("installed", [False, True])
def test_a_catch_all_of_the_app_takes_none_of_the_api(url: str, installed: bool) -> None:
    """Wherever it was added: to the server's own app, or to another before and after the installation."""
    server = DurableAgentServer(ECHO, store=url)
    app = FastAPI() if installed else server

    def page(path: str) -> str:
        return f"page {path}"

    app.get("/{path:path}")(page)
    if installed:
        server.install(app)
        app.get("/{path:path}")(page)
    with TestClient(app) as client:
        run = post(client, 1).json()
        assert client.get(run["status_url"]).json() == run
        assert "event: end\n" in client.get(run["events_url"]).text
        assert client.get("/api/sessions").json()["items"] == []
        assert code(client.get("/api/invocations/x/y")) == (404, "not_found")
        for path in ("/livez", "/readyz", "/startupz"):
            assert client.get(path).text == "ok\n"
        assert client.get("/api/agent").json()["name"] == "agent"
        assert "outlast_accepted_total" in client.get("/metrics").text
        assert client.get("/about").json() == "page about"


def _with_route(path: str) -> FastAPI:
    app = FastAPI()
    app.get(path)(lambda: "mine")
    return app


def _with_router(path: str) -> FastAPI:
    router, app = APIRouter(), FastAPI()
    router.get(path)(lambda: "mine")
    app.include_router(router)
    return app


def _with_mount(path: str) -> FastAPI:
    app = FastAPI()
    app.mount(path, PlainTextResponse("mine"))
    return app


@pytest.mark.parametrize("make", [_with_route, _with_router, _with_mount])
@pytest.mark.parametrize("path", ["/livez", "/metrics", "/api/agent", "/api/invocations"])
def test_a_route_of_the_app_at_a_path_of_the_api_is_refused_by_name(
    url: str, make: Callable[[str], FastAPI], path: str
) -> None:
    outer, server = make(path), DurableAgentServer(ECHO, store=url)
    with pytest.raises(AgentSetupError, match=rf"at {path}, .*prefix="):
        server.install(outer)
    server.install(outer, prefix="/agents")
    with TestClient(outer) as client:
        assert client.get("/agents/livez").text == "ok\n"
        assert "mine" in client.get(path).text


def test_a_route_that_is_added_later_at_a_path_of_the_api_makes_the_start_fail(url: str) -> None:
    app = DurableAgentServer(ECHO, store=url)

    @app.get("/metrics")
    def metrics() -> str:
        return "mine"

    with pytest.raises(AgentSetupError, match="at /metrics, "), TestClient(app):
        pass


@pytest.mark.parametrize("prefix", ["agents", "/agents/", "/"])
def test_a_prefix_is_a_path(prefix: str) -> None:
    with pytest.raises(AgentSetupError):
        DurableAgentServer(ECHO).install(FastAPI(), prefix=prefix)


def test_a_mounted_server_says_what_to_do(url: str) -> None:
    outer = FastAPI()
    outer.mount("/agents", DurableAgentServer(ECHO, store=url))
    with TestClient(outer) as client:
        for response in (post(client, 1, "/agents/api/invocations"), client.get("/agents/readyz")):
            assert code(response) == (503, "not_started")
            assert "install" in response.json()["detail"]
    assert not Path(url.removeprefix("sqlite:///")).exists()


def test_urls_honour_the_root_path(url: str) -> None:
    with TestClient(DurableAgentServer(ECHO, store=url), root_path="/behind/proxy") as client:
        run = post(client, 1).json()
        assert run["status_url"] == f"/behind/proxy/api/invocations/{run['id']}"
        accepted = post(client, 1, background=True)
        assert accepted.headers["location"] == accepted.json()["status_url"]
        assert accepted.json()["events_url"].startswith("/behind/proxy/api/")


def test_health_and_metrics(url: str) -> None:
    app = DurableAgentServer(AgentHandlers(lambda context: context.input["ok"]), store=url)
    with TestClient(app) as client:
        for path in ("/livez", "/readyz", "/startupz"):
            assert (client.get(path).status_code, client.get(path).text) == (200, "ok\n")
            assert client.head(path).status_code == 200
        post(client, {"ok": 1})
        post(client, None)
        metrics = client.get("/metrics")
        assert metrics.headers["content-type"].startswith("text/plain; version=0.0.4")
        lines = metrics.text.splitlines()
        for line in ("outlast_accepted_total 2", "outlast_attempts_running 0", "outlast_streams_open 0",
                     'outlast_finished_total{status="completed"} 1', 'outlast_finished_total{status="failed"} 1',
                     "outlast_queue_wait_seconds_count 2", "outlast_draining 0"):  # fmt: skip
            assert line in lines
    for path in ("/livez", "/readyz", "/startupz"):
        assert code(TestClient(app).get(path)) == (503, "not_started")


def test_a_server_that_nobody_has_any_more_is_collected(url: str) -> None:
    server = DurableAgentServer(ECHO, store=url)
    with TestClient(server) as client:
        assert post(client, 1).json()["status"] == "completed"
    seen = weakref.ref(server)
    del server, client
    gc.collect()
    assert seen() is None


def test_the_hand_made_routes_are_described(url: str) -> None:
    schema = DurableAgentServer(ECHO, store=url).openapi()
    assert schema is not None
    paths = schema["paths"]
    assert set(paths["/api/invocations"]) == {"post", "get"}
    assert set(paths["/api/invocations/{id}"]) == {"parameters", "get", "delete"}
    request = schema["components"]["schemas"]["InvocationRequest"]
    assert set(request["properties"]) == {
        "id", "session_id", "input", "stream", "background", "agent", "config", "on_active", "timeout", "metadata",
    }  # fmt: skip
    with TestClient(DurableAgentServer(ECHO, store=url)) as client:
        run = post(client, 1).json()
        assert set(run) - {"output"} <= set(schema["components"]["schemas"]["Invocation"]["properties"])


def test_the_routes_of_memories_answer_as_they_are_described(url: str) -> None:
    schema = DurableAgentServer(ECHO, store=url).openapi()
    paths, schemas = schema["paths"], schema["components"]["schemas"]
    assert {path: set(paths[path]) - {"parameters"} for path in paths if path.startswith("/api/memories")} == {
        "/api/memories": {"get", "post"},
        "/api/memories/entry": {"get", "put", "patch", "delete"},
        "/api/memories/search": {"get", "post"},
    }
    required: dict[str, Any] = {
        "/api/memories": {"path": "a", "content": "tea"},
        "/api/memories/search": {"text": "tea"},
    }
    with TestClient(DurableAgentServer(ECHO, store=url)) as client:
        for path, body in required.items():
            described = paths[path]["post"]["requestBody"]["content"]["application/json"]["schema"]
            assert set(described["required"]) == set(body)
            for field in described["properties"]:
                assert client.post(path, json={**body, field: []}).json()["field"] == field
            answer = client.post(path, json=body)
            assert str(answer.status_code) in paths[path]["post"]["responses"]
            for parameter in paths[path]["get"]["parameters"]:
                value = memory_cursor("a", None) if parameter["name"] == "cursor" else "1"
                query = {"q": "a"} if "search" in path else {}
                assert client.get(path, params={**query, parameter["name"]: value}).status_code == 200
    (found,) = answer.json()["items"]
    assert set(found) == set(schemas["MemorySearchResult"]["properties"])
    assert set(found["memory"]) == set(schemas["Memory"]["properties"])


def test_an_invalid_request_has_a_status_for_its_code() -> None:
    for code_, status in (("invalid_json", 400), ("invalid_cursor", 400), ("body_too_large", 413), ("anything", 422)):
        assert problems.of(InvalidRequest("", code=code_)).status_code == status
