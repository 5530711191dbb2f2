"""`outlast sessions`, `approvals` and `memory`, on a server and on a store."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from outlast import Agent, DurableAgentServer, SyncAgentClient, Tool
from outlast.testing.scripted import Say, ScriptedCall, ScriptedModel
from outlast.testing.serving import ServerThread

AGENT = """
from outlast import Agent, Tool
from outlast.testing.scripted import Say, ScriptedCall, ScriptedModel

def pay(amount: int) -> str:
    "Pay an amount."
    return f"paid {amount}"

agent = Agent(
    ScriptedModel(Say("I pay it.", [ScriptedCall("pay", {"amount": 5})]), "It is paid."),
    tools=[Tool(pay, needs_approval=True)],
)
"""


def pay(amount: int) -> str:
    """Pay an amount."""
    return f"paid {amount}"


@pytest.fixture
def url(store_url: str) -> Iterator[str]:
    paying = ScriptedModel(Say("I pay it.", [ScriptedCall("pay", {"amount": 5})]), "It is paid.")
    agents = {
        "brief": Agent(ScriptedModel(Say("Thr", stop_reason="length"))),
        "done": Agent(ScriptedModel("Three.")),
        "paying": Agent(paying, tools=[Tool(pay, needs_approval=True)]),
    }
    with ServerThread(DurableAgentServer(agents=agents, store=store_url)) as server:
        yield server.url


@pytest.fixture(params=["--url", "--store"])
def place(request: pytest.FixtureRequest, url: str, store_url: str) -> tuple[str, str]:
    """Where commands look: what they do on a server, they do on its store."""
    return (request.param, url if request.param == "--url" else store_url)


def test_sessions_are_listed_forked_moved_and_deleted(
    outlast: Callable[..., Any], url: str, place: tuple[str, str], tmp_path: Path
) -> None:
    with SyncAgentClient(url, agent="brief") as client:
        client.sessions.create("a/1", actor_id="ann", labels={"team": "x"})
        first, _ = client.sessions.append(
            "a/1", [{"role": "user", "content": "Hi"}, {"role": "user", "content": "\x1b"}]
        )
        client.sessions.create("b")
    assert [one["id"] for one in outlast("sessions", "list", "--json", *place).objects] == ["b", "a/1"]
    assert outlast("sessions", "list", "--actor", "ann", "--label", "team=x", "--json", *place).object["id"] == "a/1"
    assert outlast("sessions", "show", "a/1", "--json", *place).object["labels"] == {"team": "x"}
    assert 'labels         {"team":"x"}' in outlast("sessions", "show", "a/1", *place).out

    items = outlast("sessions", "items", "a/1", *place).out.splitlines()
    assert [line.split("\t")[0] for line in items] == ["POSITION", "1", "2"]
    assert "\x1b" not in items[2]
    options = ("--newest-first", "--limit", 1, "--json")
    done = outlast("sessions", "items", "a/1", *options, *place)
    assert (done.object["position"], "more than 1" in done.err) == (2, True)

    assert outlast("sessions", "fork", "a/1", "copy", "--up-to", first.id, *place).out == "copy\n"
    file = tmp_path / "copy.jsonl"
    outlast("sessions", "export", "copy", "--output", file, *place)
    assert file.read_text() == outlast("sessions", "export", "copy", *place).out
    assert "File exists" in outlast("sessions", "export", "copy", "--output", file, *place, code=1).err
    assert outlast("sessions", "import", file, *place, code=1).err.endswith("; choose another id\n")
    assert outlast("sessions", "import", file, "--id", "again", *place).out == "again\n"
    assert outlast("sessions", "import", "-", "--id", "twice", *place, input=file.read_text()).out == "twice\n"
    assert len(outlast("sessions", "items", "again", "--json", *place).objects) == 1
    assert "line 1" in outlast("sessions", "import", "-", *place, input="{}", code=2).err

    assert "add --yes" in outlast("sessions", "delete", "copy", *place, code=2).err
    outlast("sessions", "delete", "copy", "--yes", *place)
    assert "there is no session 'copy'" in outlast("sessions", "show", "copy", *place, code=1).err
    missing = tmp_path / "missing"
    outlast("sessions", "export", "copy", "--output", missing, *place, code=1)
    assert not missing.exists()
    assert "no items" in outlast("sessions", "export", "b", *place).err


def test_an_interrupted_session_is_resumed_on_its_server(outlast: Callable[..., Any], url: str) -> None:
    options = ("--url", url)
    assert outlast("invoke", "1+2?", "--agent", "brief", "--session", "s", *options).out == "Thr\n"
    point = outlast("sessions", "resume-point", "s", "--json", *options).object["point"]
    assert point["kind"] == "continue_response"
    assert "The last response was cut off" in outlast("sessions", "resume-point", "s", *options).out
    resumed = outlast("sessions", "resume", "s", "--stream", *options).out
    assert resumed == "… goes on: continue_response\nThr\n"
    outlast("invoke", "1+2?", "--agent", "done", "--session", "t", *options)
    assert outlast("sessions", "resume-point", "t", *options).out == "There is nothing to resume.\n"
    done = outlast("sessions", "resume", "t", *options, code=1)
    assert "nothing is left to do" in done.err and done.err.count("\n") == 1


def test_a_person_decides_by_a_command(outlast: Callable[..., Any], url: str, place: tuple[str, str]) -> None:
    outlast("invoke", "Pay", "--agent", "paying", "--session", "p 1", "--url", url, code=3)
    waiting = outlast("approvals", "list", "--json", *place).object
    assert (waiting["name"], waiting["arguments"], waiting["session_id"]) == ("pay", {"amount": 5}, "p 1")
    assert 'pay\t{"amount":5}' in outlast("approvals", "list", *place).out
    decide = ("approvals", "decide", waiting["id"], "--url", url)
    assert "say what is decided: one of approve, edit" in outlast(*decide, code=2).err
    assert "--arguments belong together" in outlast(*decide, "edit", code=2).err
    assert "approve or reject it" in outlast(*decide, "--answer", "1", code=2).err
    assert outlast(*decide, "approve").out == "It is paid.\n"
    decided = outlast("approvals", "list", "--status", "decided", "--json", *place).object
    assert decided["decision"] == {"type": "approve", "arguments": {"amount": 5}}
    assert "nothing open has the id" in outlast(*decide, "approve", code=1).err


def test_a_session_goes_on_in_this_process(
    outlast: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "paying.py").write_text(AGENT)
    place = ("--store", f"sqlite:///{tmp_path}/own.db")
    local = ("--target", "paying.py:agent", *place)
    outlast("invoke", "Pay", "--session", "p", *local, code=3)
    (id,) = [one["id"] for one in outlast("approvals", "list", "--json", *place).objects]
    assert outlast("sessions", "resume-point", "p", "--json", *local).object["point"]["kind"] == "await_approval"
    assert "a person has to decide" in outlast("sessions", "resume", "p", *local, code=1).err
    edit = ("edit", "--arguments", '{"amount": 3}', "--stream")
    assert "← pay ok: paid 3" in outlast("approvals", "decide", id, *edit, *local).out.splitlines()
    assert "give --url, or --target" in outlast("sessions", "resume", "p", *place, code=2).err


def test_memories_are_stored_found_and_deleted(outlast: Callable[..., Any], place: tuple[str, str]) -> None:
    options = ("--actor", "ann", *place)
    assert outlast("memory", "put", "food", "She likes tea.", *options).out == "food is stored\n"
    outlast("memory", "put", "food", "-", "--append", *options, input=" No sugar.")
    assert outlast("memory", "get", "food", *options).out == "She likes tea. No sugar.\n"
    assert outlast("memory", "get", "food", "--json", *options).object["actor_id"] == "ann"
    outlast("memory", "put", "sport", "She runs.", *options)
    assert [one["path"] for one in outlast("memory", "list", "--json", *options).objects] == ["food", "sport"]
    assert outlast("memory", "list", "s", "--json", *options).object["path"] == "sport"
    done = outlast("memory", "list", "--limit", 1, *options)
    assert (done.out.count("\n"), "more than 1" in done.err) == (2, True)
    found = outlast("memory", "search", "running", "--json", *options).object
    assert (found["path"], found["score"]) == ("sport", 1.0)
    assert "add --yes" in outlast("memory", "delete", "food", *options, code=2).err
    outlast("memory", "delete", "food", "--yes", *options)
    assert outlast("memory", "get", "food", *options, code=1).err == "outlast: there is no memory at 'food'\n"
    assert outlast("memory", "list", "--json", *place).objects == []  # of somebody else
