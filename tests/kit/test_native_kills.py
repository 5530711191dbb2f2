"""The native agent killed at every durable boundary of a run, and resumed by whoever comes next."""

import asyncio
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import openai
import pytest

from outlast import Agent, current_tool_call, open_store
from outlast.adapters.native import ProviderError
from outlast.adapters.native.openai_chat import OpenAIChatModel
from outlast.core.resume import INTERRUPTED_RESULT, NOT_RUN_RESULT, for_model
from outlast.core.transcript import Message
from outlast.sessions import SessionStore
from outlast.testing.effects import EffectsLog
from outlast.testing.kill import HoldAt, KillAt, KillHarness
from outlast.testing.logs import check_log
from outlast.testing.scripted import Say, Script, ScriptedCall, ScriptedModel

ID = "5f0d8f3c-0d0b-4a53-9d7f-5f5f3a9c1b11"
SAMPLE = 9
"""Every n-th point in the quick test."""


def agent(folder: str) -> Agent:
    effects, keys = EffectsLog(Path(folder) / "effects"), EffectsLog(Path(folder) / "keys")

    async def pay(x: int) -> str:
        """Pay."""
        effects.append(f"pay {x}")
        keys.append(current_tool_call().idempotency_key)
        await asyncio.sleep(0.02)
        return f"paid {x}"

    calls = [Say("First.", [ScriptedCall("pay", {"x": 1}), ScriptedCall("pay", {"x": 2})])]
    calls.append(Say("Then.", [ScriptedCall("pay", {"x": 3})]))
    return Agent(ScriptedModel(Script(*calls, Say("All is paid."))), tools=[pay])


async def run(url: str, folder: str) -> dict[str, Any]:
    """Ask for the run by its id, as a client does that does not know whether it was accepted."""
    async with open_store(url) as store:
        chat = agent(folder).session("s", store=store)
        events = [event async for event in chat.stream("pay", id=ID)]
        return await told(store, events)


async def resume(url: str, folder: str) -> dict[str, Any]:
    """Leave the dead run as it is and go on with its session."""
    async with open_store(url) as store:
        chat = agent(folder).session("s", store=store)
        events = [event async for event in chat.stream_resume()]
        return await told(store, events)


async def told(store: Any, events: list[dict[str, Any]]) -> dict[str, Any]:
    reply = events[-1]["reply"]
    return {
        "error": events[-1].get("error"),
        "text": reply and reply.text,
        "messages": reply and reply.messages,
        "events": events[:-1],
        "history": [item.content async for item in SessionStore(store).items("s")],
    }


@pytest.fixture(scope="module")
def harness() -> Iterator[KillHarness]:
    with KillHarness(preload=[__file__], timeout_seconds=20) as harness:
        yield harness


@pytest.fixture(scope="module")
def places(harness: KillHarness, tmp_path_factory: pytest.TempPathFactory) -> list[KillAt]:
    folder = tmp_path_factory.mktemp("trace")
    return harness.trace(run, {"url": f"sqlite:///{folder / 'state.db'}", "folder": str(folder)})


def check(result: Mapping[str, Any], folder: Path) -> None:
    """Nothing ran twice, every call has one answer right behind it, and the user spoke once."""
    assert result["text"] == "All is paid.", result["error"]
    for name in ("effects", "keys"):
        found = EffectsLog(folder / name).read()
        assert len(found) == len(set(found)), found
    history = result["history"]
    assert [message["role"] for message in history] == [
        "user", "assistant", "tool", "tool", "assistant", "tool", "assistant",
    ]  # fmt: skip
    asked = [call["id"] for message in history for call in message.get("tool_calls", ())]
    assert asked == [message["tool_call_id"] for message in history if message["role"] == "tool"]
    check_request(asyncio.run(sent(history)))


class Listener:
    """Takes a request in the place of a provider's client, and fails."""

    def __init__(self) -> None:
        self.chat = self.completions = self
        self.request: dict[str, Any] = {}

    async def create(self, **request: Any) -> None:
        self.request = request
        raise openai.OpenAIError("that was all")


async def sent(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a history as a provider that speaks OpenAI's chat completions gets it."""
    client: Any = Listener()
    with pytest.raises(ProviderError):
        await anext(OpenAIChatModel("m", client=client).stream(for_model(list(map(Message.of_json, history))), []))
    messages: list[dict[str, Any]] = client.request["messages"]
    return messages


def check_request(messages: list[dict[str, Any]]) -> None:
    """See what providers are strict about: each call has its result right behind it, in order, and there is no other."""
    left: list[str] = []
    for message in messages:
        assert isinstance(message["content"], str)
        if message["role"] == "tool":
            assert message["tool_call_id"] == left.pop(0)
        else:
            assert not left
            left = [call["id"] for call in message.get("tool_calls", ())]
    assert not left


def kill(harness: KillHarness, folder: Path, place: KillAt, url: str | None = None) -> dict[str, str] | None:
    """Return where the killed run left its state; None when this time it did not come to the place."""
    folder.mkdir(exist_ok=True)
    where = {"url": url or f"sqlite:///{folder / 'state.db'}", "folder": str(folder)}
    return where if harness.start(run, where, kill=place).wait().killed else None


def kill_and_recover(harness: KillHarness, folder: Path, place: KillAt) -> None:
    # Writes that come together are one transaction: a run may have one less than the run that was traced.
    if (where := kill(harness, folder, place)) is not None:
        result = harness.run(run, where).result
        check(result, folder)
        check_log(result["events"], result["messages"])


def test_killed_here_and_there(harness: KillHarness, places: list[KillAt], tmp_path: Path) -> None:
    # BR-01, BR-07
    for number, place in enumerate(places[::SAMPLE]):
        kill_and_recover(harness, tmp_path / str(number), place)


@pytest.mark.slow
def test_killed_everywhere(harness: KillHarness, places: list[KillAt], tmp_path: Path) -> None:
    for number, place in enumerate(places):
        kill_and_recover(harness, tmp_path / str(number), place)


@pytest.mark.parametrize(
    "place",
    [
        KillAt("items.before_commit"),
        KillAt("items.after_commit", 2),
        KillAt("journal.started.after_commit"),
        KillAt("tool.after_body", 2),
        KillAt("items.before_commit", 3),
        KillAt("finish.before_commit"),
    ],
    ids=str,
)
def test_killed_on_both_databases(harness: KillHarness, tmp_path: Path, store_url: str, place: KillAt) -> None:
    where = kill(harness, tmp_path, place, store_url)
    assert where is not None
    check(harness.run(run, where).result, tmp_path)


@pytest.mark.parametrize(
    ("place", "answer"),
    [
        (KillAt("journal.started.begin"), NOT_RUN_RESULT),
        (KillAt("tool.before_body"), INTERRUPTED_RESULT),
        (KillAt("tool.after_body"), INTERRUPTED_RESULT),
    ],
    ids=str,
)
def test_resuming_says_of_a_call_what_is_known(
    harness: KillHarness, tmp_path: Path, place: KillAt, answer: str
) -> None:
    where = kill(harness, tmp_path, place)
    assert where is not None
    result = harness.run(resume, where).result
    check(result, tmp_path)
    assert answer in [message["content"] for message in result["history"]]


async def look(url: str, folder: str) -> dict[str, Any]:
    """Ask how the session was interrupted, and what the dead run stored last."""
    async with open_store(url) as store:
        point, read = await agent(folder).session("s", store=store).resume_point(), (await store.store()).read
        run = await read.invocation("local", ID)
        assert point is not None
        assert run is not None
        (*_, last) = await read.events(run.number, after=0, limit=100)
        return {"kind": point.kind, "cause": point.cause, "at": point.interrupted_at, "last": last.at}


def test_a_killed_run_says_when_it_stored_its_last(harness: KillHarness, tmp_path: Path, store_url: str) -> None:
    where = kill(harness, tmp_path, KillAt("tool.before_body"), store_url)
    assert where is not None
    found = harness.run(look, where).result
    assert (found["kind"], found["cause"], found["at"]) == ("recover_tools", "worker_died", found["last"])


async def talked(url: str, said: list[dict[str, Any]]) -> None:
    """Make a session in which a lot was said."""
    async with open_store(url) as store:
        await SessionStore(store).create("s", agent="agent")
        for begin in range(0, len(said), 1000):
            await SessionStore(store).append("s", said[begin : begin + 1000])


def test_a_session_of_ten_thousand_items_goes_on_after_a_kill(
    harness: KillHarness, tmp_path: Path, store_url: str
) -> None:
    # BR-71
    said = [{"role": role, "content": role[0] * 1000} for role in ("user", "assistant")] * 5000
    asyncio.run(talked(store_url, said))
    where = kill(harness, tmp_path, KillAt("tool.after_body"), store_url)
    assert where is not None
    result = harness.run(run, where).result
    assert result["history"][: len(said)] == said
    check({**result, "history": result["history"][len(said) :]}, tmp_path)


async def prefilled(url: str, folder: str) -> str:
    """Ask with the beginning of a conversation, which ends with an answer."""
    async with open_store(url) as store:
        said = [{"role": "user", "content": "Well?"}, {"role": "assistant", "content": "As I said:"}]
        return (await Agent(ScriptedModel("No.")).session("s", store=store).run(said, id=ID)).text


def test_an_answer_in_the_input_is_not_taken_for_that_of_the_run(harness: KillHarness, tmp_path: Path) -> None:
    where = {"url": f"sqlite:///{tmp_path / 'state.db'}", "folder": str(tmp_path)}
    harness.run(prefilled, where, kill=KillAt("items.after_commit"))
    assert harness.run(prefilled, where).result == "No."


async def follow(url: str, folder: str) -> dict[str, Any]:
    """Run as `run` does, and say when the first event is there."""
    async with open_store(url) as store:
        events = []
        async for event in agent(folder).session("s", store=store).stream("pay", id=ID):
            EffectsLog(Path(folder) / "heard").append(event["type"])
            events.append(event)
        return await told(store, events)


def test_a_run_whose_process_dies_while_another_follows_it_goes_on_there(
    harness: KillHarness, tmp_path: Path, store_url: str
) -> None:
    where = {"url": store_url, "folder": str(tmp_path)}
    first = harness.start(run, where, hold=HoldAt("tool.before_body"))
    first.wait_held()
    second = harness.start(follow, where)
    while not EffectsLog(tmp_path / "heard").read():
        time.sleep(0.02)
    first.kill()
    check(second.wait().result, tmp_path)
