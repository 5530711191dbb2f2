"""Tools that agent.toml declares, in a graph and in an agent of the SDK: journalled like any other."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp")
pytest.importorskip("agents")
pytest.importorskip("langchain")

from agents import Agent, set_tracing_disabled
from langchain.agents import create_agent

from outlast import open_store, tools
from outlast.adapters import DurableAgent
from outlast.server import Config
from outlast.testing.effects import EffectsLog
from outlast.testing.kill import KillAt, KillHarness
from outlast.testing.scripted import Say, Script, ScriptedCall
from outlast_langgraph import LangGraphAgent
from outlast_langgraph.testing import ScriptedChatModel
from outlast_openai import OpenAIAgent
from outlast_openai.testing import ScriptModel

pytestmark = pytest.mark.anyio

set_tracing_disabled(True)

SERVER = str(Path(__file__).parent.parent / "kit" / "tool_server.py")
ID = "5f0d8f3c-0d0b-4a53-9d7f-5f5f3a9c1b11"
FRAMEWORKS = ["langgraph", "openai"]


def declare(folder: Path, *lines: str) -> None:
    path = f"PYTHONPATH={os.pathsep.join(sys.path)}"
    command = ["env", path, sys.executable, SERVER, str(folder)]
    (folder / "agent.toml").write_text("\n".join(["[[tools]]", "name = 'shop'", f"command = {command!r}", *lines]))


def agent(framework: str, folder: str, *calls: ScriptedCall) -> DurableAgent:
    given = tools.load(framework, Config.read(Path(folder), {}))
    script = Script(Say("", list(calls)), "Done.")
    if framework == "openai":
        return OpenAIAgent(Agent(name="desk", model=ScriptModel(script), tools=given), rerun_safe=given.rerun_safe)
    return LangGraphAgent(create_agent(ScriptedChatModel(script=script), given), rerun_safe=given.rerun_safe)


async def run(framework: str, folder: str) -> dict[str, Any]:
    async with open_store(f"sqlite:///{folder}/state.db") as local:
        calls = [ScriptedCall("shop_pay", {"x": 1}, "call_a")]
        reply = await agent(framework, folder, *calls).session("s", store=local).run("go", id=ID)
    return {"text": reply.text, "told": [one["content"] for one in reply.messages if one["role"] == "tool"]}


@pytest.mark.parametrize("framework", FRAMEWORKS)
async def test_a_tool_is_called_and_one_that_fails_is_told_to_the_model(framework: str, tmp_path: Path) -> None:
    declare(tmp_path)
    calls = [ScriptedCall("shop_pay", {"x": 1}, "call_a"), ScriptedCall("shop_fail", {}, "call_b")]
    async with open_store(f"sqlite:///{tmp_path}/state.db") as local:
        reply = await agent(framework, str(tmp_path), *calls).session("s", store=local).run("go")
    paid, failed = [one["content"] for one in reply.messages if one["role"] == "tool"]
    assert (reply.text, paid) == ("Done.", "paid 1")
    assert failed.startswith("tool_failed: ") and "no money" in failed
    assert len(EffectsLog(tmp_path / "keys").read()[0]) == 64


@pytest.mark.parametrize("framework", FRAMEWORKS)
async def test_a_call_for_a_user_without_the_credential_of_one_says_so(framework: str, tmp_path: Path) -> None:
    declare(tmp_path, "credential = 'SHOP_TOKEN'")
    calls = [ScriptedCall("shop_whose", {}, "call_a")]
    async with open_store(f"sqlite:///{tmp_path}/state.db") as local:
        reply = await agent(framework, str(tmp_path), *calls).session("s", store=local).run("go")
    (told,) = [one["content"] for one in reply.messages if one["role"] == "tool"]
    assert reply.text == "Done." and told.startswith("credential_required: ")


@pytest.fixture(scope="module")
def harness() -> Iterator[KillHarness]:
    with KillHarness(preload=[__file__], timeout_seconds=40) as harness:
        yield harness


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_tool_that_was_called_before_a_kill_is_not_called_again(
    harness: KillHarness, tmp_path: Path, framework: str
) -> None:
    declare(tmp_path)
    where = {"framework": framework, "folder": str(tmp_path)}
    assert harness.start(run, where, kill=KillAt("finish.before_commit")).wait().killed
    assert harness.run(run, where).result == {"text": "Done.", "told": ["paid 1"]}
    assert EffectsLog(tmp_path / "effects").read() == ["pay 1"]
