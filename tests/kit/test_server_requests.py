"""The request side of `/api/invocations`, over a real socket."""

import asyncio
import gc
import json
import logging
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from starlette.middleware.base import BaseHTTPMiddleware

from outlast import AgentHandlers, DurableAgentServer, Interrupt, InvocationContext, RunFailed
from outlast.store import reading
from outlast.testing.serving import ServerThread
from outlast.wires.native.accept import Ask

GATES: dict[str, threading.Event] = {}


async def agent(context: InvocationContext) -> Any:
    """Do what the input says; wait while its gate is closed."""
    asked = context.input if isinstance(context.input, dict) else {}
    for event in asked.get("emit", []):
        await context.emit(event)
    while "gate" in asked and not GATES[asked["gate"]].is_set():
        await asyncio.sleep(0.01)
    if "fail" in asked:
        raise RunFailed(asked["fail"], "as asked")
    if "interrupt" in asked:
        return Interrupt("input_required", questions=({"id": "q"},))
    if "auth" in asked:
        return [context.request_auth.principal, context.request_auth.credential]
    if "config" in asked:
        return [context.config, context.metadata, context.agent, context.kind]
    return {"echo": context.input}


@pytest.fixture
def client(store_url: str) -> Iterator[httpx.Client]:
    app = DurableAgentServer(AgentHandlers(agent, agent, config_keys=frozenset({"model"})), store=store_url)
    with ServerThread(app) as server, httpx.Client(base_url=server.url, timeout=30) as client:
        yield client


@pytest.fixture
def gate() -> Iterator[str]:
    """The name of a gate, opened at the end at the latest."""
    name = uuid.uuid4().hex
    GATES[name] = threading.Event()
    yield name
    GATES[name].set()


def post(client: httpx.Client, input: Any = None, *, headers: dict[str, str] | None = None, **fields: Any) -> Any:
    body = {"id": str(uuid.uuid4()), "input": input, **fields}
    return client.post("/api/invocations", content=json.dumps(body), headers=headers)


def problem(response: httpx.Response, status: int, code: str) -> dict[str, Any]:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = response.json()
    assert set(body) >= {"type", "title", "status", "detail", "code"}
    assert (body["status"], body["code"]) == (status, code)
    return body


def listed(client: httpx.Client, **query: Any) -> list[str]:
    return [one["id"] for one in client.get("/api/invocations", params=query).json()["items"]]


def wait_for(client: httpx.Client, id: str, *statuses: str) -> Any:
    give_up = time.monotonic() + 20
    while (found := client.get(f"/api/invocations/{id}").json())["status"] not in statuses:
        assert time.monotonic() < give_up, found
        time.sleep(0.01)
    return found


def test_a_sync_request_answers_with_the_final_object(client: httpx.Client) -> None:
    response = post(client, "hello", session_id="s/ü 1", metadata={"a": "b"})
    assert response.status_code == 200
    run = response.json()
    assert (run["status"], run["output"], run["session_id"]) == ("completed", {"echo": "hello"}, "s/ü 1")
    assert (run["kind"], run["attempt"], run["agent"], run["metadata"]) == ("message", 1, "agent", {"a": "b"})
    assert run["created_at"] <= run["started_at"] <= run["finished_at"]
    assert client.get(run["status_url"]).json() == run
    assert client.head(run["status_url"]).status_code == 200


def test_a_failed_or_interrupted_run_answers_200_too(client: httpx.Client) -> None:
    failed = post(client, {"fail": "no_luck"})
    assert (failed.status_code, failed.json()["error"]) == (200, {"code": "no_luck", "message": "as asked"})
    waiting = post(client, {"interrupt": True})
    assert waiting.status_code == 200
    assert (waiting.json()["status"], waiting.json()["interrupt"]["reason"]) == ("interrupted", "input_required")


def test_a_background_request_answers_202_at_once(client: httpx.Client, gate: str) -> None:
    response = post(client, {"gate": gate}, session_id="s", background=True)
    assert response.status_code == 202
    run = response.json()
    assert set(run) == {"id", "session_id", "status", "status_url", "events_url"}
    assert (response.headers["location"], run["status"]) == (run["status_url"], "running")
    GATES[gate].set()
    assert wait_for(client, run["id"], "completed")["output"]["echo"] == {"gate": gate}


def test_prefer_wait_bounds_the_wait(client: httpx.Client, gate: str) -> None:
    for prefer in ("wait=0", "respond-async, wait=0", "wait=0; x=1"):
        response = post(client, {"gate": gate}, headers={"Prefer": prefer})
        assert (response.status_code, response.headers["retry-after"]) == (202, "1")
    assert post(client, 1, headers={"Prefer": "wait=nonsense"}).status_code == 200
    assert post(client, 1, headers={"Prefer": "wait=30"}).status_code == 200


def test_the_server_bounds_the_wait_too(store_url: str, gate: str) -> None:
    app = DurableAgentServer(AgentHandlers(agent, agent), store=store_url, sync_wait=0.05)
    with ServerThread(app) as server, httpx.Client(base_url=server.url, timeout=30) as client:
        assert post(client, {"gate": gate}, headers={"Prefer": "wait=20"}).status_code == 202
        GATES[gate].set()


def test_config_metadata_agent_and_kind_reach_the_handler(client: httpx.Client) -> None:
    run = post(client, {"config": 1}, config={"model": [1]}, metadata={"k": "v"}, agent="agent").json()
    assert run["output"] == [{"model": [1]}, {"k": "v"}, "agent", "message"]
    assert problem(post(client, 1, config={"modell": 1}), 422, "unknown_config")["field"] == "config"


def test_a_bearer_credential_reaches_the_attempt_and_nothing_else(client: httpx.Client) -> None:
    run = post(client, {"auth": 1}, headers={"Authorization": "Bearer s3cr3t"}).json()
    assert run["output"] == ["local", "s3cr3t"]
    assert post(client, {"auth": 1}, headers={"Authorization": "Basic abc"}).json()["output"] == ["local", None]


def test_a_run_longer_than_its_timeout_fails(client: httpx.Client, gate: str) -> None:
    assert post(client, {"gate": gate}, timeout=0.2).json()["error"]["code"] == "timeout"


def test_a_timeout_of_ten_years_is_kept_and_a_longer_one_refused(client: httpx.Client) -> None:
    assert post(client, 1, timeout=315_360_000).json()["status"] == "completed"
    for seconds in (315_360_001, 1e18, 1e300, 10**30):
        assert problem(post(client, 1, timeout=seconds), 422, "invalid_field")["field"] == "timeout"
    assert len(listed(client)) == 1


def test_what_to_do_about_an_active_run_of_the_session(client: httpx.Client, gate: str) -> None:
    first = post(client, {"gate": gate}, session_id="s", background=True).json()["id"]
    problem(post(client, 1, session_id="s", on_active="reject"), 409, "session_active")
    queued = post(client, 2, session_id="s", background=True).json()
    assert queued["status"] == "queued"
    assert post(client, 3, session_id="s", on_active="cancel").json()["status"] == "completed"
    assert wait_for(client, first, "failed")["error"]["code"] == "cancelled"
    assert wait_for(client, queued["id"], "failed")["error"]["code"] == "cancelled"


BAD_BODIES = {
    "empty": (b"", 400, "invalid_json"),
    "malformed": (b'{"id": ', 400, "invalid_json"),
    "not utf-8": (b'{"id": "\xff"}', 400, "invalid_json"),
    "nan": (b'{"id": "0f8fad5b-d9cb-469f-a165-70867728950e", "input": NaN}', 400, "invalid_json"),
    "infinity": (b'{"id": "0f8fad5b-d9cb-469f-a165-70867728950e", "input": -Infinity}', 400, "invalid_json"),
    "overflow": (b'{"id": "0f8fad5b-d9cb-469f-a165-70867728950e", "input": 1e999}', 422, "not_json"),
    "huge integer": (b'{"input": ' + b"1" * 5000 + b"}", 400, "invalid_json"),
    "array": (b"[]", 422, "invalid_request"),
    "bad uuid": (b'{"id": "x", "input": 1}', 422, "invalid_id"),
    "bad session": (b'{"id": "0f8fad5b-d9cb-469f-a165-70867728950e", "input": 1, "session_id": "a\\u0000"}', 422,
                    "invalid_session_id"),
    "lone surrogate": (b'{"id": "0f8fad5b-d9cb-469f-a165-70867728950e", "input": 1, "session_id": "\\ud800"}', 422,
                       "invalid_session_id"),
    "unknown field": (b'{"id": "0f8fad5b-d9cb-469f-a165-70867728950e", "input": 1, "sesion_id": "s"}', 422,
                      "unknown_field"),
    "3,000 deep": (b'{"input": ' + b"[" * 3_000 + b"]" * 3_000 + b"}", 400, "invalid_json"),
    "200,000 deep": (b'{"input": ' + b'{"a":' * 200_000 + b"1" + b"}" * 200_000 + b"}", 400, "invalid_json"),
    "20,000 deep, unclosed": (b"[" * 20_000, 400, "invalid_json"),
}  # fmt: skip


# BR-39, BR-41
@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
def test_a_bad_body_is_refused_and_nothing_is_stored(client: httpx.Client, caplog: pytest.LogCaptureFixture) -> None:
    for body, status, code in BAD_BODIES.values():
        problem(client.post("/api/invocations", content=body), status, code)
    assert listed(client) == []
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
    assert post(client, 1).status_code == 200


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
def test_a_body_that_is_too_large_is_refused_before_it_was_read(client: httpx.Client) -> None:
    sent = 0

    def endless() -> Iterator[bytes]:
        nonlocal sent
        for _ in range(50):
            sent += 1
            yield b" " * (1 << 20)

    problem(client.post("/api/invocations", content=b" " * (50 << 20)), 413, "body_too_large")
    problem(client.post("/api/invocations", content=endless()), 413, "body_too_large")
    problem(client.post("/api/invocations", content=b"1" + b" " * ((10 << 20) - 1)), 422, "invalid_request")
    assert listed(client) == []


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
def test_a_declared_length_is_enough_to_refuse(client: httpx.Client) -> None:
    """The answer comes although the client never sends the body."""
    address = urlsplit(str(client.base_url))
    with socket.create_connection((address.hostname, address.port), timeout=10) as raw:
        raw.sendall(b"POST /api/invocations HTTP/1.1\r\nHost: x\r\nContent-Length: 50000000\r\n\r\n{")
        assert raw.recv(1000).startswith(b"HTTP/1.1 413 ")


# BR-57
@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
def test_tricks_in_the_path_lead_nowhere(client: httpx.Client) -> None:
    for trick in ("..%2f..%2fetc%2fpasswd", "%252e%252e%252f", "%00", "a" * 10_240, "x%0aINFO", "{id}.", "{id}%20"):
        for end in ("", "/events", "/cancel"):
            path = f"/api/invocations/{trick.replace('{id}', str(uuid.uuid4()))}{end}"
            response = client.post(path) if end == "/cancel" else client.get(path)
            assert response.status_code in (404, 422), (path, response.text)
            assert response.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
def test_unknown_paths_and_methods_are_problems_and_never_redirects(client: httpx.Client) -> None:
    run = post(client, 1).json()["status_url"]
    for path in ("/api/invocations/", f"{run}/", f"{run}/events/", f"{run}/nothing", "/api/nothing", "/livez/", "/x"):
        problem(client.get(path), 404, "not_found")
    for method, path in (("PUT", "/api/invocations"), ("PATCH", run), ("POST", f"{run}/events"), ("HEAD", f"{run}/events"),
                         ("GET", f"{run}/cancel"), ("OPTIONS", run), ("POST", "/livez")):  # fmt: skip
        response = client.request(method, path)
        assert (response.status_code, "allow" in response.headers) == (405, True)


# BR-56
@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
def test_no_other_origin_is_welcome_by_default(client: httpx.Client) -> None:
    origin = {"Origin": "https://evil.example", "Cookie": "a=b", "Access-Control-Request-Method": "POST"}
    for response in (client.get("/api/agent", headers=origin), client.options("/api/invocations", headers=origin)):
        assert not [name for name in response.headers if name.startswith("access-control")]


# BR-44
def test_an_id_in_capitals_is_the_same_id(client: httpx.Client) -> None:
    id = str(uuid.uuid4())
    first = post(client, 1, id=id).json()
    assert post(client, 1, id=id.upper()).json() == first
    assert client.get(f"/api/invocations/{id.upper()}").json() == first
    for form in (id.replace("-", ""), f"{{{id}}}", f"urn:uuid:{id}"):
        problem(post(client, 1, id=form), 422, "invalid_id")
        problem(client.get(f"/api/invocations/{form}"), 422, "invalid_id")


# BR-42
def test_twenty_equal_requests_at_once_are_one_run(client: httpx.Client) -> None:
    for number in range(5):
        body = {"id": str(uuid.uuid4()), "session_id": f"s{number}", "input": "pay", "background": True}
        with ThreadPoolExecutor(20) as pool:
            answers = list(pool.map(lambda b: client.post("/api/invocations", json=b), [body] * 20))
        assert {answer.status_code for answer in answers} == {202}
        assert wait_for(client, body["id"], "completed")["attempt"] == 1  # type: ignore[arg-type]  # it is a str
    assert len(listed(client)) == 5


# BR-43
def test_another_request_by_the_same_id_is_refused_and_harms_nothing(client: httpx.Client, gate: str) -> None:
    input, id = {"gate": gate}, str(uuid.uuid4())
    post(client, input, id=id, session_id="s", background=True)
    changes: list[dict[str, Any]] = [
        {"input": "other"},
        {"session_id": "t"},
        {"session_id": None},
        {"config": {"model": 1}},
    ]
    for change in changes:
        problem(post(client, **{"input": input, "id": id, "session_id": "s", **change}), 409, "idempotency_conflict")
    GATES[gate].set()
    assert wait_for(client, id, "completed")["output"] == {"echo": input}


async def passed_on(_request: Any, call_next: Any) -> Any:
    return await call_next(_request)


@pytest.mark.parametrize("between", [False, True], ids=["plain", "behind middleware"])
def test_what_waits_ends_when_the_client_leaves_and_the_run_goes_on(
    client: httpx.Client, store_url: str, gate: str, between: bool
) -> None:
    """A client with a short patience repeats its request, and each try holds the whole of it."""
    app = DurableAgentServer(AgentHandlers(agent, agent), store=store_url)
    if between:
        app.add_middleware(BaseHTTPMiddleware, dispatch=passed_on)
    id = str(uuid.uuid4())
    with ServerThread(app) as server, httpx.Client(base_url=server.url) as impatient:
        for _ in range(3):
            with pytest.raises(httpx.ReadTimeout):
                impatient.post("/api/invocations", json={"id": id, "input": {"gate": gate}}, timeout=0.2)
        give_up = time.monotonic() + 20
        while any(isinstance(one, Ask) and one.request.id == id for one in gc.get_objects()):
            assert time.monotonic() < give_up
            time.sleep(0.05)
        GATES[gate].set()
        assert wait_for(client, id, "completed")


# BR-45
def test_the_same_request_attaches_in_whatever_mode(client: httpx.Client, gate: str) -> None:
    input, id = {"gate": gate, "emit": [{"type": "step"}]}, str(uuid.uuid4())
    post(client, input, id=id, session_id="s", background=True)
    with client.stream("POST", "/api/invocations",
                       json={"id": id, "session_id": "s", "input": input, "stream": True}) as stream:  # fmt: skip
        lines = stream.iter_lines()
        while next(lines) != "id: 1":
            pass
        GATES[gate].set()
        assert "event: end" in list(lines)
    assert post(client, input, id=id, session_id="s").json()["status"] == "completed"
    again = post(client, input, id=id, session_id="s", stream=True, background=True)
    assert again.text.count("\nid: ") == 1
    assert again.text.count("event: end\n") == 1
    assert post(client, input, id=id, session_id="s", background=True).status_code == 202
    problem(post(client, input, id=id, session_id="s", strem=True), 422, "unknown_field")


# BR-18
def test_the_same_text_twice_is_two_runs(client: httpx.Client) -> None:
    assert [post(client, "yes", session_id="s").json()["status"] for _ in range(2)] == ["completed"] * 2
    assert len(listed(client, session_id="s")) == 2


def test_a_deleted_invocation_is_gone(client: httpx.Client, gate: str) -> None:
    run = post(client, {"gate": gate}, background=True).json()
    problem(client.delete(run["status_url"]), 409, "not_final")
    GATES[gate].set()
    wait_for(client, run["id"], "completed")
    assert client.delete(run["status_url"]).status_code == 204
    problem(client.get(run["status_url"]), 404, "not_found")
    problem(client.delete(run["status_url"]), 404, "not_found")
    problem(client.get(run["events_url"]), 404, "not_found")
    problem(post(client, {"gate": gate}, id=run["id"]), 410, "gone")


# BR-46, the part without a crash
def test_cancel(client: httpx.Client, gate: str) -> None:
    running = post(client, {"gate": gate}, session_id="s", background=True).json()
    queued = post(client, 1, session_id="s", background=True).json()
    after = post(client, 2, session_id="s", background=True).json()
    answer = client.post(f"{queued['status_url']}/cancel")
    assert (answer.status_code, answer.json()["error"]["code"]) == (200, "cancelled")
    assert client.post(f"{running['status_url']}/cancel").json()["status"] in ("running", "failed")
    assert wait_for(client, running["id"], "failed")["error"]["code"] == "cancelled"
    final = wait_for(client, after["id"], "completed")
    assert client.post(f"{after['status_url']}/cancel").json() == final
    problem(client.post(f"/api/invocations/{uuid.uuid4()}/cancel"), 404, "not_found")


def test_lists_are_filtered_and_paged(client: httpx.Client) -> None:
    ids = [post(client, n, session_id=f"s{n % 2}", metadata={"even": str(n % 2 == 0), 'a"b': "ü"}).json()["id"]
           for n in range(7)]  # fmt: skip
    assert listed(client) == ids[::-1]
    assert listed(client, session_id="s1") == ids[5::-2]
    assert listed(client, status="completed", agent="agent") == ids[::-1]
    assert listed(client, status="failed") == listed(client, agent="other") == listed(client, session_id="x") == []
    assert listed(client, **{"metadata.even": "True", 'metadata.a"b': "ü"}) == ids[6::-2]
    pages, cursor = [], ""
    while cursor is not None:
        page = client.get("/api/invocations", params={"limit": 3, "cursor": cursor}).json()
        pages.append([one["id"] for one in page["items"]])
        cursor = page["next_cursor"]
    assert pages == [ids[:3:-1], ids[3:0:-1], ids[:1]]


def test_a_page_of_large_runs_has_fewer_of_them(client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "LIST_BYTES", 5_000)
    ids = [post(client, "x" * size).json()["id"] for size in (10, 3_000, 3_000, 9_000, 10, 10)]
    pages, cursor = [], ""
    while cursor is not None:
        page = client.get("/api/invocations", params={"limit": 500, "cursor": cursor}).json()
        pages.append([one["id"] for one in page["items"]])
        cursor = page["next_cursor"]
    assert [id for page in pages for id in page] == ids[::-1]
    assert [len(page) for page in pages] == [3, 1, 1, 1]  # each has its input and, as its output, the same again


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("limit=0", 422), ("limit=501", 422), ("limit=x", 422), ("status=done", 422), ("sesion_id=s", 422),
        ("session_id=", 422), ("cursor=x", 400), ("cursor=-1", 400),
    ],
)  # fmt: skip
@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
def test_a_bad_filter_is_refused(client: httpx.Client, query: str, status: int) -> None:
    assert client.get(f"/api/invocations?{query}").status_code == status


# BR-38, BR-40
@pytest.mark.parametrize(
    "value",
    ["a\0b", "literal \\u0000", {"key\0": "v"}, "\ud800", "\u2028\u0085\x0b", 2512292042121000001, 10**30, 1.0, -0.0, True,
     {"b": 1, "a": 2}, {"": [None]}, 1e308],
)  # fmt: skip
def test_a_value_comes_back_as_it_was_sent(client: httpx.Client, value: Any) -> None:
    run = post(client, {"emit": [value], "v": value}).json()
    assert repr(run["output"]["echo"]["v"]) == repr(value)
    events = client.get(run["events_url"], headers={"Accept": "application/json"}).json()
    assert repr(events["items"][0]["event"]) == repr(value)
    stored = client.get(run["status_url"]).json()
    assert repr(stored["output"]) == repr(run["output"])


# BR-54, the small form
def test_clients_that_leave_cost_nothing_and_change_nothing(client: httpx.Client, gate: str) -> None:
    address = urlsplit(str(client.base_url))
    ids = [str(uuid.uuid4()) for _ in range(30)]
    for index, id in enumerate(ids):
        body = f'{{"id": "{id}", "input": {{"gate": "{gate}"}}}}'.encode()
        with socket.create_connection((address.hostname, address.port), timeout=10) as raw:
            cut = len(body) if index % 3 else len(body) // 2
            raw.sendall(
                b"POST /api/invocations HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body[:cut]
            )
            if index % 3:
                wait_for(client, id, "running")
    GATES[gate].set()
    for index, id in enumerate(ids):
        if index % 3:
            wait_for(client, id, "completed")
        else:
            problem(client.get(f"/api/invocations/{id}"), 404, "not_found")
