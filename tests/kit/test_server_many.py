"""Many runs at once through one server, or one run through many."""

import asyncio
import gc
import itertools
import json
import random
import time
import uuid
from pathlib import Path
from typing import Any

import httpx
import pytest

from outlast import AgentHandlers, DurableAgentServer, Interrupt, InvocationContext, RunFailed
from outlast.testing.effects import EffectsLog
from outlast.testing.serving import ServerProcess, ServerThread


def reading(url: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=url, timeout=120, limits=httpx.Limits(max_connections=100))


async def all_final(client: httpx.AsyncClient, count: int) -> list[Any]:
    """Return every invocation once there are `count` and all of them are final."""
    give_up = time.monotonic() + 60
    while True:
        items = (await client.get("/api/invocations", params={"limit": 500})).json()["items"]
        if len(items) == count and all(item["finished_at"] for item in items):
            return list(items)
        assert time.monotonic() < give_up, [item["status"] for item in items]
        await asyncio.sleep(0.05)


# BR-10
def test_background_runs_are_not_lost_to_the_garbage_collector(store_url: str) -> None:
    async def invoke(context: InvocationContext) -> Any:
        waiting: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_later(0.1, waiting.set_result, context.input)
        if context.input % 40 == 0:
            gc.collect()
        return await waiting

    async def run(url: str) -> None:
        async with reading(url) as client:
            bodies = [{"id": str(uuid.uuid4()), "input": n, "background": True} for n in range(200)]
            answers = await asyncio.gather(*(client.post("/api/invocations", json=body) for body in bodies))
            assert {answer.status_code for answer in answers} == {202}
            runs = await all_final(client, 200)
            assert sorted(run["output"] for run in runs) == list(range(200))

    gc.freeze()  # only what this test makes is of interest; looking through all of pytest's takes seconds each time
    try:
        with ServerThread(DurableAgentServer(AgentHandlers(invoke, invoke), store=store_url)) as server:
            asyncio.run(run(server.url))
    finally:
        gc.unfreeze()


# BR-75
def test_one_agent_object_serves_many_users_and_mixes_nothing(store_url: str) -> None:
    async def invoke(context: InvocationContext) -> Any:
        credential = context.request_auth.credential
        for _ in range(4):
            await asyncio.sleep(random.random() / 100)
            await context.emit([context.input, context.session_id])
        return [context.input, context.session_id, credential]

    async def one(client: httpx.AsyncClient, number: int) -> None:
        word = f"secret {number}"
        body = {"id": str(uuid.uuid4()), "session_id": f"s{number}", "input": word}
        headers = {"Authorization": f"Bearer token-{number}"}
        run = (await client.post("/api/invocations", json=body, headers=headers)).json()
        assert run["output"] == [word, f"s{number}", f"token-{number}"]
        page = (await client.get(run["events_url"], headers={"Accept": "application/json"})).json()
        assert [item["event"] for item in page["items"]] == [[word, f"s{number}"]] * 4

    async def run(url: str) -> None:
        async with reading(url) as client:
            await asyncio.gather(*(one(client, number) for number in range(50)))

    with ServerThread(DurableAgentServer(AgentHandlers(invoke, invoke), store=store_url)) as server:
        asyncio.run(run(server.url))


async def ending(context: InvocationContext) -> Any:
    """End in the way the input says."""
    await context.emit({"type": "begun"})
    match context.input:
        case "failed":
            raise RunFailed("no", "as asked")
        case "raised":
            raise ValueError("a bug")
        case "interrupted":
            return Interrupt("input_required")
        case "infinite":
            return {"score": float("inf")}
        case "nan":
            await context.emit({"x": float("nan")})
        case "slow":
            await asyncio.sleep(600)
    return context.input


ENDS = {"completed": None, "failed": "no", "raised": "handler_error", "interrupted": None,
        "infinite": "output_not_serializable", "nan": "output_not_serializable", "slow": "timeout"}  # fmt: skip


# BR-76, BR-39
def test_every_end_has_one_end_frame_made_from_the_record(store_url: str) -> None:
    app = DurableAgentServer(AgentHandlers(ending, ending), store=store_url)
    with ServerThread(app) as server, httpx.Client(base_url=server.url, timeout=60) as client:
        for input, code in ENDS.items():
            body = {"id": str(uuid.uuid4()), "input": input, "stream": True, "timeout": 0.2 if input == "slow" else 60}
            text = client.post("/api/invocations", json=body).text
            end = json.loads(text.split("event: end\ndata: ")[1], parse_constant=lambda name: pytest.fail(name))
            assert (text.count("event: end\n"), text.count("\nid: ")) == (1, 1)
            assert client.get(end["status_url"]).json() == end
            assert client.get(end["events_url"]).text == text
            assert end.get("error", {}).get("code") == code
            assert ("output" in end, "error" in end, "interrupt" in end).count(True) == 1


# BR-42
@pytest.mark.slow
def test_equal_requests_to_several_workers_are_one_run(tmp_path: Path, store_url: str) -> None:
    target = f"{Path(__file__).resolve().parent / 'server_app.py'}:app"
    effects = EffectsLog(tmp_path / "effects")

    async def run(urls: list[str]) -> None:
        clients = [reading(url) for url in urls]
        for number in range(100):
            body = {"id": str(uuid.uuid4()), "session_id": f"s{number}", "input": {"effect": str(number)},
                    "background": True}  # fmt: skip
            asked = [
                client.post("/api/invocations", json=body) for client, _ in zip(itertools.cycle(clients), range(20))
            ]
            assert {answer.status_code for answer in await asyncio.gather(*asked)} == {202}
        runs = await all_final(clients[0], 100)
        assert {(run["status"], run["attempt"]) for run in runs} == {("completed", 1)}
        for client in clients:
            await client.aclose()

    servers = [
        ServerProcess.serving(
            target, store_url, log=tmp_path / f"log{n}", env={"TEST_EFFECTS": str(effects.path)}
        ).start()
        for n in range(3)
    ]
    try:
        asyncio.run(run([server.url for server in servers]))
    finally:
        for server in servers:
            server.kill()
    assert sorted(effects.read(), key=int) == [str(n) for n in range(100)]


# BR-51
def test_two_servers_write_one_sqlite_file(tmp_path: Path) -> None:
    """Nothing fails for a lock while somebody reads all the time."""
    target = f"{Path(__file__).resolve().parent / 'server_app.py'}:app"
    url = f"sqlite:///{tmp_path / 'state.db'}"

    async def run(urls: list[str]) -> None:
        clients = [reading(url) for url in urls]
        posts = [
            client.post(
                "/api/invocations", json={"id": str(uuid.uuid4()), "session_id": f"s{n}", "input": {"events": 200}}
            )
            for n, client in zip(range(16), itertools.cycle(clients))
        ]
        posting = asyncio.gather(*posts)
        while not posting.done():
            assert (await clients[0].get("/api/invocations")).status_code == 200
        answers = await posting
        assert [answer.json()["status"] for answer in answers] == ["completed"] * 16
        for answer in answers:
            pages = {"after": 0, "limit": 500}
            page = await clients[1].get(
                answer.json()["events_url"], params=pages, headers={"Accept": "application/json"}
            )
            assert [item["position"] for item in page.json()["items"]] == list(range(1, 201))
        for client in clients:
            await client.aclose()

    one, two = (ServerProcess.serving(target, url, log=tmp_path / name) for name in ("one", "two"))
    with one, two:
        asyncio.run(run([one.url, two.url]))
    for log in ("one", "two"):
        assert "ERROR" not in (tmp_path / log).read_text()


# BR-52
def test_a_wrong_clock_takes_no_run_away_and_delays_no_takeover(tmp_path: Path, store_url: str) -> None:
    target = f"{Path(__file__).resolve().parent / 'server_app.py'}:app"
    times = {"TEST_BEAT": "0.1", "TEST_DEAD_AFTER": "0.4"}
    ahead, behind = (
        ServerProcess.serving(target, store_url, log=tmp_path / offset, env={**times, "TEST_CLOCK_OFFSET": offset})
        for offset in ("3600", "-3600")
    )

    async def long_runs() -> list[Any]:
        async with reading(ahead.url) as one, reading(behind.url) as two:
            asked = [
                client.post("/api/invocations", json={"id": str(uuid.uuid4()), "input": {"sleep": 4}})
                for client in (one, two)
            ]
            return [answer.json() for answer in await asyncio.gather(*asked)]

    body = {"id": str(uuid.uuid4()), "input": {"sleep": 600}}
    with ahead, behind:
        assert [(run["status"], run["attempt"]) for run in asyncio.run(long_runs())] == [("completed", 1)] * 2
        for dying, other in ((ahead, behind), (behind, ahead)):
            body["id"] = str(uuid.uuid4())
            httpx.post(f"{dying.url}/api/invocations", json={**body, "background": True}, timeout=60)
            dying.kill()
            run = httpx.post(f"{other.url}/api/invocations", json=body, timeout=60).json()
            assert (run["status"], run["attempt"]) == ("completed", 2)
            dying.start()


# BR-43
def test_a_conflicting_request_does_not_keep_a_run_from_recovering(tmp_path: Path, store_url: str) -> None:
    target = f"{Path(__file__).resolve().parent / 'server_app.py'}:app"
    body = {"id": str(uuid.uuid4()), "session_id": "s", "input": {"sleep": 600, "word": "long"}, "background": True}
    server = ServerProcess.serving(target, store_url, log=tmp_path / "log").start()
    try:
        assert httpx.post(f"{server.url}/api/invocations", json=body, timeout=60).status_code == 202
        for change in ({"input": "other"}, {"session_id": "t"}):
            answer = httpx.post(f"{server.url}/api/invocations", json=body | change, timeout=60)
            assert (answer.status_code, answer.json()["code"]) == (409, "idempotency_conflict")
        server.kill()
        server.start()
        run = httpx.post(f"{server.url}/api/invocations", json={**body, "background": False}, timeout=60).json()
    finally:
        server.kill()
    assert (run["status"], run["attempt"], run["session_id"]) == ("completed", 2, "s")
    assert run["output"]["input"] == body["input"]


# BR-54
@pytest.mark.slow
def test_five_hundred_clients_that_leave_leak_nothing(store_url: str) -> None:
    async def invoke(context: InvocationContext) -> Any:
        return context.input

    app = DurableAgentServer(AgentHandlers(invoke, invoke), store=store_url)

    @app.middleware("http")
    async def passing(request: Any, call_next: Any) -> Any:
        return await call_next(request)

    async def leave(port: int, number: int) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        body = json.dumps({"id": str(uuid.uuid4()), "input": number})
        writer.write(
            f"POST /api/invocations HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
            if number % 2
            else b"GET /api/invocations HTTP/1.1\r\nHost: x\r\n\r\n"
        )
        await asyncio.sleep(random.random() / 20)
        writer.transport.abort()

    async def run(url: str) -> None:
        port = int(url.rpartition(":")[2])
        for start in range(0, 500, 50):
            await asyncio.gather(*(leave(port, number) for number in range(start, start + 50)))
        async with reading(url) as client:
            for _ in range(20):
                body = {"id": str(uuid.uuid4()), "input": 1}
                assert (await client.post("/api/invocations", json=body)).json()["output"] == 1
                assert (await client.get("/api/invocations")).status_code == 200
            assert "outlast_attempts_running 0\n" in (await client.get("/metrics")).text

    with ServerThread(app) as server:
        asyncio.run(run(server.url))
