"""`outlast openai import-sessions`: conversations of the SDK's own sessions become sessions and go on here."""

import asyncio
import sqlite3
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("agents")

from agents import Agent, Runner, SQLiteSession, function_tool, set_tracing_disabled
from typer.testing import CliRunner, Result

from outlast import cli, open_store
from outlast.testing.scripted import History, Say, Script, ScriptedCall
from outlast_openai import OpenAIAgent, StoreSession
from outlast_openai.testing import ScriptModel

set_tracing_disabled(True)

Held = Callable[[Path, str, str], Coroutine[Any, Any, list[Any]]]


@function_tool
async def look(at: str) -> str:
    """Look."""
    return f"{at} seen"


def agent(views: list[History] | None = None) -> Agent[Any]:
    on_call = None if views is None else views.append
    script = Script(Say("", [ScriptedCall("look", {"at": "sky"})]), "Blue.", on_call=on_call)
    return Agent(name="desk", model=ScriptModel(script), tools=[look])


async def in_sqlite(path: Path, name: str, message: str) -> list[Any]:
    session = SQLiteSession(name, path)
    await Runner.run(agent(), message, session=session)
    try:
        return list(await session.get_items())
    finally:
        session.close()


async def in_sqlalchemy(path: Path, name: str, message: str) -> list[Any]:
    pytest.importorskip("greenlet")
    pytest.importorskip("aiosqlite")
    from agents.extensions.memory import SQLAlchemySession

    session = SQLAlchemySession.from_url(name, url=f"sqlite+aiosqlite:///{path}", create_tables=True)
    try:
        await Runner.run(agent(), message, session=session)
        return list(await session.get_items())
    finally:
        await session.engine.dispose()


def imported(source: str, store: str, *options: str) -> Result:
    return CliRunner().invoke(
        cli.main, ["openai", "import-sessions", source, "--agent", "desk", "--store", store, *options]
    )


async def here(url: str, name: str) -> list[Any]:
    async with open_store(url) as store:
        return list(await StoreSession(name, store).get_items())


@pytest.mark.parametrize("held", [in_sqlite, in_sqlalchemy])
def test_sessions_come_over_as_they_are_and_go_on(held: Held, tmp_path: Path, store_url: str) -> None:
    source = tmp_path / "chat.db"
    names = ["ann", "bob's \u5929"]
    there = {name: asyncio.run(held(source, name, f"I am {name}.")) for name in names}
    result = imported(str(source), store_url)
    assert (result.exit_code, result.stdout) == (0, "sessions  2 new, 0 known\nitems     8 new\n"), result.output
    assert {name: asyncio.run(here(store_url, name)) for name in names} == there

    async def go_on() -> list[History]:
        views: list[History] = []
        async with open_store(store_url) as store:
            chat = OpenAIAgent(agent(views), name="desk").session("ann", store=store)
            assert (await chat.run("And now?")).text == "Blue."
        return views

    assert [message["role"] for message in asyncio.run(go_on())[0]] == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "user",
    ]
    url = f"sqlite+aiosqlite:///{source}"
    assert imported(url, store_url).stdout == "sessions  0 new, 2 known\nitems     0 new\n"


def test_one_that_went_on_there_is_left_and_named(tmp_path: Path, store_url: str) -> None:
    source = tmp_path / "chat.db"
    asyncio.run(in_sqlite(source, "ann", "Hi."))
    assert imported(str(source), store_url).exit_code == 0
    there = SQLiteSession("ann", source)
    asyncio.run(there.add_items([{"role": "user", "content": "Hi again."}]))
    there.close()
    result = imported(str(source), store_url)
    assert result.exit_code == 1
    assert "left out  'ann': there is a session 'ann'" in result.stderr
    assert len(asyncio.run(here(store_url, "ann"))) == 4


def test_one_may_be_named_and_rows_that_are_no_items_are_passed_over(tmp_path: Path, store_url: str) -> None:
    source = tmp_path / "chat.db"
    there = [asyncio.run(in_sqlite(source, name, "Hi.")) for name in ("ann", "bob")]
    with sqlite3.connect(source) as connection:
        connection.execute("INSERT INTO agent_messages (session_id, message_data) VALUES ('bob', '{')")
    connection.close()
    result = imported(str(source), store_url, "--session", "bob", "--session", "no")
    assert result.stdout == "sessions  1 new, 0 known\nitems     4 new\n"
    assert "left out  'no': there is no such session" in result.stderr
    assert asyncio.run(here(store_url, "bob")) == there[1]


@pytest.mark.parametrize("what", ["nothing", "no database", "no table"])
def test_a_source_without_sessions_is_named_in_one_line(tmp_path: Path, store_url: str, what: str) -> None:
    source = tmp_path / "chat.db"
    if what == "no database":
        source.write_text("x" * 100)
    if what == "no table":
        source.touch()
    result = imported(str(source), store_url)
    assert result.exit_code != 0
    assert "there" in result.stderr
    assert "Traceback" not in result.output
