"""The clients, against real servers: in a thread where nothing dies, in a process where it does."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from outlast import (
    Agent,
    AgentClient,
    AgentResumeError,
    DurableAgentServer,
    InvocationContext,
    RunFailed,
    SyncAgentClient,
    Tool,
)
from outlast.adapters import LocalStore
from outlast.client import ApprovalRequest, ServerUnreachable, UnexpectedAnswer
from outlast.core.errors import Conflict, Gone, InvalidRequest, NotFound, NotJSON, SessionBusy
from outlast.core.records import ApprovalKind, ApprovalStatus
from outlast.sessions import SessionStore
from outlast.testing._ports import free_port
from outlast.testing.scripted import Say, Script, ScriptedCall, ScriptedModel
from outlast.testing.serving import ServerProcess, ServerThread

pytestmark = pytest.mark.anyio

APP = Path(__file__).resolve().parent / "server_app.py"


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def emitting(context: InvocationContext) -> Any:
    """Emit as many events as the input says, or wait."""
    if context.input == "wait":
        await asyncio.sleep(30)
    for number in range(context.input):
        await context.emit({"n": number})
    return {"text": "done"}


@pytest.fixture
def url(store_url: str) -> Iterator[str]:
    script = ScriptedModel(
        Say("One moment.", [ScriptedCall("add", {"a": 1, "b": 2})]), Say("Thr", stop_reason="length")
    )
    handwritten = DurableAgentServer(store=store_url)
    handwritten.invoke(emitting)
    brief = Agent(ScriptedModel(Script("One two three", delay_seconds=0.2)))
    agents = {"native": Agent(script, tools=[add]), "brief": brief, "plain": handwritten.agents.handwritten}
    with ServerThread(DurableAgentServer(agents=agents, store=store_url)) as server:
        yield server.url


@pytest.fixture
async def client(url: str) -> AsyncIterator[AgentClient]:
    async with AgentClient(url, agent="native") as client:
        yield client


async def test_a_remote_session_is_used_like_a_local_one(client: AgentClient) -> None:
    # BR-15, over HTTP
    chat = client.session("a/b")
    events = [event async for event in chat.stream("1+2?")]
    assert (events[-1]["reply"].text, events[-1]["reply"].stop_reason) == ("Thr", "length")
    assert "agent.tool.finished" in [event["type"] for event in events]
    point = await chat.resume_point()
    assert point is not None
    assert point.kind == "continue_response"
    assert (await chat.resume()).text == "Thr"


async def test_what_is_complete_is_not_resumed(url: str) -> None:
    async with AgentClient(url, agent="brief") as client:
        chat = client.session("s")
        assert (await chat.run("hi")).text == "One two three"
        assert await chat.resume_point() is None
        with pytest.raises(AgentResumeError) as caught:
            await chat.resume()
        assert caught.value.reason == "completed"


def test_every_method_works_without_asyncio(url: str) -> None:
    with SyncAgentClient(url, agent="native") as client:
        chat = client.session("s")
        assert chat.run("1+2?").text == "Thr"
        assert chat.resume_point() is not None
        assert chat.messages()[0]["content"] == "1+2?"
        assert list(chat.stream_resume())[-1]["type"] == "agent.run.finished"
        reply = list(chat.stream("again"))[-1]["reply"]
        assert client.get(reply.invocation_id)["status"] == "completed"
        assert client.cancel(reply.invocation_id)["status"] == "completed"


def test_a_client_in_a_second_event_loop_says_what_to_do(url: str) -> None:
    client = AgentClient(url, agent="brief")
    chat = client.session("s")

    async def stream() -> None:
        async for _ in chat.stream("hi"):
            pass

    async def once_more() -> None:
        async with client:
            await client.sessions.get("s")

    asyncio.run(stream())
    for use in (chat.resume_point, stream, once_more, client.close):
        with pytest.raises(RuntimeError, match="one AgentClient per event loop: make another"):
            asyncio.run(use())
    with pytest.raises(RuntimeError, match="or use SyncAgentClient"):
        chat.sync.resume_point()


async def test_the_same_id_is_the_same_run(client: AgentClient) -> None:
    chat, id = client.session("s"), str(uuid.uuid4())
    assert await chat.run("a", id=id) == await chat.run("a", id=id)
    with pytest.raises(Conflict) as caught:
        await chat.run("b", id=id)
    assert caught.value.code == "idempotency_conflict"


async def test_wrong_requests_raise_what_they_are(client: AgentClient, url: str) -> None:
    with pytest.raises(InvalidRequest) as invalid:
        await client.session("\x00").run("a")
    assert invalid.value.field == "session_id"
    with pytest.raises(NotFound):
        await client.get(str(uuid.uuid4()))
    with pytest.raises(RunFailed) as failed:
        await client.session("s").run({"what": 1})
    assert failed.value.code == "invalid_input"
    async with AgentClient(url, agent="plain") as plain:
        with pytest.raises(Conflict) as other:
            await plain.session("s").run(1)
    assert other.value.code == "session_of_other_agent"
    async with AgentClient(f"{url}/elsewhere") as lost:
        chat = lost.session("s")
        for ask in (chat.run("a"), chat.resume(), chat.resume_point(), chat.messages(), chat.cancel()):
            with pytest.raises(NotFound):
                await ask


@pytest.mark.parametrize("remote", [True, False])
async def test_a_session_in_which_nothing_was_said_is_empty_there_as_in_process(
    url: str, local: LocalStore, remote: bool
) -> None:
    async with AgentClient(url, agent="brief") as client:
        agent = Agent(ScriptedModel("Hello!"), name="brief")
        chat = client.session("nobody") if remote else agent.session("nobody", store=local)
        assert await chat.resume_point() is None
        assert await chat.messages() == []
        assert await chat.cancel() is False
        with pytest.raises(AgentResumeError) as refused:
            await chat.resume()
        assert refused.value.reason == "empty"
        with pytest.raises(AgentResumeError) as refused:
            async for _ in chat.stream_resume():
                pass
        assert refused.value.reason == "empty"
        assert [session.id async for session in client.sessions.list()] == []


async def test_the_messages_of_a_remote_session_are_those_of_one_in_process(
    client: AgentClient, local: LocalStore
) -> None:
    await client.session("a/b").run("1+2?")
    here = Agent(ScriptedModel("Hello!"), name="native").session("a/b", store=local)
    found = await client.session("a/b").messages()
    assert found == await here.messages()
    assert [one["role"] for one in found] == ["user", "assistant", "tool", "assistant"]
    assert found[1]["tool_calls"] == [{"id": "call_1", "name": "add", "arguments": '{"a": 1, "b": 2}'}]


async def test_a_long_history_comes_in_parts(url: str, local: LocalStore) -> None:
    sizes = list[int]()

    async def measure(answer: httpx.Response) -> None:
        await answer.aread()
        sizes.append(len(answer.json()["items"]))

    long = [{"role": "user", "content": str(number)} for number in range(10_000)]
    await SessionStore(local).create("s", agent="native")
    for at in range(0, len(long), 1000):
        await SessionStore(local).append("s", long[at : at + 1000])
    async with httpx.AsyncClient(base_url=url, event_hooks={"response": [measure]}) as http:
        assert await AgentClient(http=http, agent="native").session("s").messages() == long
    assert sizes == [500] * 20


async def test_a_page_of_large_messages_ends_early(
    client: AgentClient, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outlast.server.answers.PAGE_SIZE", 1000)
    large = [{"role": "user", "content": f"{number}" * 600} for number in range(5)]
    await client.sessions.create("s", agent="native")
    await client.sessions.append("s", large)
    async with httpx.AsyncClient(base_url=url) as http:
        for path in ("messages", "items"):
            page = (await http.get(f"/api/sessions/s/{path}")).json()
            assert (len(page["items"]), page["next_cursor"]) == (2, "2")
    assert await client.session("s").messages() == large
    assert [item.content async for item in client.sessions.items("s")] == large


async def test_a_history_that_is_no_conversation_is_named(client: AgentClient, local: LocalStore) -> None:
    await client.sessions.create("s")
    await client.sessions.append("s", [{"n": 1}], key="k")
    here = Agent(ScriptedModel("Hello!"), name="native").session("s", store=local)
    for chat in (here, client.session("s")):
        for ask in (chat.messages(), chat.resume_point(), chat.resume()):
            with pytest.raises(RunFailed, match="the item 'k-0' of this session is no message") as failed:
                await ask
            assert failed.value.code == "invalid_history"


async def test_the_inbox_of_a_server_is_read_to_its_end(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outlast.server.parameters.PAGE", 2)
    script = ScriptedModel(Say("I will.", [ScriptedCall("add", {"a": 1, "b": 2})]), "Done.")
    agent = Agent(script, tools=[Tool(add, needs_approval=True)])
    with ServerThread(DurableAgentServer(agent, store=store_url)) as server:
        async with AgentClient(server.url) as client:
            for name in "abcde":
                await client.session(name).run("1+2?")
            waiting = [one async for one in client.approvals(status="open")]
            assert [one.session_id for one in waiting] == list("edcba")
            assert (waiting[0].kind, waiting[0].status) == (ApprovalKind.APPROVAL, ApprovalStatus.OPEN)
            assert (waiting[0].name, waiting[0].call_id, waiting[0].arguments) == ("add", "call_1", {"a": 1, "b": 2})
            assert (waiting[0].allowed, waiting[0].details) == (["approve", "edit", "reject", "respond"], {})
            decision = {"id": waiting[0].id, "type": "approve"}
            await client.session("e").run({"resume": {"decisions": [decision]}})
            assert len([one async for one in client.approvals()]) == 5
            with pytest.raises(InvalidRequest) as refused:
                await anext(client.approvals(status="closing"))
            assert refused.value.field == "status"

        def decided() -> list[ApprovalRequest]:
            with SyncAgentClient(server.url) as client:
                assert [one.session_id for one in client.approvals(session_id="a")] == ["a"]
                return list(client.approvals(status=ApprovalStatus.DECIDED))

        (seen,) = await asyncio.to_thread(decided)
    assert (seen.session_id, seen.decision) == ("e", {"type": "approve"})
    assert seen.decided_at is not None
    assert seen.decided_at >= seen.created_at


async def test_handlers_of_ones_own_have_no_messages_to_tell(url: str) -> None:
    async with AgentClient(url, agent="plain") as client:
        await client.session("s").run(1)
        with pytest.raises(Conflict) as caught:
            await client.session("s").messages()
    assert caught.value.code == "unsupported_for_agent"


async def test_a_session_that_is_busy_says_so(url: str) -> None:
    async with AgentClient(url, agent="plain") as client:
        chat, id = client.session("s"), str(uuid.uuid4())
        waiting = asyncio.create_task(chat.run("wait", id=id))
        while True:
            try:
                assert (await client.get(id))["status"] == "running"
                break
            except NotFound:
                await asyncio.sleep(0.01)
        with pytest.raises(SessionBusy):
            await chat.run(1, on_active="reject")
        with pytest.raises(SessionBusy):
            await chat.resume_point()
        await client.cancel(id)
        with pytest.raises(RunFailed) as caught:
            await waiting
        assert caught.value.code == "cancelled"


async def test_a_run_that_was_stopped_says_when_and_what_was_said(url: str) -> None:
    async with AgentClient(url, agent="brief") as client:
        chat, end = client.session("s"), dict[str, Any]()
        async for event in chat.stream("hi"):
            if event["type"] == "agent.part.delta":
                await chat.cancel()
            end = event
        assert end["error"]["code"] == "cancelled"
        assert not await chat.cancel()
        point = await chat.resume_point()
    assert point is not None
    assert (point.kind, point.cause) == ("call_model", "cancelled")
    assert point.partial_text is not None
    assert "One two three".startswith(point.partial_text)
    assert point.interrupted_at is not None


class OneFrameAtATime(httpx.AsyncHTTPTransport):
    """Breaks every stream after one frame more than its opening."""

    requests = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.requests += 1
        answer = await super().handle_async_request(request)
        if "event-stream" not in answer.headers["content-type"]:
            return answer
        body: Any = answer.stream

        class Cut(httpx.AsyncByteStream):
            async def __aiter__(self) -> AsyncIterator[bytes]:
                seen = b""
                async for chunk in body:
                    seen += chunk
                    frames = seen.split(b"\n\n")
                    if len(frames) > 2:
                        yield b"\n\n".join(frames[:2]) + b"\n\n" + frames[2][:5]
                        raise httpx.ReadError("cut")
                yield seen

            async def aclose(self) -> None:
                await body.aclose()

        return httpx.Response(answer.status_code, headers=answer.headers, stream=Cut(), request=request)


async def test_a_stream_that_is_cut_after_every_frame_loses_and_repeats_nothing(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outlast.client.transport.FIRST_WAIT_SECONDS", 0.001)
    transport = OneFrameAtATime()
    async with httpx.AsyncClient(base_url=url, transport=transport) as http:
        client = AgentClient(agent="plain", http=http)
        events = [event async for event in client.session().stream(50)]
    assert [event.get("n") for event in events] == [*range(50), None]
    assert transport.requests > 50


class LongSilence(httpx.AsyncHTTPTransport):
    """Breaks the first stream after its opening, and a while in which it says nothing."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._silences = [seconds]

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        answer = await super().handle_async_request(request)
        if not self._silences:
            return answer
        seconds, body = self._silences.pop(), answer.stream

        class Silent(httpx.AsyncByteStream):
            async def __aiter__(self) -> AsyncIterator[bytes]:
                yield b":\n\n"
                await asyncio.sleep(seconds)
                raise httpx.ReadError("cut")

            async def aclose(self) -> None:
                await body.aclose()  # type: ignore[union-attr]

        return httpx.Response(answer.status_code, headers=answer.headers, stream=Silent(), request=request)


async def test_a_run_that_says_nothing_for_longer_than_the_patience_is_followed_on_when_its_stream_breaks(
    url: str,
) -> None:
    async with httpx.AsyncClient(base_url=url, transport=LongSilence(1.5)) as http:
        client = AgentClient(agent="plain", http=http, patience=1)
        assert [event.get("n") async for event in client.session().stream(3)] == [0, 1, 2, None]


async def test_a_server_that_is_killed_and_started_again_is_waited_out(tmp_path: Path) -> None:
    server = ServerProcess.serving(f"{APP}:app", f"sqlite:///{tmp_path / 'state.db'}", log=tmp_path / "log")
    await asyncio.to_thread(server.start)
    async with AgentClient(server.url, patience=60) as client:
        input = {"events": 20, "every": 0.1}
        events = client.session("s").stream(input)
        seen = [await anext(events) for _ in range(3)]
        running = asyncio.create_task(client.session("t").run({"sleep": 2}))
        await asyncio.sleep(0)
        await asyncio.to_thread(server.kill)
        with server:
            seen += [event async for event in events]
            assert [event.get("number") for event in seen] == [*range(1, 21), None]
            assert seen[-1]["output"] == {"input": input, "attempt": 2}
            assert (await running).output["input"] == {"sleep": 2}


async def test_a_server_that_is_not_there_is_given_up(tmp_path: Path) -> None:
    async with AgentClient(f"http://127.0.0.1:{free_port()}", patience=0.3) as client:
        with pytest.raises(ServerUnreachable, match=r"for 0\.3 s"):
            await client.session("s").run("a")
        with pytest.raises(ServerUnreachable):
            _ = [event async for event in client.session("s").stream("a")]


@pytest.mark.parametrize(
    "url", ["", "localhost:8000", "127.0.0.1:8000", "ftp://here", "http://", "http://a:800000", "http://a:x", None]
)
def test_a_base_url_that_is_none_is_refused_at_once(url: Any) -> None:
    for kind in (AgentClient, SyncAgentClient):
        with pytest.raises(InvalidRequest, match="the base URL") as refused:
            kind(url)
        assert refused.value.field == "base_url"


async def test_an_agent_that_a_call_names_goes_before_that_of_the_client(client: AgentClient, url: str) -> None:
    async with AgentClient(url, agent="plain") as plain:
        assert (await plain.session("s").run("a", agent="native")).text == (await client.session("t").run("a")).text
        with pytest.raises(NotJSON, match="type Agent"):  # as in process, where another agent may go on
            await plain.session("s").resume(agent=Agent(ScriptedModel("a")))


async def test_something_else_at_the_address_is_named() -> None:
    async def elsewhere(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 404, "headers": []})
        await send({"type": "http.response.body", "body": b"<html>"})

    with ServerThread(elsewhere, lifespan="off") as server:
        async with AgentClient(server.url) as client:
            with pytest.raises(UnexpectedAnswer, match="is the base URL that of an outlast server"):
                await client.session("s").run("a")


async def test_runs_are_started_listed_read_and_deleted(client: AgentClient) -> None:
    # In more than one page each.
    id = str(uuid.uuid4())
    started = await client.session("s").start(600, id=id, agent="plain", metadata={"team": "a"})
    assert (started["id"], started["session_id"], "output" in started) == (id, "s", False)
    followed = [entry async for entry in client.events(id, follow=True)]
    assert [entry["event"] for entry in followed] == [{"n": number} for number in range(600)]
    assert followed[0].keys() == {"position", "attempt", "at", "event"}
    assert (await client.get(id))["status"] == "completed"
    assert [entry["position"] async for entry in client.events(id, after=598)] == [599, 600]

    others = [(await client.session("t").run(1, agent="plain")).invocation_id for _ in range(101)]
    assert [run["id"] async for run in client.invocations()] == [*reversed(others), id]
    assert [run["id"] async for run in client.invocations(session_id="s")] == [id]
    assert [run["id"] async for run in client.invocations(metadata={"team": "a"}, agent="plain")] == [id]
    assert [run async for run in client.invocations(status="failed")] == []

    await client.delete(id)
    with pytest.raises(NotFound):
        await client.get(id)
    with pytest.raises(Gone):
        await client.session("s").start(600, id=id, agent="plain")


async def test_the_log_of_a_run_that_goes_on_ends_where_it_is_unless_it_is_followed(client: AgentClient) -> None:
    id = (await client.session().start("wait", agent="plain"))["id"]
    assert [entry async for entry in client.events(id)] == []
    with pytest.raises(Conflict, match="cancel it first"):
        await client.delete(id)
    following = asyncio.create_task(anext(client.events(id, follow=True), None))
    await client.cancel(id)
    assert await asyncio.wait_for(following, 60) is None
    assert (await client.get(id))["error"]["code"] == "cancelled"
