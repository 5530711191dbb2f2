"""Tools that agent.toml declares, on real MCP servers over stdio and over HTTP."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("mcp")


from outlast import Agent, DurableAgentServer, SyncAgentClient, open_store, tools
from outlast.adapters import LocalStore, servers
from outlast.core.resume import INTERRUPTED_RESULT
from outlast.server import Config
from outlast.testing._ports import free_port
from outlast.testing.effects import EffectsLog
from outlast.testing.kill import KillAt, KillHarness
from outlast.testing.scripted import Say, Script, ScriptedCall, ScriptedModel
from outlast.testing.serving import ServerProcess, ServerThread

pytestmark = pytest.mark.anyio

SERVER = str(Path(__file__).with_name("tool_server.py"))
ID = "5f0d8f3c-0d0b-4a53-9d7f-5f5f3a9c1b11"
PATH = f"PYTHONPATH={os.pathsep.join(sys.path)}"


@pytest.fixture
async def local(tmp_path: Path) -> AsyncIterator[LocalStore]:
    async with open_store(f"sqlite:///{tmp_path / 'state.db'}") as opened:
        yield opened


def command(folder: Path | str) -> list[str]:
    return ["env", PATH, sys.executable, SERVER, str(folder)]


def declared(folder: Path | str, *lines: str) -> Config:
    path = Path(folder) / "agent.toml"
    path.write_text("\n".join(["[[tools]]", 'name = "shop"', *lines]) + "\n")
    return Config.read(path, {})


def stdio(folder: Path | str, *lines: str) -> Config:
    return declared(folder, f"command = {command(folder)!r}", *lines)


class Http:
    """The server over HTTP, in a process."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self.url = f"http://127.0.0.1:{self.port}/mcp"
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen([*command(self.folder), str(self.port)])
        give_up = time.monotonic() + 30
        while time.monotonic() < give_up:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
                return
            time.sleep(0.02)
        raise AssertionError("the server did not start")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Http]:
    server = Http(tmp_path_factory.mktemp("http"))
    yield server
    server.kill()


@pytest.fixture
def http(running: Http) -> Iterator[Http]:
    """Return a server that runs, and lets everybody in."""
    if running.process.poll() is not None:
        running.start()
    yield running
    for file in ("locked", "hold", "effects", "keys"):
        (running.folder / file).unlink(missing_ok=True)


def agent(given: tools.Tools, *calls: ScriptedCall) -> Agent:
    return Agent(ScriptedModel(Script(Say("", list(calls)), "Done.")), tools=given, rerun_safe=given.rerun_safe)


async def told(local: LocalStore, given: tools.Tools, *calls: ScriptedCall) -> list[str]:
    """Run the calls and return what the model is told of each."""
    reply = await agent(given, *calls).session(os.urandom(4).hex(), store=local).run("go")
    assert reply.text == "Done."
    return [one["content"] for one in reply.messages if one["role"] == "tool"]


def living(folder: Path) -> list[int]:
    found = []
    for file in folder.glob("server-*"):
        number = int(file.name.removeprefix("server-"))
        with contextlib.suppress(ProcessLookupError):
            os.kill(number, 0)
            found.append(number)
    return found


async def test_tools_of_a_command_are_called_by_one_process_that_ends_with_the_worker(tmp_path: Path) -> None:
    given = tools.load("native", stdio(tmp_path))
    assert [one.name for one in given] == ["shop_pay", "shop_whose", "shop_echo_secret", "shop_fail"]
    assert given[0].spec.description == "Pay." and "x" in given[0].spec.parameters["properties"]
    async with open_store(f"sqlite:///{tmp_path / 'state.db'}") as local:
        calls = [ScriptedCall("shop_pay", {"x": 1}), ScriptedCall("shop_whose", {}), ScriptedCall("shop_fail", {})]
        paid, whose, failed = await told(local, given, *calls)
        assert (paid, whose) == ("paid 1", "nobody")
        assert failed.startswith("tool_failed: ") and "no money" in failed
        (bad,) = await told(local, given, ScriptedCall("shop_pay", {"x": "much"}))
        assert bad.startswith("tool_failed: ")
        assert len(living(tmp_path)) == 1
    assert living(tmp_path) == []
    assert EffectsLog(tmp_path / "effects").read() == ["pay 1"]
    (key,) = EffectsLog(tmp_path / "keys").read()
    assert len(key) == 64


async def test_a_command_that_died_is_started_again_and_its_call_is_not(local: LocalStore, tmp_path: Path) -> None:
    given = tools.load("native", stdio(tmp_path))
    (tmp_path / "hold").touch()
    calling = asyncio.create_task(told(local, given, ScriptedCall("shop_pay", {"x": 1})))
    async with asyncio.timeout(20):
        while not (tmp_path / "effects").exists():
            await asyncio.sleep(0.01)
    for number in living(tmp_path):
        os.kill(number, signal.SIGKILL)
    (lost,) = await calling
    assert lost.startswith("connection_lost: ")
    (tmp_path / "hold").unlink()
    assert await told(local, given, ScriptedCall("shop_pay", {"x": 2})) == ["paid 2"]
    assert EffectsLog(tmp_path / "effects").read() == ["pay 1", "pay 2"]


async def test_an_http_server_that_restarted_between_two_calls_is_reached_again(
    local: LocalStore, http: Http, tmp_path: Path
) -> None:
    given = tools.load("native", declared(tmp_path, f'url = "{http.url}"', 'auth = "app"'))
    assert await told(local, given, ScriptedCall("shop_pay", {"x": 1})) == ["paid 1"]
    http.kill()
    http.start()
    assert await told(local, given, ScriptedCall("shop_pay", {"x": 2})) == ["paid 2"]


async def test_the_service_calls_with_its_own_credential_which_is_never_shown(
    local: LocalStore, http: Http, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (http.folder / "locked").touch()
    config = declared(tmp_path, f'url = "{http.url}"', 'auth = "app"', 'credential = "SHOP_TOKEN"')
    with pytest.raises(tools.ToolsUnavailable, match="needs SHOP_TOKEN, which is not set"):
        tools.load("native", config)
    monkeypatch.setenv("SHOP_TOKEN", "of-mallory")
    with pytest.raises(
        tools.ToolsUnavailable, match="to known callers only: it answers with status 401; set SHOP_TOKEN"
    ):
        tools.load("native", config)
    monkeypatch.setenv("SHOP_TOKEN", "of-app")
    given = tools.load("native", config)
    calls = [ScriptedCall("shop_whose", {}), ScriptedCall("shop_echo_secret", {})]
    assert await told(local, given, *calls) == ["app", "you sent Bearer ***"]
    monkeypatch.delenv("SHOP_TOKEN")
    (missing,) = await told(local, given, ScriptedCall("shop_whose", {}))
    assert missing.startswith("credential_required: ") and "SHOP_TOKEN is not set" in missing


def test_a_user_is_called_for_with_the_credential_of_the_request_which_is_not_stored(
    http: Http, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service's own credential only lists the tools."""
    (http.folder / "locked").touch()
    monkeypatch.setenv("SHOP_TOKEN", "of-app")
    given = tools.load("native", declared(tmp_path, f'url = "{http.url}"', 'credential = "SHOP_TOKEN"'))
    app = DurableAgentServer(agent(given, ScriptedCall("shop_whose", {})), store=f"sqlite:///{tmp_path / 's.db'}")
    with ServerThread(app) as server:
        with SyncAgentClient(server.url, token="of-ann") as client:
            reply = client.session("a").run("go")
        assert [one["content"] for one in reply.messages if one["role"] == "tool"] == ["ann"]
        with SyncAgentClient(server.url) as client:
            reply = client.session("b").run("go")
        (refused,) = [one["content"] for one in reply.messages if one["role"] == "tool"]
    assert refused.startswith("credential_required: ")
    assert not any(b"of-ann" in file.read_bytes() for file in tmp_path.glob("s.db*"))


async def test_connections_are_one_for_a_credential_and_no_more_than_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "MOST", 4)
    monkeypatch.setattr(servers, "_opened", {})
    monkeypatch.setenv("SHOP_TOKEN", "of-app")
    _, whose, *_ = tools.load("native", stdio(tmp_path, 'auth = "app"', 'credential = "SHOP_TOKEN"'))
    asked = []
    for token in ("of-app", "of-app", "of-b", "of-c"):
        monkeypatch.setenv("SHOP_TOKEN", token)
        asked.append(await whose.run("{}"))
    assert asked == ["app", "app", "somebody", "somebody"]
    assert len(living(tmp_path)) == 3
    monkeypatch.setattr(servers, "MOST", 2)
    monkeypatch.setenv("SHOP_TOKEN", "of-d")
    await whose.run("{}")
    async with asyncio.timeout(20):
        while len(living(tmp_path)) != 2:
            await asyncio.sleep(0.02)
    await servers.leave()
    assert living(tmp_path) == []


async def test_what_is_declared_of_approval_and_of_running_again_holds(tmp_path: Path, http: Http) -> None:
    url = f'url = "{http.url}"'
    given = tools.load("native", declared(tmp_path, url, 'needs_approval = ["pay"]', 'rerun_safe = ["whose"]'))
    assert (given.needs_approval, given.rerun_safe) == (frozenset({"shop_pay"}), frozenset({"shop_whose"}))
    assert [await one.asks("{}") for one in given] == [True, False, False, False]
    with pytest.raises(tools.ToolsUnavailable, match=r"names 'pai', which the server does not have; it has pay, whose"):
        tools.load("native", declared(tmp_path, url, 'needs_approval = ["pai"]'))


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('url = "http://127.0.0.1:1/mcp"', "cannot be reached: ConnectError"),
        ('command = "no-such-program"', "cannot be reached: FileNotFoundError"),
    ],
)
def test_a_server_that_is_not_there_is_told_on_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, says: str
) -> None:
    monkeypatch.setattr(servers, "WAITS_SECONDS", ())
    with pytest.raises(tools.ToolsUnavailable) as raised:
        tools.load("native", declared(tmp_path, line))
    assert f"the server of tools 'shop' {says}" in str(raised.value)


def test_nothing_declared_is_no_tools_and_needs_no_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "agent.toml").write_text("[agent]\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OUTLAST_CONFIG", raising=False)
    assert tools.load() == []
    with pytest.raises(ValueError, match="there is no framework 'langchain'; there is langgraph, native, openai"):
        tools.load("langchain")


def test_servers_are_checked_and_one_that_is_not_there_is_an_error(
    http: Http, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outlast: Callable[..., Any]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OUTLAST_CONFIG", raising=False)
    monkeypatch.setattr(servers, "WAITS_SECONDS", ())
    gone = '[[tools]]\nname = "gone"\nurl = "http://127.0.0.1:1/mcp"'
    declared(tmp_path, f'url = "{http.url}"', 'needs_approval = ["pay"]', gone)
    rows = outlast("tools", "check", "shop", "--json").objects
    assert [(row["tool"], row["needs_approval"]) for row in rows][:2] == [("shop_pay", True), ("shop_whose", False)]
    done = outlast("tools", "check", code=1)
    assert "shop\tshop_pay\tTrue\tPay." in done.out and "'gone' cannot be reached" in done.err
    found = outlast("doctor", "--port", "1", "--json", code=1).objects
    told = [(one["state"], one["message"]) for one in found if one["check"] == "tools"]
    assert told[0] == ("ok", "shop has shop_pay, shop_whose, shop_echo_secret, shop_fail")
    assert told[1][0] == "error" and "'gone' cannot be reached: ConnectError" in told[1][1]


async def test_a_connection_that_nobody_uses_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "IDLE_SECONDS", 0.05)
    tools.load("native", stdio(tmp_path))
    async with asyncio.timeout(20):
        while living(tmp_path):
            await asyncio.sleep(0.02)


# Killed while a tool is under way ------------------------------------------------------------------------------------


async def run(folder: str) -> dict[str, Any]:
    given = tools.load("native", Config.read(Path(folder), {}))
    calls = [ScriptedCall("shop_pay", {"x": 1}), ScriptedCall("shop_pay", {"x": 2})]
    async with open_store(f"sqlite:///{folder}/state.db") as local:
        reply = await agent(given, *calls).session("s", store=local).run("go", id=ID)
    return {"text": reply.text, "told": [one["content"] for one in reply.messages if one["role"] == "tool"]}


@pytest.fixture(scope="module")
def harness() -> Iterator[KillHarness]:
    with KillHarness(preload=[__file__], timeout_seconds=40) as harness:
        yield harness


@pytest.mark.parametrize("place", [KillAt("tool.after_body"), KillAt("finish.before_commit")], ids=str)
def test_a_tool_that_was_called_before_a_kill_is_not_called_again(
    harness: KillHarness, tmp_path: Path, place: KillAt
) -> None:
    stdio(tmp_path)
    assert harness.start(run, {"folder": str(tmp_path)}, kill=place).wait().killed
    result = harness.run(run, {"folder": str(tmp_path)}).result
    assert result["text"] == "Done."
    effects = EffectsLog(tmp_path / "effects").read()
    assert len(effects) == len(set(effects))
    paid = ["paid 1", "paid 2"]
    known = result["told"] == paid
    assert known if place.point == "finish.before_commit" else INTERRUPTED_RESULT in result["told"]


MAIN = """from outlast import Agent, tools
from outlast.testing.scripted import Say, Script, ScriptedCall, ScriptedModel

calls = [Say("", [ScriptedCall("shop_pay", {"x": 1})]), Say("", [ScriptedCall("shop_whose", {})])]
agent = Agent(ScriptedModel(Script(*calls, "Done.")), tools=tools.load())
"""


def test_behind_a_restart_a_user_is_not_called_for_without_the_credential(http: Http, tmp_path: Path) -> None:
    declared(tmp_path, f'url = "{http.url}"', "[agent]", 'target = "main:agent"')
    (tmp_path / "main.py").write_text(MAIN)
    (hold := http.folder / "hold").touch()
    command = [sys.executable, "-m", "outlast", "serve", "--port", "{port}"]
    with ServerProcess(command, log=tmp_path / "log", cwd=tmp_path) as server:
        asked = {"id": ID, "session_id": "s", "input": "go", "background": True}
        headers = {"authorization": "Bearer of-ann"}
        assert httpx.post(f"{server.url}/api/invocations", json=asked, headers=headers).status_code == 202
        give_up = time.monotonic() + 30
        while not EffectsLog(http.folder / "effects").read():
            assert time.monotonic() < give_up
            time.sleep(0.01)
        server.kill()
        hold.unlink()
        server.start()
        with SyncAgentClient(server.url) as client:
            while (run := client.get(ID))["status"] != "completed":
                assert time.monotonic() < give_up
                time.sleep(0.05)
    interrupted, whose = [one["content"] for one in run["output"]["messages"] if one["role"] == "tool"]
    assert interrupted == INTERRUPTED_RESULT
    assert whose.startswith("credential_required: ") and run["attempt"] == 2
    assert EffectsLog(http.folder / "effects").read() == ["pay 1"]
    everything = [*tmp_path.glob(".outlast/*"), tmp_path / "log"]
    assert not any(b"of-ann" in file.read_bytes() for file in everything if file.is_file())
