import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outlast.core import faults
from outlast.testing.effects import EffectsLog
from outlast.testing.kill import (
    FaultNotReached,
    HarnessError,
    HoldAt,
    KillAt,
    KillHarness,
    ScenarioFailed,
    ScenarioHung,
    StopAt,
)

BEFORE, AFTER = "events.before_commit", "events.after_commit"


def write_twice(effects: str) -> str:
    log = EffectsLog(effects)
    for number in (1, 2):
        faults.reach(BEFORE)
        log.append(f"write {number}")
        faults.reach(AFTER)
    return "done"


def fail() -> None:
    raise LookupError("the shelf is empty")


def return_a_set() -> set[int]:
    return {1}


def leave(code: int) -> None:
    print("leaving")
    os._exit(code)


async def add(left: int, right: int) -> dict[str, int]:
    await asyncio.sleep(0)
    return {"sum": left + right}


async def wait_for_nothing() -> None:
    await asyncio.Event().wait()


def block_all_threads() -> None:
    threading.Event().wait()


def hold_one_thread_while_another_writes(effects: str) -> None:
    writer = threading.Thread(target=lambda: faults.reach(BEFORE))
    writer.start()
    EffectsLog(effects).append("the other thread went on")
    writer.join()


def start_a_sleeper(effects: str) -> None:
    sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    EffectsLog(effects).append(str(sleeper.pid))
    faults.reach(BEFORE)


def report_process() -> list[Any]:
    return [os.getppid(), "pytest" in sys.modules]


@pytest.fixture(scope="module")
def harness() -> Iterator[KillHarness]:
    with KillHarness(preload=[__file__]) as harness:
        yield harness


@pytest.fixture
def effects(tmp_path: Path) -> EffectsLog:
    return EffectsLog(tmp_path / "effects")


def wait_until_written(effects: EffectsLog, seconds: float = 10) -> list[str]:
    deadline = time.monotonic() + seconds
    while not effects.read():
        assert time.monotonic() < deadline, "nothing was written"
        time.sleep(0.005)
    return effects.read()


def is_alive(pid: int) -> bool:
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"


def test_result_of_a_function_comes_back(harness: KillHarness, effects: EffectsLog) -> None:
    ended = harness.run(write_twice, {"effects": str(effects.path)})
    assert ended.result == "done"
    assert (ended.killed, ended.exit_code) == (False, 0)
    assert ended.reached == (BEFORE, AFTER) * 2


def test_result_of_a_coroutine_comes_back(harness: KillHarness) -> None:
    assert harness.run(add, {"left": 1, "right": 2}).result == {"sum": 3}


def test_scenario_may_be_named_by_file_or_module(harness: KillHarness) -> None:
    assert harness.run(f"{__file__}:add", {"left": 1, "right": 2}).result == {"sum": 3}
    assert harness.run("operator:pos").error
    assert harness.run("platform:python_implementation").result == "CPython"


def test_process_dies_at_the_nth_reach(harness: KillHarness, effects: EffectsLog) -> None:
    ended = harness.run(write_twice, {"effects": str(effects.path)}, kill=KillAt(BEFORE, nth=2))
    assert (ended.killed, ended.exit_code, ended.result) == (True, -signal.SIGKILL, None)
    assert ended.reached == (BEFORE, AFTER, BEFORE)
    assert effects.read() == ["write 1"]


def test_trace_lists_every_place_to_die(harness: KillHarness, tmp_path: Path) -> None:
    places = harness.trace(write_twice, {"effects": str(tmp_path / "trace")})
    assert places == [KillAt(BEFORE), KillAt(AFTER), KillAt(BEFORE, 2), KillAt(AFTER, 2)]
    for number, place in enumerate(places):
        effects = EffectsLog(tmp_path / str(number))
        assert harness.run(write_twice, {"effects": str(effects.path)}, kill=place).killed
        assert len(effects.read()) == (number + 1) // 2


def test_trace_of_a_failing_scenario_raises(harness: KillHarness) -> None:
    with pytest.raises(ScenarioFailed, match="the shelf is empty"):
        harness.trace(fail)


def test_kill_that_never_comes_is_an_error(harness: KillHarness, effects: EffectsLog) -> None:
    with pytest.raises(FaultNotReached):
        harness.run(write_twice, {"effects": str(effects.path)}, kill=KillAt(BEFORE, nth=3))


def test_unknown_points_are_refused() -> None:
    with pytest.raises(ValueError, match="no fault point"):
        KillAt("events.before_comit")


def test_held_process_goes_on_after_release(harness: KillHarness, effects: EffectsLog) -> None:
    child = harness.start(write_twice, {"effects": str(effects.path)}, hold=HoldAt(AFTER))
    child.wait_held()
    assert effects.read() == ["write 1"]
    child.release()
    assert child.wait().result == "done"
    assert effects.read() == ["write 1", "write 2"]


def test_hold_blocks_only_the_thread_that_came_there(harness: KillHarness, effects: EffectsLog) -> None:
    arguments = {"effects": str(effects.path)}
    child = harness.start(hold_one_thread_while_another_writes, arguments, hold=HoldAt(BEFORE))
    child.wait_held()
    assert wait_until_written(effects)
    child.release()
    assert child.wait().exit_code == 0


def test_stopped_process_goes_on_after_release(harness: KillHarness, effects: EffectsLog) -> None:
    child = harness.start(write_twice, {"effects": str(effects.path)}, hold=StopAt(AFTER))
    child.wait_held()
    assert Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    child.release()
    assert child.wait().result == "done"


def test_held_process_can_be_killed_later(harness: KillHarness, effects: EffectsLog) -> None:
    child = harness.start(write_twice, {"effects": str(effects.path)}, hold=HoldAt(BEFORE), kill=KillAt(BEFORE, nth=2))
    child.release()
    assert child.wait().killed
    assert effects.read() == ["write 1"]


def test_running_process_can_be_frozen_and_killed(harness: KillHarness) -> None:
    child = harness.start(wait_for_nothing)
    child.freeze()
    child.release()
    assert child.kill().killed


def test_hold_that_never_comes_is_an_error(harness: KillHarness) -> None:
    child = harness.start(add, {"left": 1, "right": 2}, hold=HoldAt(BEFORE))
    with pytest.raises(FaultNotReached):
        child.wait_held()


def test_exception_comes_back_as_text(harness: KillHarness) -> None:
    ended = harness.run(fail)
    assert ended.exit_code == 1
    assert ended.error and "in fail\n" in ended.error
    with pytest.raises(ScenarioFailed, match="the shelf is empty"):
        _ = ended.result


def test_result_that_is_not_json_is_an_error(harness: KillHarness) -> None:
    assert "not JSON serializable" in (harness.run(return_a_set).error or "")


def test_process_that_leaves_without_result_is_an_error(harness: KillHarness) -> None:
    with pytest.raises(ScenarioFailed, match="exit code 3"):
        _ = harness.run(leave, {"code": 3}).result


def test_hung_thread_is_killed_and_shows_its_stack(harness: KillHarness) -> None:
    with pytest.raises(ScenarioHung, match="in block_all_threads"):
        harness.run(block_all_threads, timeout_seconds=0.05)


def test_hung_coroutine_is_killed_and_shows_its_await(harness: KillHarness) -> None:
    with pytest.raises(ScenarioHung, match="in wait_for_nothing"):
        harness.run(wait_for_nothing, timeout_seconds=0.05)


def test_subprocess_of_a_killed_scenario_dies_too(harness: KillHarness, effects: EffectsLog) -> None:
    harness.run(start_a_sleeper, {"effects": str(effects.path)}, kill=KillAt(BEFORE))
    deadline = time.monotonic() + 10
    while is_alive(int(effects.read()[0])):
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_cases_are_forks_of_a_process_that_imported_everything(harness: KillHarness) -> None:
    first, second = harness.run(report_process).result, harness.run(report_process).result
    assert first == second
    assert first[1] is True


def test_end_of_the_harness_kills_what_still_runs() -> None:
    with KillHarness() as harness:
        child = harness.start(wait_for_nothing)
        assert is_alive(child.pid)
    assert not is_alive(child.pid)


def test_preload_that_fails_says_why(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("raise ImportError('no such luck')")
    with (
        pytest.raises(HarnessError, match="no such luck"),
        KillHarness(preload=[str(tmp_path / "broken.py")]),
    ):
        pass


def test_effects_of_several_processes_are_whole_lines(harness: KillHarness, effects: EffectsLog) -> None:
    children = [harness.start(write_twice, {"effects": str(effects.path)}) for _ in range(4)]
    assert [child.wait().result for child in children] == ["done"] * 4
    assert sorted(effects.read()) == ["write 1"] * 4 + ["write 2"] * 4


def test_effect_is_one_line(effects: EffectsLog) -> None:
    assert effects.read() == []
    with pytest.raises(ValueError, match="one line"):
        effects.append("two\nlines")


def test_any_number_of_libraries_can_be_imported_beforehand() -> None:
    names = ["json", *(f"there.is.no.module.of.this.name.{number}" for number in range(10_000))]
    with KillHarness(libraries=names) as harness:
        assert harness.run("json:loads", {"s": "[1]"}).result == [1]
