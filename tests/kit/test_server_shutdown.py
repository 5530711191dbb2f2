"""SIGTERM, as a deploy sends it: `outlast serve` and a plain uvicorn, with runs and streams open."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from outlast.testing.serving import ServerProcess

HERE = Path(__file__).resolve().parent
TARGET = f"{HERE / 'server_app.py'}:app"
Make = Callable[..., ServerProcess]

# A server process takes seconds to start, so that the rest of the grid is slow.
pytestmark = pytest.mark.parametrize(
    "store_url",
    ["sqlite", pytest.param("postgresql", marks=[pytest.mark.postgres, pytest.mark.slow])],
    indirect=True,
)
both = pytest.mark.parametrize("make", ["outlast serve", "uvicorn"], indirect=True)


@pytest.fixture(params=["outlast serve", pytest.param("uvicorn", marks=pytest.mark.slow)])
def make(request: pytest.FixtureRequest, tmp_path: Path, store_url: str) -> Iterator[Make]:
    """Make server processes of one kind on the test's store."""
    made: list[ServerProcess] = []

    def serve(**env: str) -> ServerProcess:
        log = tmp_path / f"log{len(made)}"
        if request.param == "uvicorn":
            command = [sys.executable, "-m", "uvicorn", "server_app:app", "--port", "{port}"]
            env["OUTLAST_STORE"] = store_url
            made.append(ServerProcess(command, log=log, env=env, cwd=HERE))
        else:
            made.append(ServerProcess.serving(TARGET, store_url, log=log, env=env))
        return made[-1].start()

    yield serve
    for server in made:
        server.kill()


def post(server: ServerProcess, **input: Any) -> httpx.Response:
    body = {"id": str(uuid.uuid4()), "input": input, "background": True}
    return httpx.post(f"{server.url}/api/invocations", json=body, timeout=60)


def until(done: Callable[[], Any]) -> None:
    give_up = time.monotonic() + 60
    while not done():
        assert time.monotonic() < give_up
        time.sleep(0.02)


def final(server: ServerProcess, id: str) -> Any:
    """Return the run once it is final."""
    until(lambda: run_of(server, id)["finished_at"])
    return run_of(server, id)


def run_of(server: ServerProcess, id: str) -> Any:
    return httpx.get(f"{server.url}/api/invocations/{id}", timeout=60).json()


def open_stream(server: ServerProcess, path: str, *, read: bool) -> socket.socket:
    address = urlsplit(server.url)
    raw = socket.create_connection((address.hostname, address.port), timeout=60)
    raw.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    if read:
        assert b"200 OK" in raw.recv(4096)
    return raw


def read_all(raw: socket.socket) -> bytes:
    parts = []
    while part := raw.recv(65536):
        parts.append(part)
    return b"".join(parts)


# BR-47
@both
def test_ten_runs_are_handed_back_and_finish_after_a_restart(make: Make) -> None:
    """Exit code 0, none failed, no attempt charged as a crash."""
    server = make(TEST_DRAIN="0.3")
    ids = [post(server, events=3, sleep=600, number=n).json()["id"] for n in range(10)]
    until(lambda: all(stored_events(server, id) == 3 for id in ids))
    server.terminate()
    assert server.wait() == 0, server.log.read_text()
    assert "Traceback" not in server.log.read_text()
    server = make()
    for number, id in enumerate(ids):
        run = final(server, id)
        assert (run["status"], run["attempt"], run["output"]["input"]["number"]) == ("completed", 2, number)
        assert stored_events(server, id) == 3


def stored_events(server: ServerProcess, id: str) -> int:
    page = httpx.get(f"{server.url}/api/invocations/{id}/events", headers={"Accept": "application/json"}, timeout=60)
    return len(page.json()["items"])


# BR-47
@both
def test_it_stops_with_streams_open_and_a_reader_that_does_not_read(make: Make) -> None:
    server = make(TEST_DRAIN="0.3")
    url = post(server, events=2000, size=20_000, sleep=600).json()["events_url"]
    queued = post(server, sleep=600).json()["events_url"]
    with contextlib.ExitStack() as stack:
        readers = [stack.enter_context(open_stream(server, path, read=True)) for path in (url, queued)]
        for path in (url, url, queued):
            stack.enter_context(open_stream(server, path, read=False))
        server.terminate()
        began = time.monotonic()
        with ThreadPoolExecutor() as pool:
            for text in pool.map(read_all, readers):
                assert b"event: end" not in text
        assert server.wait() == 0, server.log.read_text()
        assert time.monotonic() - began < 30, "a hang guard; the drain is 0.3 s"


@pytest.mark.slow
def test_a_run_that_ends_during_the_drain_ends_its_stream(make: Make) -> None:
    server = make(TEST_DRAIN="60")
    url = post(server, events=1, sleep=2).json()["events_url"]
    with open_stream(server, url, read=True) as raw:
        server.terminate()
        assert b"event: end" in read_all(raw)
    assert server.wait() == 0


def test_a_client_that_waits_gets_202_when_the_drain_is_over(make: Make) -> None:
    server = make(TEST_DRAIN="0.5")
    body = {"id": str(uuid.uuid4()), "input": {"sleep": 600}}
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(httpx.post, f"{server.url}/api/invocations", json=body, timeout=60)
        until(lambda: run_of(server, body["id"])["status"] == "running")  # type: ignore[arg-type]  # it is a str
        server.terminate()
        response = waiting.result()
    assert (response.status_code, response.headers["retry-after"]) == (202, "1")
    assert server.wait() == 0


def test_new_requests_are_refused_during_the_drain(make: Make) -> None:
    """On a connection that was there before; new ones are refused by the system."""
    server = make(TEST_DRAIN="60")
    slow = post(server, sleep=1).json()["id"]
    body = json.dumps({"id": str(uuid.uuid4()), "input": {}, "background": True})
    head = f"POST /api/invocations HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    address = urlsplit(server.url)
    with socket.create_connection((address.hostname, address.port), timeout=60) as raw:
        raw.sendall((head + body[:5]).encode())
        until(lambda: run_of(server, slow)["status"] == "running")
        server.terminate()
        until(lambda: refuses(server))
        raw.sendall(body[5:].encode())
        answer = read_all(raw)
    assert b"HTTP/1.1 503" in answer and b'"code":"draining"' in answer and b"retry-after: 1" in answer.lower()
    assert server.wait() == 0


def refuses(server: ServerProcess) -> bool:
    try:
        return httpx.get(f"{server.url}/readyz", timeout=5).status_code == 503
    except httpx.TransportError:
        return True


# BR-48, the small form
@pytest.mark.slow
def test_what_was_accepted_during_a_deploy_is_done_by_the_other_worker(make: Make) -> None:
    leaving, staying = make(TEST_DRAIN="0.5"), make()
    accepted: list[str] = []
    stop = threading.Event()

    def keep_posting() -> None:
        while not stop.is_set():
            body = {"id": str(uuid.uuid4()), "input": {"sleep": 0.2}, "background": True}
            try:
                status = httpx.post(f"{leaving.url}/api/invocations", json=body, timeout=60).status_code
            except httpx.TransportError:
                continue
            assert status in (202, 503)
            if status == 202:
                accepted.append(str(body["id"]))

    with ThreadPoolExecutor(4) as pool:
        posting = [pool.submit(keep_posting) for _ in range(4)]
        until(lambda: len(accepted) > 40)
        leaving.terminate()
        assert leaving.wait() == 0
        stop.set()
        for one in posting:
            one.result()
    for id in accepted:
        assert final(staying, id)["status"] == "completed"


@pytest.mark.slow
def test_ctrl_c_is_a_clean_end_too(make: Make) -> None:
    server = make()
    os.kill(server.pid, signal.SIGINT)
    assert server.wait() == 0, server.log.read_text()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_asked_a_second_time_the_server_waits_for_no_run(make: Make, number: signal.Signals) -> None:
    leaving = make(TEST_DRAIN="600")
    id = post(leaving, sleep=500).json()["id"]
    until(lambda: run_of(leaving, id)["status"] == "running")
    os.kill(leaving.pid, number)
    began = time.monotonic()
    until(lambda: refuses(leaving))
    if number == signal.SIGTERM:
        # A process above may pass one on that came already, so that the second must come a second later.
        until(lambda: time.monotonic() - began > 1.2)
    os.kill(leaving.pid, number)
    assert leaving.wait(25) == 0, leaving.log.read_text()
    assert final(make(), id)["output"]["attempt"] == 2


def test_several_workers_hear_of_a_second_request_to_stop(store_url: str, tmp_path: Path) -> None:
    options, drain = ("--workers", "2"), {"TEST_DRAIN": "600"}
    with ServerProcess.serving(TARGET, store_url, *options, log=tmp_path / "leaving", env=drain) as leaving:
        id = post(leaving, sleep=500).json()["id"]
        until(lambda: run_of(leaving, id)["status"] == "running")
        leaving.terminate()
        until(lambda: refuses(leaving))
        assert wait_or_ask_again(leaving) == 0, leaving.log.read_text()
    with ServerProcess.serving(TARGET, store_url, log=tmp_path / "staying") as staying:
        assert final(staying, id)["output"]["attempt"] == 2


def wait_or_ask_again(server: ServerProcess) -> int:
    """Ask again until it ends; what comes within a second of the last is the same request."""
    for _ in range(4):
        with contextlib.suppress(subprocess.TimeoutExpired):
            return server.wait(3)
        server.terminate()
    return server.wait(10)


# BR-27, BR-47
@pytest.mark.slow
def test_a_stream_that_a_deploy_ends_goes_on_elsewhere(make: Make) -> None:
    """The whole log once, over the reconnect."""
    leaving = make(TEST_DRAIN="0.2")
    url = post(leaving, events=50, every=0.02).json()["events_url"]
    with open_stream(leaving, url, read=True) as raw:
        until(lambda: stored_events(leaving, url.split("/")[3]) > 5)
        leaving.terminate()
        text = read_all(raw).decode()
    seen = [int(line[4:]) for line in text.splitlines() if line.startswith("id: ")]
    staying = make()
    rest = httpx.get(f"{staying.url}{url}", headers={"Last-Event-ID": str(seen[-1])}, timeout=60).text
    seen += [int(line[4:]) for line in rest.splitlines() if line.startswith("id: ")]
    assert seen == list(range(1, 51))
    assert rest.count("event: end\n") == 1
