"""`outlast crashtest`, and the same in a test: what it finds in agents that come back, and in those that do not."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outlast.testing.crashtest import CrashTestFailed, Report

PAYS = """
from pathlib import Path

from outlast import Agent
from outlast.testing.effects import EffectsLog
from outlast.testing.scripted import Say, ScriptedCall, ScriptedModel

effects = EffectsLog(Path(__file__).with_name("effects"))


def pay(amount: int) -> str:
    "Pay."
    effects.append("paid")
    return f"paid {amount}"


agent = Agent(ScriptedModel(Say("I pay.", [ScriptedCall("pay", {"amount": 5})]), "It is paid."), tools=[pay])
"""

# What an adapter would do that does not ask the journal.
PAYS_AGAIN = """
from outlast import DurableAgentServer
from outlast.core import faults

app = DurableAgentServer()


@app.invoke
@app.recover
async def run(context):
    faults.enter("call", "pay", repeatable=False)
    await context.emit({"type": "paid"})
    faults.enter("safe", "look", repeatable=True)
    await context.emit({"type": "seen"})
"""

NEVER_COMES_BACK = """
from outlast import DurableAgentServer

app = DurableAgentServer()


@app.invoke
async def run(context):
    await context.emit({"type": "begun"})
    if context.input == "nothing works":
        raise ValueError("nothing works")
    return context.input
"""


@pytest.fixture
def target(tmp_path: Path) -> Callable[[str, str], str]:
    """Write a program and return the target for an object of it."""

    def write(program: str, name: str) -> str:
        path = tmp_path / "program.py"
        path.write_text(program)
        return f"{path}:{name}"

    return write


def test_an_agent_is_killed_at_every_boundary_and_pays_once(
    target: Callable[[str, str], str], crashtest: Callable[..., Report], tmp_path: Path
) -> None:
    told: list[tuple[int, int]] = []
    report = crashtest(target(PAYS, "agent"), "Pay 5.", progress=lambda done, total: told.append((done, total)))
    assert (report.run["status"], report.tools) == ("completed", ("pay",))
    points = {case.place.point for case in report.cases}
    assert {"accept.before_commit", "journal.started.after_commit", "tool.after_body", "finish.after_commit"} <= points
    assert not [point for point in points if point.startswith(("migrate.", "register.", "claim."))]
    assert told == [(done, len(told) - 1) for done in range(len(told))]
    paid = len((tmp_path / "effects").read_text().splitlines())
    # Of a body that is entered, the first line may be later than a kill elsewhere in the process.
    assert paid <= 1 + sum(len(case.tools) for case in report.cases)
    assert {len(case.tools) for case in report.cases} == {0, 1}


def test_the_command_prints_what_came_of_each_kill(
    target: Callable[[str, str], str], outlast_process: Callable[..., Any]
) -> None:
    asked = ("crashtest", target(PAYS, "agent"), "--input", "Pay 5.", "--sample", "2")
    found = outlast_process(*asked)
    assert found.out.splitlines()[0] == "Without a crash: completed, pay, It is paid."
    assert found.out.splitlines()[2] == "accept.before_commit\tcompleted\tpay\tIt is paid."
    assert found.err == "2 kills: every run came back, and no tool ran twice\n"
    shown = outlast_process(*asked, "--json").object
    assert shown["ok"] is True
    assert shown["kills"][0]["point"] == "accept.before_commit"
    assert [kill["run"]["status"] for kill in shown["kills"]] == ["completed", "completed"]


def test_a_tool_that_runs_twice_is_found(
    target: Callable[[str, str], str], outlast_process: Callable[..., Any], crashtest: Callable[..., Report]
) -> None:
    where = target(PAYS_AGAIN, "app")
    found = outlast_process("crashtest", where, "--data", "{}", "--json", code=1).object
    twice = {kill["point"]: kill["twice"] for kill in found["kills"]}
    # How many boundaries there are differs from run to run, as writes are grouped: only the names can be relied on.
    assert (twice["accept.before_commit"], twice["tool.before_body"], twice["finish.after_commit"]) == ([], ["pay"], [])
    with pytest.raises(pytest.fail.Exception, match=r"tool\.before_body, 2\.: completed, pay ran twice"):
        crashtest(where, {})


def test_a_run_that_does_not_come_back_is_found(
    target: Callable[[str, str], str], outlast_process: Callable[..., Any]
) -> None:
    found = outlast_process("crashtest", target(NEVER_COMES_BACK, "app"), "--input", "Hi", code=1)
    assert "events.after_commit\tfailed (interrupted_without_recovery)\tno tool\tnull" in found.out.splitlines()
    assert "with a failure" in found.err


def test_an_agent_that_fails_without_a_crash_is_not_killed(
    target: Callable[[str, str], str], outlast_process: Callable[..., Any], crashtest: Callable[..., Report]
) -> None:
    where = target(NEVER_COMES_BACK, "app")
    with pytest.raises(CrashTestFailed, match=r"fails without a crash \(handler_error\): ValueError: nothing works"):
        crashtest(where, "nothing works")
    said = outlast_process("crashtest", target(PAYS, "agent"), "--data", "5", code=1).err
    assert said.startswith("outlast: the run fails without a crash (invalid_input)")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "give --input or --data, one of them"),
        (("--input", "Hi", "--agent", "other"), "name one of the agents of"),
        (("--data", "{"), "--data is no JSON"),
    ],
)
def test_what_cannot_be_tested_is_refused(
    target: Callable[[str, str], str], outlast_process: Callable[..., Any], options: tuple[str, ...], said: str
) -> None:
    found = outlast_process("crashtest", target(PAYS, "agent"), *options, code=2)
    assert said in found.err
    assert "Traceback" not in found.err
