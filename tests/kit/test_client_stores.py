"""Sessions and memories through the clients. What the methods do is in the tests of the stores, which run over HTTP too."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from outlast import Agent, AgentClient, DurableAgentServer, SyncAgentClient
from outlast.client import AnswerLost
from outlast.core.errors import InvalidRequest, NotFound
from outlast.testing.scripted import ScriptedModel
from outlast.testing.serving import ServerProcess, ServerThread

pytestmark = pytest.mark.anyio

APP = Path(__file__).resolve().parent / "server_app.py"


@pytest.fixture
def url(store_url: str) -> Iterator[str]:
    with ServerThread(DurableAgentServer(Agent(ScriptedModel("Hello!")), store=store_url)) as server:
        yield server.url


class Line(httpx.AsyncHTTPTransport):
    """Breaks once when `broken` says so: before the next request leaves, or when it was answered."""

    broken: str | None = None
    error: type[httpx.TransportError] = httpx.ReadError

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        broken, self.broken = self.broken, None
        if broken == "before":
            raise self.error("broken")
        answer = await super().handle_async_request(request)
        if broken == "after":
            await answer.aread()
            raise self.error("broken")
        return answer


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> Line:
    monkeypatch.setattr("outlast.client.transport.FIRST_WAIT_SECONDS", 0.001)
    return Line()


@pytest.fixture
async def client(url: str, line: Line) -> AsyncIterator[AgentClient]:
    async with httpx.AsyncClient(base_url=url, transport=line, timeout=30) as http:
        client = AgentClient(http=http)
        await client.sessions.create("s", labels={"a": "1"})
        await client.sessions.append("s", [{"n": 1}, {"n": 2}])
        await client.memory.add("old", "one")
        yield client


async def stored(client: AgentClient) -> tuple[Any, ...]:
    """Return what is in the database, without ids and times that differ from one session to the next."""
    sessions = [one async for one in client.sessions.list()]
    items = [[item.content["n"] async for item in client.sessions.items(one.id)] for one in sessions]
    origins = [(one.forked_from, dict(one.labels)) for one in sessions]
    return origins, items, [(one.path, one.content) for one in await client.memory.list()]


HEAD = '{"type": "session", "id": "exported", "agent": "agent", "actor_id": "ann", "labels": {}}'
ITEM = '{"type": "item", "id": "i", "content": {"n": 7}}'
SAFE: dict[str, Callable[[AgentClient], Awaitable[Any]]] = {
    "create": lambda client: client.sessions.create(),
    "fork": lambda client: client.sessions.fork("s"),
    "append": lambda client: client.sessions.append("s", [{"n": 3}]),
    "import": lambda client: client.sessions.import_([HEAD, ITEM]),
    "label": lambda client: client.sessions.update("s", labels={"a": None, "b": "2"}),
    "delete": lambda client: client.sessions.delete("s"),
    "add": lambda client: client.memory.add("new", "two"),
    "put": lambda client: client.memory.put("new", "two"),
    "put behind": lambda client: client.memory.put("old", "two", append=True),
    "update": lambda client: client.memory.update("old", "two"),
    "forget": lambda client: client.memory.delete("old"),
}


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("change", SAFE)
async def test_a_change_whose_connection_broke_is_made_once_and_answered(
    client: AgentClient, line: Line, change: str, moment: str
) -> None:
    before = await stored(client)
    line.broken = moment
    answer = await SAFE[change](client)
    origins, items, memories = await stored(client)
    match change:
        case "create":
            assert (origins, items) == ([(None, {}), *before[0]], [[], *before[1]])
            assert answer == await client.sessions.get(answer.id)
        case "fork":
            assert (origins, items) == ([("s", {}), *before[0]], [[1, 2], [1, 2]])
            assert answer == await client.sessions.get(answer.id)
        case "import":
            assert (origins, items) == ([(None, {}), *before[0]], [[7], *before[1]])
            assert answer.id == "exported"
        case "append":
            assert items == [[1, 2, 3]]
            assert list(answer) == [item async for item in client.sessions.items("s", after=2)]
        case "label":
            assert answer.labels == {"b": "2"}
        case "delete":
            assert (answer, origins) == (None, [])
        case "forget":
            assert (answer, memories) == (None, [])
        case _:
            contents = {"add": "two", "put": "two", "put behind": "onetwo", "update": "two"}
            assert answer == await client.memory.get(answer.path)
            assert answer.content == contents[change]


async def test_removing_what_is_not_there_is_an_error_when_no_try_was_lost(client: AgentClient) -> None:
    with pytest.raises(NotFound):
        await client.sessions.delete("nobody")
    with pytest.raises(NotFound):
        await client.memory.delete("nothing")


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_pop_without_an_answer_says_so_and_is_not_repeated(
    client: AgentClient, line: Line, moment: str
) -> None:
    line.broken = moment
    with pytest.raises(AnswerLost):
        await client.sessions.pop("s")
    assert [item.content["n"] async for item in client.sessions.items("s")] == [1, 2][: 2 if moment == "before" else 1]
    line.broken = moment
    with pytest.raises(AnswerLost):
        await client.sessions.clear("s")


async def test_a_pop_that_never_left_is_repeated(client: AgentClient, line: Line) -> None:
    line.broken, line.error = "before", httpx.ConnectError
    popped = await client.sessions.pop("s")
    assert popped is not None
    assert popped.content == {"n": 2}


@pytest.mark.parametrize(("answer", "repeated"), [((503, "not_started"), True), ((503, "store_unavailable"), False)])
async def test_a_pop_that_was_refused_for_now_is_repeated_only_if_it_was_not_begun(
    answer: tuple[int, str], repeated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outlast.client.transport.FIRST_WAIT_SECONDS", 0.001)
    answers = [httpx.Response(answer[0], json={"code": answer[1]}), httpx.Response(200, json={"item": None})]
    transport = httpx.MockTransport(lambda request: answers.pop(0))
    async with httpx.AsyncClient(base_url="http://server", transport=transport) as http:
        client = AgentClient(http=http)
        if repeated:
            assert await client.sessions.pop("s") is None
        else:
            with pytest.raises(AnswerLost):
                await client.sessions.pop("s")
    assert len(answers) == (0 if repeated else 1)


@pytest.mark.slow
async def test_changes_through_a_server_that_is_killed_are_made_once(store_url: str, tmp_path: Path) -> None:
    server = ServerProcess.serving(f"{APP}:app", store_url, log=tmp_path / "log")
    with server:
        async with AgentClient(server.url, patience=60) as client:
            await client.sessions.create("s")

            async def change() -> None:
                for number in range(300):
                    await client.sessions.append("s", [{"n": number}])
                    await client.memory.put("log", f"{number} ", append=True)

            changing = asyncio.create_task(change())
            for position in (50, 120, 200):
                while not [item async for item in client.sessions.items("s", after=position - 1, limit=1)]:
                    await asyncio.sleep(0.01)
                await asyncio.to_thread(server.kill)
                await asyncio.to_thread(server.start)
            await changing
            assert [item.content["n"] async for item in client.sessions.items("s")] == [*range(300)]
            assert (await client.memory.get("log")).content.split() == [str(number) for number in range(300)]


@pytest.mark.parametrize("id", [".", "..", "a/../b", "\u00e9 ?#%2F", "items"])
async def test_a_session_is_reached_whatever_its_name(client: AgentClient, id: str) -> None:
    await client.sessions.create(id)
    await client.sessions.append(id, [{"role": "user", "content": "hi"}])
    assert [item.position async for item in client.sessions.items(id)] == [1]
    assert (await client.session(id).resume()).text == "Hello!"
    assert await client.session(id).resume_point() is None
    await client.sessions.delete(id)


async def test_what_a_url_cannot_hold_is_refused(client: AgentClient) -> None:
    for act in (client.session("\ud800").resume(), client.sessions.page(labels={"a": "\ud800"}), client.get("\ud800")):
        with pytest.raises(InvalidRequest):
            await act


def test_every_method_works_without_asyncio(url: str) -> None:
    with SyncAgentClient(url) as client:
        sessions, memory = client.sessions, client.memory
        assert sessions.create("s") == sessions.get("s")
        sessions.append("s", [{"n": n} for n in range(250)], key="k")
        assert [item.content["n"] for item in sessions.items("s", newest_first=True, limit=201)] == [
            *range(249, 48, -1)
        ]
        assert sessions.fork("s", "copy", labels={"try": "1"}).forked_from == "s"
        assert [one.id for one in sessions.list()] == ["copy", "s"]
        assert [one.id for one in sessions.page(labels={"try": "1"}, limit=1).sessions] == ["copy"]
        assert sessions.update("copy", labels={"try": None}).labels == {}
        assert sessions.pop("s") == next(sessions.items("copy", newest_first=True))
        assert sessions.clear("s") == 249
        assert [item.content for item in sessions.items("copy", limit=1)] == [{"n": 0}]
        lines = list(sessions.export("copy"))
        assert sessions.import_([f"{line}\n" for line in lines], id="imported").id == "imported"
        assert [item.id for item in sessions.items("imported")] == [item.id for item in sessions.items("copy")]
        sessions.delete("s", force=True)
        assert memory.add("a", "tea") == memory.get("a")
        memory.put("a", ", green", append=True)
        assert [one.memory.content for one in memory.search("green")] == ["tea, green"]
        assert memory.update("a", "milk") == memory.list("a")[0]
        memory.delete("a")
