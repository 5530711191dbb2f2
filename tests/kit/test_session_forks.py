"""Copies of a conversation that an agent is just having, over HTTP and past the server."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from outlast import Agent, DurableAgentServer, open_store
from outlast.sessions import SessionStore
from outlast.testing.scripted import Say, ScriptedCall, ScriptedModel
from outlast.testing.serving import ServerThread

HANG_SECONDS = 30


class Waiting:
    """A tool that says that it runs, and waits to be let go on."""

    def __init__(self) -> None:
        self.begun, self.go_on = threading.Semaphore(0), threading.Semaphore(0)

    def look(self) -> str:
        self.begun.release()
        assert self.go_on.acquire(timeout=HANG_SECONDS)
        return "5 left"


@pytest.fixture
def tool() -> Waiting:
    return Waiting()


@pytest.fixture
def client(store_url: str, tool: Waiting) -> Iterator[httpx.Client]:
    call = [ScriptedCall("look")]
    agent = Agent(ScriptedModel(Say("Once.", call), Say("Twice.", call), "Done."), tools=[tool.look])
    with (
        ServerThread(DurableAgentServer(agent, store=store_url)) as server,
        httpx.Client(base_url=server.url, timeout=HANG_SECONDS) as client,
    ):
        yield client
        tool.go_on.release(9)


def texts(client: httpx.Client, id: str) -> list[Any]:
    return [item["content"]["content"] for item in client.get(f"/api/sessions/{id}/items").json()["items"]]


def test_a_fork_leaves_out_a_step_that_is_under_way(client: httpx.Client, store_url: str, tool: Waiting) -> None:
    async def fork_past_the_server() -> None:
        async with open_store(store_url) as local:
            await SessionStore(local).fork("s", "other")

    run = {"id": "0f8fad5b-d9cb-469f-a165-70867728950e", "session_id": "s", "input": "hi", "background": True}
    client.post("/api/invocations", json=run).raise_for_status()
    for copy, whole in (("first", ["hi"]), ("second", ["hi", "Once.", "5 left"])):
        assert tool.begun.acquire(timeout=HANG_SECONDS)
        assert client.post("/api/sessions/s/fork", json={"id": copy}).status_code == 201
        assert texts(client, copy) == whole
        if copy == "second":
            asyncio.run(fork_past_the_server())
            assert texts(client, "other") == whole
        tool.go_on.release()
    client.get(f"/api/invocations/{run['id']}/events").raise_for_status()
    assert texts(client, "s") == ["hi", "Once.", "5 left", "Twice.", "5 left", "Done."]
    assert texts(client, "second") == ["hi", "Once.", "5 left"]
    tool.go_on.release(2)
    resumed = client.post("/api/sessions/first/resume", json={"id": "1f8fad5b-d9cb-469f-a165-70867728950e"}).json()
    assert resumed["output"]["text"] == "Done."
