"""Server-sent events, over a real socket, read as a browser would."""

import asyncio
import contextlib
import json
import logging
import re
import socket
import struct
import threading
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx
import pytest
from starlette.middleware.gzip import GZipMiddleware

from outlast import AgentHandlers, DurableAgentServer, EngineSettings, InvocationContext
from outlast.core.errors import StoreUnavailable
from outlast.store.reading import Reader
from outlast.testing.serving import ServerProcess, ServerThread

GATES: dict[str, threading.Event] = {}


async def agent(context: InvocationContext) -> Any:
    """Emit `emit`, then `count` events in groups, wait for the gate, then emit `late`."""
    asked = context.input
    for event in asked.get("emit", []):
        await context.emit(event)
    size, count = asked.get("size", 0), asked.get("count", 0)
    for number in range(count):
        context.post({"type": "step", "number": number, "text": "x" * size})
        if number % 20 == 19:
            await context.barrier()
    await context.barrier()
    while "gate" in asked and not GATES[asked["gate"]].is_set():
        await asyncio.sleep(0.01)
    for event in asked.get("late", []):
        await context.emit(event)
    return asked.get("output")


class Frame(NamedTuple):
    id: str | None
    event: str | None
    data: Any


def frame(text: str) -> Frame:
    fields = dict(line.split(": ", 1) for line in text.split("\n"))
    return Frame(fields.get("id"), fields.get("event"), json.loads(fields["data"]))


def frames(text: str) -> list[Frame]:
    """Parse a whole stream: blocks of LF lines, without comments and hints."""
    assert text.endswith("\n\n")
    return [frame(block) for block in text[:-2].split("\n\n") if not block.startswith((":", "retry:"))]


async def live(response: httpx.Response) -> AsyncIterator[Frame]:
    buffered = ""
    async for text in response.aiter_text():
        *blocks, buffered = (buffered + text).split("\n\n")
        for block in blocks:
            if not block.startswith((":", "retry:")):
                yield frame(block)


@pytest.fixture
def gate() -> Iterator[str]:
    name = uuid.uuid4().hex
    GATES[name] = threading.Event()
    yield name
    GATES[name].set()


@contextlib.contextmanager
def serving(store_url: str, **options: Any) -> Iterator[httpx.Client]:
    app = DurableAgentServer(AgentHandlers(agent, agent), store=store_url, **options)
    with ServerThread(app) as server, httpx.Client(base_url=server.url, timeout=30) as client:
        yield client


def reading(client: httpx.Client) -> httpx.AsyncClient:
    """An asynchronous client of the same server, with as many connections as it takes."""
    return httpx.AsyncClient(base_url=client.base_url, timeout=60, limits=httpx.Limits(max_connections=None))


@pytest.fixture
def client(store_url: str) -> Iterator[httpx.Client]:
    with serving(store_url) as client:
        yield client


def start(client: httpx.Client, **input: Any) -> str:
    """Start a run in the background and return the path of its events."""
    body = {"id": str(uuid.uuid4()), "input": input, "background": True}
    url: str = client.post("/api/invocations", json=body).json()["events_url"]
    return url


def stored(client: httpx.Client, events_url: str) -> list[Any]:
    """The whole log, page by page."""
    items: list[Any] = []
    cursor = ""
    while cursor is not None:
        page = client.get(events_url, params={"after": cursor}, headers={"Accept": "application/json"}).json()
        items += page["items"]
        cursor = page["next_cursor"]
    return items


def wait_final(client: httpx.Client, events_url: str) -> Any:
    give_up = time.monotonic() + 30
    while (run := client.get(events_url.removesuffix("/events")).json())["finished_at"] is None:
        assert time.monotonic() < give_up, run
        time.sleep(0.01)
    return run


def test_a_streaming_request_gets_its_events_and_its_end(client: httpx.Client) -> None:
    input = {"emit": [{"type": "a"}, ["b"], "c"], "output": 1}
    body = {"id": str(uuid.uuid4()), "input": input, "stream": True}
    response = client.post("/api/invocations", json=body)
    assert response.headers["content-type"].startswith("text/event-stream")
    assert (response.headers["cache-control"], response.headers["x-accel-buffering"]) == ("no-store", "no")
    assert response.text.startswith("retry: ")
    *events, end = frames(response.text)
    assert events == [("1", "a", {"type": "a"}), ("2", None, ["b"]), ("3", None, "c")]
    run = client.get(f"/api/invocations/{body['id']}").json()
    assert (end, run["status"]) == ((None, "end", run), "completed")


def test_events_arrive_while_the_run_goes_on(client: httpx.Client, gate: str) -> None:
    url = start(client, emit=[{"type": "first"}], gate=gate, late=[{"type": "last"}])

    async def read() -> list[str | None]:
        names = []
        async with (
            reading(client) as reader,
            reader.stream("GET", url) as stream,
        ):
            async for one in live(stream):
                names.append(one.event)
                GATES[gate].set()
        return names

    assert asyncio.run(read()) == ["first", "last", "end"]


def test_a_cut_after_every_frame_and_a_reconnect_give_exactly_the_log(client: httpx.Client) -> None:
    """Promise 3: no gap and no repeat, wherever the connection breaks."""
    url = start(client, count=200, output="done")
    whole = frames(client.get(url).text)
    assert [one.id for one in whole] == [*(str(n) for n in range(1, 201)), None]
    assert [one.data for one in whole[:-1]] == [item["event"] for item in stored(client, url)]

    async def reconnecting() -> list[Frame]:
        seen: list[Frame] = []
        async with reading(client) as reader:
            while not seen or seen[-1].event != "end":
                headers = {"Last-Event-ID": seen[-1].id or ""} if seen else {}
                async with reader.stream("GET", url, headers=headers) as stream:
                    async for one in live(stream):
                        seen.append(one)
                        break
        return seen

    assert asyncio.run(reconnecting()) == whole


# BR-35
def test_the_larger_cursor_counts(client: httpx.Client) -> None:
    url = start(client, count=10)
    wait_final(client, url)

    def first(after: str | None, header: str | None) -> str | None:
        response = client.get(url, params={} if after is None else {"after": after},
                              headers={} if header is None else {"Last-Event-ID": header})  # fmt: skip
        return frames(response.text)[0].id

    assert [first("3", "7"), first("7", "3"), first(None, "7"), first("7", None)] == ["8"] * 4
    assert [first("", ""), first(None, None)] == ["1"] * 2
    assert [one.event for one in frames(client.get(url, params={"after": 10}).text)] == ["end"]


JSON = "application/json"


@pytest.mark.parametrize("cursor", ["x", "-1", "1.5", "1 2", "\u0661", "11", "9" * 30, "1e1", "0x1", "5.1"])
def test_a_cursor_that_nobody_gave_is_refused_before_any_header(client: httpx.Client, gate: str, cursor: str) -> None:
    for url in (start(client, count=10), start(client, count=10, gate=gate)):
        give_up = time.monotonic() + 20
        while len(stored_now(client, url)) < 10:
            assert time.monotonic() < give_up
        answers = [
            client.get(url, params={"after": cursor}, headers={"Accept": accepted}) for accepted in ("*/*", JSON)
        ]
        if cursor.isascii():
            answers.append(client.get(url, params={"after": "1"}, headers={"Last-Event-ID": cursor}))
        for answer in answers:
            assert (answer.status_code, answer.json()["code"]) == (400, "invalid_cursor")


def stored_now(client: httpx.Client, url: str) -> list[Any]:
    items: list[Any] = client.get(url, headers={"Accept": "application/json"}).json()["items"]
    return items


def test_a_streaming_request_follows_the_same_rules_and_stores_nothing_when_refused(client: httpx.Client) -> None:
    body = {"id": str(uuid.uuid4()), "input": {"count": 10}, "stream": True}
    for cursor in ("x", "5"):
        refused = client.post("/api/invocations", json=body, headers={"Last-Event-ID": cursor})
        assert (refused.status_code, refused.json()["code"]) == (400, "invalid_cursor")
    assert client.get(f"/api/invocations/{body['id']}").status_code == 404
    client.post("/api/invocations", json=body)
    again = client.post("/api/invocations?after=3", json=body, headers={"Last-Event-ID": "7"})
    assert frames(again.text)[0].id == "8"
    assert client.post("/api/invocations?after=11", json=body).status_code == 400


def test_events_as_json_pages(client: httpx.Client, gate: str) -> None:
    url = start(client, count=7, gate=gate)
    json_ = {"Accept": "application/json"}
    give_up = time.monotonic() + 20
    while len(stored_now(client, url)) < 7:
        assert time.monotonic() < give_up
    page = client.get(url, params={"limit": 3, "after": 5}, headers=json_).json()
    assert [item["position"] for item in page["items"]] == [6, 7]
    assert page["next_cursor"] == "7", "the run goes on"
    assert set(page["items"][0]) == {"position", "attempt", "at", "event"}
    GATES[gate].set()
    wait_final(client, url)
    assert client.get(url, params={"limit": 3, "after": 5}, headers=json_).json()["next_cursor"] is None
    assert client.get(url, params={"limit": 3}, headers=json_).json()["next_cursor"] == "3"
    assert len(stored(client, url)) == 7


# BR-27
def test_a_reader_on_another_worker_gets_everything_live(store_url: str, gate: str) -> None:
    with serving(store_url) as here, serving(store_url) as there:
        url = start(here, count=5, gate=gate, late=[{"type": "late", "n": n} for n in range(15)])

        async def read() -> list[Frame]:
            seen = []
            async with reading(there) as reader, reader.stream("GET", url) as s:
                async for one in live(s):
                    seen.append(one)
                    if one.id == "5":
                        GATES[gate].set()
            return seen

        *events, end = asyncio.run(read())
        assert [one.id for one in events] == [str(n) for n in range(1, 21)]
        assert end.data == there.get(url.removesuffix("/events")).json()


# BR-30 in its server form
@pytest.mark.parametrize("size", [7_990, 8_000, 8_010, 5_000_000])
def test_events_of_any_size_arrive_on_another_worker(store_url: str, size: int) -> None:
    with serving(store_url) as here, serving(store_url) as there:
        url = start(here, count=1, size=size)
        event, _end = frames(there.get(url).text)
        assert len(event.data["text"]) == size


# BR-31
def test_comments_keep_a_silent_stream_alive_also_while_queued(store_url: str, gate: str) -> None:
    with serving(store_url, keep_alive=0.05) as client:
        bodies = [{"id": str(uuid.uuid4()), "session_id": "s", "stream": True, "input": {"gate": gate, "count": 1}}
                  for _ in range(2)]  # fmt: skip

        async def read(body: Any) -> str:
            text = ""
            async with reading(client) as reader, reader.stream("POST", "/api/invocations", json=body) as stream:
                async for part in stream.aiter_text():
                    text += part
                    if text.count(": keep-alive\n\n") >= 3:
                        silent.pop(body["id"], None)
                    if not silent:
                        GATES[gate].set()
            return text

        async def both() -> list[str]:
            return await asyncio.gather(*(read(body) for body in bodies))

        silent = {body["id"]: True for body in bodies}
        for text in asyncio.run(both()):
            assert [one.event for one in frames(text)] == ["step", "end"]
            assert re.fullmatch(r"((: keep-alive|retry: \d+|(\w+: .*\n)*data: .*)\n\n)+", text)


# BR-33
def test_readers_that_split_at_unicode_line_ends_see_the_same(client: httpx.Client) -> None:
    text = "a\u2028b\u2029c\u0085d\x0be\x1cf"
    url = start(client, emit=[{"type": "text", "text": text}], output=text)
    with client.stream("GET", url) as stream:
        data = [json.loads(line[6:]) for line in stream.iter_lines() if line.startswith("data: ")]
    assert (data[0]["text"], data[1]["output"]) == (text, text)


# BR-34, BR-36
def test_a_reader_that_joins_around_the_end_gets_all_of_it_once(client: httpx.Client) -> None:
    async def many(url: str) -> list[str]:
        async with reading(client) as reader:

            async def one(delay: float) -> str:
                await asyncio.sleep(delay)
                return (await reader.get(url)).text

            return await asyncio.gather(*(one(n / 100) for n in range(10)))

    for _ in range(5):
        for text in asyncio.run(many(start(client, count=300))):
            assert [one.id for one in frames(text)] == [*(str(n) for n in range(1, 301)), None]


# BR-37
@pytest.mark.parametrize("reset", [False, True])
def test_a_client_that_leaves_its_stream_changes_nothing(client: httpx.Client, gate: str, reset: bool) -> None:
    id = str(uuid.uuid4())
    body = json.dumps({"id": id, "input": {"count": 1, "gate": gate, "late": ["more"], "output": 5}, "stream": True})
    address = urlsplit(str(client.base_url))
    raw = socket.create_connection((address.hostname, address.port), timeout=20)
    raw.sendall(f"POST /api/invocations HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
    seen = b""
    while b"id: 1\n" not in seen:
        part = raw.recv(4096)
        assert part, seen
        seen += part
    if reset:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    raw.close()
    GATES[gate].set()
    run = wait_final(client, f"/api/invocations/{id}/events")
    assert (run["status"], run["attempt"], run["output"]) == ("completed", 1, 5)
    assert [one.id for one in frames(client.get(f"{run['events_url']}?after=1").text)] == ["2", None]


# BR-74
@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
def test_compression_holds_nothing_back(store_url: str, gate: str) -> None:
    app = DurableAgentServer(AgentHandlers(agent), store=store_url)
    app.add_middleware(GZipMiddleware, minimum_size=10)
    with ServerThread(app) as server, httpx.Client(base_url=server.url, timeout=30) as client:
        url = start(client, gate=gate, late=[{"type": "a"}])

        async def read() -> list[str | None]:
            async with reading(client) as reader:
                headers = {"Accept-Encoding": "gzip"}
                async with reader.stream("GET", url, headers=headers) as stream:  # the headers are here now
                    GATES[gate].set()
                    return [one.event async for one in live(stream)]

        assert asyncio.run(read()) == ["a", "end"]
        run = client.get(url.removesuffix("/events"), headers={"Accept-Encoding": "gzip"})
        assert run.headers["content-encoding"] == "gzip", "other answers are compressed as the user wants"


def stalled(client: httpx.Client, url: str) -> socket.socket:
    """Open a stream and never read it."""
    address = urlsplit(str(client.base_url))
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    raw.connect((address.hostname, address.port))
    raw.sendall(f"GET {url} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    return raw


# BR-28 in small; the slow form measures memory
def test_a_reader_that_never_reads_slows_nobody(client: httpx.Client, gate: str) -> None:
    url = start(client, gate=gate, late=[])
    with contextlib.closing(stalled(client, url)):
        other = start(client, count=200, size=20_000)
        with contextlib.closing(stalled(client, other)):
            assert len(frames(client.get(other).text)) == 201
            wait_final(client, other)
    GATES[gate].set()
    assert [one.event for one in frames(client.get(url).text)] == ["end"]


# BR-28
@pytest.mark.slow
def test_a_reader_that_never_reads_costs_little_memory(tmp_path: Path, store_url: str) -> None:
    """Two thousand events of 50 KB: A never reads, B does; A goes on later without a gap."""
    app = Path(__file__).resolve().parent / "server_app.py"
    with (
        ServerProcess.serving(f"{app}:app", store_url, log=tmp_path / "log") as server,
        httpx.Client(base_url=server.url, timeout=120) as client,
    ):
        url = start(client, events=500, size=50_000)
        assert len(frames(client.get(url).text)) == 501
        before = resident_bytes(server.pid)
        other = start(client, events=2000, size=50_000)
        with contextlib.ExitStack() as stack:
            for _ in range(5):
                stack.enter_context(contextlib.closing(stalled(client, other)))
            with client.stream("GET", other) as stream:
                positions = [int(line[4:]) for line in stream.iter_lines() if line.startswith("id: ")]
            assert positions == list(range(1, 2001))
            assert resident_bytes(server.pid) - before < 60 << 20, "five readers that do not read"
        rest = client.get(other, headers={"Last-Event-ID": "1990"})
        assert [one.id for one in frames(rest.text)] == [*(str(n) for n in range(1991, 2001)), None]


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


def test_a_hundred_followers_of_one_run_one_of_which_never_reads(client: httpx.Client, gate: str) -> None:
    url = start(client, gate=gate, late=[{"type": "e", "n": n, "text": "x" * 2000} for n in range(300)])

    async def follow() -> list[str]:
        async with reading(client) as reader:
            opened = 0

            async def one() -> str:
                nonlocal opened
                text = ""
                async with reader.stream("GET", url) as stream:
                    async for part in stream.aiter_text():
                        opened += not text
                        text += part
                        if opened == 99:
                            GATES[gate].set()
                return text

            return await asyncio.gather(*(one() for _ in range(99)))

    with contextlib.closing(stalled(client, url)):
        for text in asyncio.run(follow()):
            assert [one.id for one in frames(text)] == [*(str(n) for n in range(1, 301)), None]


# BR-29
def test_open_streams_hold_no_database_connection(client: httpx.Client, gate: str) -> None:
    """Sixty streams on runs that wait, queued ones among them, with four connections that read."""
    urls = [start(client, gate=gate) for _ in range(20)]

    async def many() -> None:
        async with reading(client) as reader, contextlib.AsyncExitStack() as stack:
            for url in urls * 3:
                stream = await stack.enter_async_context(reader.stream("GET", url))
                assert stream.status_code == 200
            began = time.monotonic()
            for path in (urls[0].removesuffix("/events"), "/readyz", "/api/invocations"):
                assert (await reader.get(path)).status_code == 200
            body = {"id": str(uuid.uuid4()), "input": {"count": 1}}
            assert (await reader.post("/api/invocations", json=body)).json()["status"] == "completed"
            assert time.monotonic() - began < 20, "a hang guard"

    asyncio.run(many())


def test_open_streams_are_counted_and_none_is_left_over(client: httpx.Client, gate: str) -> None:
    url = start(client, gate=gate)

    def open_streams() -> int:
        return int(re.findall(r"^outlast_streams_open (\d+)$", client.get("/metrics").text, re.MULTILINE)[0])

    with contextlib.closing(stalled(client, url)):
        until(lambda: open_streams() == 1)
    until(lambda: open_streams() == 0)


def until(done: Any) -> None:
    give_up = time.monotonic() + 20
    while not done():
        assert time.monotonic() < give_up
        time.sleep(0.01)


def test_a_stream_ends_without_an_end_when_the_database_goes(
    store_url: str, gate: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def away(*_: Any, **__: Any) -> Any:
        raise StoreUnavailable("the database cannot be read; try again")

    with serving(store_url, settings=EngineSettings()) as client:
        url = start(client, count=500)
        wait_final(client, url)
        monkeypatch.setattr(Reader, "events", away)
        assert frames(client.get(url).text) == []
        answer = client.get(url, headers={"Accept": "application/json"})
        assert (answer.status_code, answer.json()["code"], "retry-after" in answer.headers) == (
            503, "store_unavailable", True,
        )  # fmt: skip
        monkeypatch.undo()
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
