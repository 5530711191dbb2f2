"""`outlast invoke` and `outlast invocations`, against a real server and without one."""

import asyncio
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from outlast import Agent, DurableAgentServer, InvocationContext, RunFailed, Tool
from outlast.testing._ports import free_port
from outlast.testing.scripted import Say, ScriptedCall, ScriptedModel
from outlast.testing.serving import ServerThread

COMMAND = [sys.executable, "-c", "from outlast.cli import main; main()"]
AGENT = """
from outlast import Agent
from outlast.testing.scripted import Say, ScriptedCall, ScriptedModel

def add(a: int, b: int) -> int:
    "Add two numbers."
    return a + b

agent = Agent(ScriptedModel(Say("One moment.", [ScriptedCall("add", {"a": 1, "b": 2})]), "Three."), tools=[add])
"""


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def pay(amount: int) -> str:
    """Pay an amount."""
    return f"paid {amount}"


async def handwritten(context: InvocationContext) -> Any:
    """Fail, or emit as many events as the input says."""
    if context.input == "fail":
        raise RunFailed("no_luck", "it went\nwrong")
    if context.input == "wait":
        await context.emit({"n": 0})
        await asyncio.sleep(300)
    for number in range(context.input["events"]):
        await context.emit({"n": number})
    return {"echo": context.input, "config": context.config}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    store = f"sqlite:///{tmp_path_factory.mktemp('invoke')}/state.db"
    adding = ScriptedModel(Say("One moment.", [ScriptedCall("add", {"a": 1, "b": 2})]), "Three \x1b[31m.")
    paying = ScriptedModel(Say("I pay it.", [ScriptedCall("pay", {"amount": 5})]), "It is paid.")
    own = DurableAgentServer()
    own.invoke(handwritten)
    agents = {
        "adding": Agent(adding, tools=[add]),
        "paying": Agent(paying, tools=[Tool(pay, needs_approval=True)]),
        "plain": own.agents.handwritten,
    }
    with ServerThread(DurableAgentServer(agents=agents, store=store)) as server:
        yield server.url


def test_a_text_is_answered(outlast: Callable[..., Any], url: str) -> None:
    done = outlast("invoke", "1+2?", "--agent", "adding", "--url", url)
    assert (done.out, done.err) == ("Three \\u001b[31m.\n", "")  # nothing of a model moves the cursor
    assert outlast("invoke", "-", "--agent", "adding", "--url", url, input="1+2?").out == done.out


def test_text_and_tools_are_shown_as_they_come(outlast: Callable[..., Any], url: str) -> None:
    shown = outlast("invoke", "1+2?", "--stream", "--agent", "adding", "--url", url).out.splitlines()
    assert shown == ["One moment.", '→ add {"a":1,"b":2}', "← add ok: 3", "Three \\u001b[31m."]


def test_json_has_the_events_and_the_run(outlast: Callable[..., Any], url: str) -> None:
    id = str(uuid.uuid4())
    options = ("--agent", "plain", "--id", id, "--session", "s/1", "--metadata", "team=a", "--url", url, "--json")
    run = outlast("invoke", "--data", '{"events": 2}', *options).object
    assert (run["id"], run["session_id"], run["status"]) == (id, "s/1", "completed")
    assert (run["output"]["echo"], run["metadata"]) == ({"events": 2}, {"team": "a"})
    # The same again is the same run.
    lines = outlast("invoke", "--data", '{"events": 2}', "--stream", *options).objects
    assert lines == [{"event": {"n": 0}}, {"event": {"n": 1}}, {"end": run}]
    refused = outlast("invoke", "--data", '{"events": 3}', *options, code=1)
    assert (refused.out, refused.err.count("\n")) == ("", 1)


def test_a_run_that_fails_says_so_in_one_line_and_by_its_code(outlast: Callable[..., Any], url: str) -> None:
    done = outlast("invoke", "fail", "--agent", "plain", "--url", url, code=1)
    assert done.err.endswith(" failed (no_luck): it went wrong\n") and done.err.count("\n") == 1
    assert outlast("invoke", "fail", "--agent", "plain", "--url", url, "--json", code=1).object["status"] == "failed"


def test_a_run_that_waits_says_how_it_goes_on(outlast: Callable[..., Any], url: str) -> None:
    done = outlast("invoke", "Pay", "--agent", "paying", "--session", "p", "--url", url, code=3)
    assert done.out == "I pay it.\n"
    assert 'pay {"amount":5} waits: outlast approvals decide ' in done.err


def test_a_run_in_the_background_is_looked_after(outlast: Callable[..., Any], url: str) -> None:
    options = ("--url", url)
    id = outlast("invoke", "-d", '{"events": 3}', "--agent", "plain", "-s", "b", "--background", *options).out.strip()
    events = outlast("invocations", "events", id, "--follow", "--json", *options).objects
    assert [(entry["position"], entry["event"]) for entry in events] == [(1, {"n": 0}), (2, {"n": 1}), (3, {"n": 2})]
    assert '{"n":2}' in outlast("invocations", "events", id, "--after", 2, *options).out
    assert outlast("invocations", "show", id, "--json", *options).object["status"] == "completed"
    assert "status    completed" in outlast("invocations", "show", id, *options).out
    listed = outlast("invocations", "list", "--session", "b", *options).out.splitlines()
    assert [line.split("\t")[:3] for line in listed] == [["ID", "STATUS", "SESSION"], [id, "completed", "b"]]
    assert outlast("invocations", "cancel", id, *options).out == f"{id} is completed\n"

    asked = outlast("invocations", "delete", id, *options, code=2)
    assert "add --yes" in asked.err and asked.err.count("\n") == 1
    assert outlast("invocations", "delete", id, "--yes", "--json", *options).object == {"deleted": id}
    assert outlast("invocations", "show", id, *options, code=1).err == f"outlast: there is no invocation {id}\n"


def test_ctrl_c_leaves_a_run_alone_and_says_where_it_is(outlast: Callable[..., Any], url: str) -> None:
    id = str(uuid.uuid4())
    command = [*COMMAND, "invoke", "wait", "--agent", "plain", "--id", id, "--url", url, "--stream"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == '{"n":0}\n'
        process.send_signal(signal.SIGINT)
        assert process.stderr.read() == f"The run goes on without you: outlast invocations events {id} --follow\n"
        assert process.wait(60) == 130
    assert outlast("invocations", "show", id, "--json", "--url", url).object["status"] == "running"
    assert outlast("invocations", "cancel", id, "--url", url).out == f"{id} was asked to stop\n"


def test_a_list_says_when_there_is_more(outlast: Callable[..., Any], url: str) -> None:
    for _ in range(2):
        outlast("invoke", "-d", '{"events": 0}', "--agent", "plain", "--url", url)
    done = outlast("invocations", "list", "--agent", "plain", "--limit", 1, "--json", "--url", url)
    assert done.object["agent"] == "plain"
    assert done.err == "There are more than 1; --limit 0 shows all.\n"
    assert len(outlast("invocations", "list", "--limit", 0, "--json", "--url", url).objects) > 1


def test_an_agent_runs_in_this_process_and_its_runs_are_in_the_store(
    outlast: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "adding.py").write_text(AGENT)
    options = ("--target", "adding.py:agent", "--store", f"sqlite:///{tmp_path}/own.db")
    assert outlast("invoke", "1+2?", "--session", "s", *options).out == "Three.\n"
    assert outlast("invoke", "1+2?", "--stream", *options).out.splitlines()[-1] == "Three."
    run, again = outlast("invocations", "list", "--json", *options[2:]).objects
    assert {run["status"], again["status"]} == {"completed"} and again["session_id"] == "s"
    events = outlast("invocations", "events", again["id"], "--json", *options[2:]).objects
    assert [entry["position"] for entry in events] == list(range(1, len(events) + 1))
    assert "agent.tool.finished" in [entry["event"]["type"] for entry in events]
    assert outlast("invocations", "cancel", again["id"], *options[2:]).out == f"{again['id']} is completed\n"
    outlast("invocations", "delete", again["id"], "--yes", *options[2:])
    assert outlast("invocations", "list", "--session", "s", "--json", *options[2:]).objects == []


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("invoke",), "give a text or --data"),
        (("invoke", "a", "--data", "1"), "give a text or --data"),
        (("invoke", "--data", "{"), "--data is no JSON"),
        (("invoke", "a", "--config", "[]"), "--config is no JSON object"),
        (("invoke", "a", "--metadata", "team"), "is not like name=text"),
        (("invoke", "a", "--id", "7"), "--id must be a UUID"),
        (("invoke", "a", "--url", "localhost:8000"), "is not like http://127.0.0.1:8000"),
        (("invoke", "a", "--store", "sqlite:///a.db"), "the store alone runs no agent"),
        (("invoke", "a", "--target", "missing.py:agent"), "there is no file"),
        (("invoke", "a", "--background", "--target", "missing.py:agent"), "need a server"),
        (("invocations", "show", "7", "--url", "http://127.0.0.1:1"), "must be a UUID"),
        (("invocations", "list", "--url", "http://a", "--store", "sqlite:///a.db"), "exclude each other"),
    ],
)
def test_wrong_usage_is_one_line_and_code_2(
    outlast: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = outlast(*arguments, code=2)
    assert says in done.err
    assert (done.out, done.err.count("\n")) == ("", 1)
    assert not list(tmp_path.iterdir())


def test_a_server_that_is_not_there_is_one_line(outlast: Callable[..., Any]) -> None:
    address = f"http://127.0.0.1:{free_port()}"
    done = outlast("invoke", "a", "--url", address, "--patience", 0.2, code=1)
    assert "outlast serve" in done.err and done.err.count("\n") == 1


def test_a_store_that_is_not_there_is_not_made_by_looking(
    outlast: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = outlast("invocations", "list", code=1)
    assert "there is no store at" in done.err and "outlast store migrate" in done.err
    assert not list(tmp_path.iterdir())


def test_a_reader_that_has_enough_ends_the_command_quietly(url: str) -> None:
    command = [*COMMAND, "invocations", "list", "--limit", "0", "--json", "--url", url]
    for _ in range(3):
        subprocess.run([*COMMAND, "invoke", "-d", '{"events": 1}', "--agent", "plain", "--url", url], check=True)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(60) == 1
