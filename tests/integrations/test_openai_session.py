"""`StoreSession` keeps what the SDK's own tests ask of a session.

Behaviours, as the SDK tests them for its sessions: what is added comes back in order, item by item as it was; nothing is
there before; `limit` gives the latest items, in order, 0 none and more than there are all, from the call or from the
settings, of which the call wins; popping takes the last item, in the reverse order, and gives None at the end; clearing
leaves nothing and the session usable; sessions do not see each other, whatever their names hold; text of any language,
quotes and SQL survive; adding nothing does nothing; items added at the same time are all there, those of one call
together; a run remembers the one before, also when it has tools, is synchronous or streamed; a list as input works; a
callback merges history and input; without a session nothing is remembered; an encrypted session wraps it; what is older
than a time to live is not returned; usage is stored and added up; several processes may append at the same time.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import Any

import pytest

pytest.importorskip("agents")

from agents import Agent, RunConfig, RunContextWrapper, Runner, function_tool
from agents.memory import Session, SessionSettings

from outlast.adapters import LocalStore, open_store
from outlast.core.errors import NotFound
from outlast.sessions import SessionStore
from outlast.testing.kill import KillHarness
from outlast.testing.scripted import History, Say, Script, ScriptedCall
from outlast_openai import OpenAIAgent, StoreSession, session
from outlast_openai.testing import ScriptModel

pytestmark = pytest.mark.anyio


@pytest.fixture
async def local(store_url: str) -> AsyncIterator[LocalStore]:
    async with open_store(store_url) as opened:
        yield opened


def user(text: str) -> Any:
    return {"role": "user", "content": text}


async def texts(session: StoreSession, limit: int | None = None) -> list[Any]:
    return [item["content"] for item in await session.get_items(limit)]  # type: ignore[typeddict-item]


ITEMS: list[Any] = [
    user("Weather in Z\u00fcrich? \u5929\u6c14 \U0001f324 '; DROP TABLE items; --"),
    {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "xyz"},
    {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "weather", "arguments": '{"city": "Z"}'},
    {"type": "function_call_output", "call_id": "c1", "output": "sunny"},
    {"type": "message", "role": "assistant", "id": "m1", "status": "completed",
     "content": [{"type": "output_text", "text": "Sunny.", "annotations": []}]},
]  # fmt: skip


async def test_items_come_back_as_they_were_in_order(local: LocalStore) -> None:
    session = StoreSession("s", local)
    assert isinstance(session, Session)
    assert await session.get_items() == []
    await session.add_items([])
    await session.add_items(ITEMS[:2])
    await session.add_items(ITEMS[2:])
    assert await StoreSession("s", local).get_items() == ITEMS


@pytest.mark.parametrize(("limit", "expected"), [(0, []), (1, ["4"]), (3, ["2", "3", "4"]), (9, list("01234"))])
async def test_limit_gives_the_latest_items(local: LocalStore, limit: int, expected: list[str]) -> None:
    await StoreSession("s", local).add_items([user(str(number)) for number in range(5)])
    limited = StoreSession("s", local, session_settings=SessionSettings(limit=limit))
    assert await texts(StoreSession("s", local), limit) == expected
    assert await texts(limited) == expected
    assert await texts(limited, 2) == ["3", "4"]


async def test_popping_takes_the_last_item_until_there_is_none(local: LocalStore) -> None:
    session = StoreSession("s", local)
    assert await session.pop_item() is None
    await session.add_items([user("a"), user("b")])
    assert [await session.pop_item() for _ in range(3)] == [user("b"), user("a"), None]


async def test_cleared_session_is_empty_and_usable(local: LocalStore) -> None:
    session = StoreSession("s", local)
    await session.clear_session()
    await session.add_items([user("a")])
    await session.clear_session()
    assert await session.get_items() == []
    await session.add_items([user("b")])
    assert await texts(session) == ["b"]


async def test_sessions_do_not_see_each_other(local: LocalStore) -> None:
    names = ["a", "A", "a/b", "a'; --", "\u5929"]
    for name in names:
        await StoreSession(name, local).add_items([user(name)])
    assert [await texts(StoreSession(name, local)) for name in names] == [[name] for name in names]


async def test_items_added_at_the_same_time_are_all_there_and_together(local: LocalStore) -> None:
    pairs = [[user(f"{number} first"), user(f"{number} second")] for number in range(20)]
    await asyncio.gather(*(StoreSession("s", local).add_items(pair) for pair in pairs))
    found = await texts(StoreSession("s", local))
    assert sorted(found) == sorted(item["content"] for pair in pairs for item in pair)
    assert all(a.split()[0] == b.split()[0] for a, b in zip(found[::2], found[1::2], strict=True))


async def test_run_tells_calls_apart_whose_ids_a_provider_uses_again(local: LocalStore) -> None:
    session = StoreSession("s", local)
    for answer in ("one", "two", "three"):
        call: Any = {"type": "function_call", "call_id": "call_1", "name": "look", "arguments": "{}"}
        await session.add_items([call, {"type": "function_call_output", "call_id": "call_1", "output": answer}])
    assert {item["call_id"] for item in await session.get_items()} == {"call_1"}  # type: ignore[typeddict-item]
    found: list[Any] = list(await session.get_items(wrapper=RunContextWrapper(None)))
    assert [item["call_id"] for item in found] == ["call_1_1"] * 2 + ["call_1_2"] * 2 + ["call_1_3"] * 2
    assert [item["output"] for item in found[1::2]] == ["one", "two", "three"]


async def test_fork_is_a_branch_of_its_own(local: LocalStore) -> None:
    session = StoreSession("s", local)
    await session.add_items([user("1"), {"role": "assistant", "content": "one"}, user("2")])
    whole, branch, empty = (
        await session.fork(),
        await session.fork("b", before_turn=2),
        await session.fork(before_turn=1),
    )
    await branch.add_items([user("other")])
    assert await texts(whole) == ["1", "one", "2"]
    assert await texts(branch) == ["1", "one", "other"]
    assert await texts(empty) == []
    assert await texts(session) == ["1", "one", "2"]
    with pytest.raises(NotFound, match="2 messages of a user"):
        await session.fork(before_turn=3)


def assistant(views: list[History]) -> Agent[Any]:
    @function_tool
    def look(at: str) -> str:
        """Look."""
        return f"{at} seen"

    script = Script(Say("", [ScriptedCall("look", {"at": "sky"})]), "Blue.", on_call=views.append)
    return Agent(name="a", model=ScriptModel(script), tools=[look])


@pytest.mark.parametrize("streamed", [False, True])
async def test_run_remembers_the_one_before(local: LocalStore, streamed: bool) -> None:
    views: list[History] = []
    for message in ("Look.", "Again."):
        session, agent = StoreSession("s", local), assistant(views)
        if streamed:
            result = Runner.run_streamed(agent, message, session=session)
            async for _ in result.stream_events():
                pass
            assert result.final_output == "Blue."
        else:
            assert (await Runner.run(agent, message, session=session)).final_output == "Blue."
    assert [message["role"] for message in views[2]] == ["user", "assistant", "tool", "assistant", "user"]
    assert len(await StoreSession("s", local).get_items()) == 8


async def test_list_as_input_and_callback(local: LocalStore) -> None:
    views: list[History] = []
    session = StoreSession("s", local)
    await session.add_items([user("old")])
    config = RunConfig(session_input_callback=lambda history, new: history[-1:] + new)
    await Runner.run(assistant(views), [user("new")], session=session, run_config=config)
    assert [message["content"] for message in views[0]] == ["old", "new"]
    assert len(await session.get_items()) == 5


@pytest.mark.filterwarnings(
    "ignore:asynchronous generator:ResourceWarning"
)  # `run_sync` shuts them down, the loop goes on
def test_synchronous_runs_and_a_store_that_is_named_by_its_url(store_url: str) -> None:
    views: list[History] = []
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        for _ in range(2):
            assert Runner.run_sync(assistant(views), "Look.", session=StoreSession("s", store_url)).final_output
        assert len(views[2]) == 5
        loop.run_until_complete(StoreSession("s", store_url).close())
    finally:
        asyncio.set_event_loop(None)
        loop.close()


async def test_encrypted_session_wraps_it(local: LocalStore) -> None:
    pytest.importorskip("cryptography")
    from agents.extensions.memory import EncryptedSession

    session = EncryptedSession("s", StoreSession("s", local), encryption_key="k" * 32)  # type: ignore[arg-type]
    await session.add_items(ITEMS)
    assert await session.get_items() == ITEMS
    assert "Z\u00fcrich" not in str(await StoreSession("s", local).get_items())


async def test_turns_that_are_too_old_are_not_returned(local: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    keeps = StoreSession("s", local, ttl=timedelta(hours=1))
    await keeps.add_items(ITEMS)
    assert await keeps.get_items() == ITEMS
    stored = [one.created_at async for one in SessionStore(local).items("s")]
    monkeypatch.setattr(session, "now_ms", lambda: stored[-1] + 3_600_000 + 1)
    assert await keeps.get_items() == []
    assert await StoreSession("s", local).get_items() == ITEMS
    monkeypatch.undo()
    while session.now_ms() <= stored[-1] + 1:
        await asyncio.sleep(0)
    await keeps.add_items([user("Again."), {"role": "assistant", "content": "Hm."}])
    monkeypatch.setattr(session, "now_ms", lambda: stored[-1] + 3_600_000)
    assert await texts(keeps) == ["Again.", "Hm."]


async def test_usage_of_runs_is_added_up(local: LocalStore) -> None:
    conversation = StoreSession("s", local)
    assert await conversation.get_session_usage() == {
        "requests": 0, "input_tokens": 0, "output_tokens": 0, "total_tokens": 0
    }  # fmt: skip
    await conversation.store_run_usage(await Runner.run(assistant([]), "Look.", session=conversation))
    await OpenAIAgent(assistant([])).session("s", store=local).run("Look.")
    used = await conversation.get_session_usage()
    assert used == {"requests": 4, "input_tokens": 4, "output_tokens": 4, "total_tokens": 8}
    assert len(await conversation.get_items()) == 8
    popped: Any = await conversation.pop_item()
    assert popped["role"] == "assistant"


async def append(url: str, name: str, turns: int) -> None:
    async with open_store(url) as store:
        conversation = StoreSession("s", store)
        for turn in range(turns):
            await conversation.add_items([user(f"{name} {turn}"), {"role": "assistant", "content": f"{name} {turn}"}])


async def talk(url: str, name: str, turns: int) -> list[str]:
    """Run an agent in a session that another process runs it in too, each waiting for the other."""
    async with open_store(url) as store:
        chat = OpenAIAgent(Agent(name="a", model=ScriptModel(Script("Hello.")))).session("s", store=store)
        return [(await chat.run(f"{name} {turn}", wait=60)).text for turn in range(turns)]


@pytest.fixture(scope="module")
def harness() -> Iterator[KillHarness]:
    with KillHarness(preload=[__file__], timeout_seconds=60) as harness:
        yield harness


@pytest.mark.parametrize("scenario", [append, talk])
def test_two_processes_share_a_session(harness: KillHarness, store_url: str, scenario: Any) -> None:
    """Nothing is lost; what one process added at once, or one run said, is not interleaved with what the other did."""
    names = ("ann", "bob")
    cases = [harness.start(scenario, {"url": store_url, "name": name, "turns": 8}) for name in names]
    for case in cases:
        assert case.wait().error is None

    async def items() -> list[Any]:
        async with open_store(store_url) as store:
            return list(await StoreSession("s", store).get_items())

    found = asyncio.run(items())
    said = [item["content"] for item in found if item["role"] == "user"]
    assert sorted(said) == sorted(f"{name} {turn}" for name in names for turn in range(8))
    assert [item["role"] for item in found] == ["user", "assistant"] * 16
    if scenario is append:
        assert all(a["content"] == b["content"] for a, b in zip(found[::2], found[1::2], strict=True))
    for name in names:
        assert [text for text in said if text.startswith(name)] == [f"{name} {turn}" for turn in range(8)]
