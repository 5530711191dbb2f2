"""Kill an agent at every durable boundary of a run, and see that it comes back each time and repeats no tool."""

import shutil
import sys
import sysconfig
import tempfile
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from outlast.cli import target as targets
from outlast.core.errors import InvalidRequest, OutlastError
from outlast.core.records import Status
from outlast.testing._tables import make_tables
from outlast.testing.kill import Ended, Entered, HarnessError, KillAt, KillHarness, ScenarioFailed

TIMEOUT_SECONDS = 120.0

# What a worker does besides a run, and what is the same as the boundary before it.
_OUTSIDE = ("register.", "claim.", "delete.", "drain.", "hand_back.")
_SAME = ".begin"


class CrashTestFailed(OutlastError):
    """The agent could not be tested: it fails, or does not end, without any crash. The text says how."""

    code = "crash_test"


@dataclass(frozen=True, slots=True)
class Case:
    """One run that was killed at `place`, and what the next process made of it."""

    place: KillAt
    run: Mapping[str, Any] | None
    """The run's record at its end, as the HTTP API gives it; None when it did not come to one."""
    tools: tuple[str, ...] = ()
    """The tools whose bodies were entered, before the kill and after it."""
    twice: tuple[str, ...] = ()
    """Those of them that were entered for the same call before the kill and after it."""
    error: str | None = None
    """Why there is no record."""

    @property
    def recovered(self) -> bool:
        """Whether the run came to an end that is no failure."""
        return self.run is not None and self.run["status"] in (Status.COMPLETED, Status.INTERRUPTED)

    @property
    def ok(self) -> bool:
        return self.recovered and not self.twice

    @property
    def outcome(self) -> str:
        """What came of it, on one line."""
        if self.run is None:
            return f"no end: {self.error}"
        end = str(self.run["status"])
        if (error := self.run.get("error")) is not None:
            end += f" ({error['code']})"
        return end + (f", {', '.join(self.twice)} ran twice" if self.twice else "")


@dataclass(frozen=True, slots=True)
class Report:
    """What a crash test found. `run` and `tools` are those of the run without a crash."""

    run: Mapping[str, Any]
    tools: tuple[str, ...]
    cases: tuple[Case, ...]

    @property
    def ok(self) -> bool:
        """Whether every killed run came back, and no tool ran twice."""
        return all(case.ok for case in self.cases)

    def __str__(self) -> str:
        bad = [case for case in self.cases if not case.ok]
        lines = [f"{len(self.cases)} kills, {len(bad)} of them with a failure"]
        return "\n".join([*lines, *(f"{named(case.place)}: {case.outcome}" for case in bad)])


def crashtest(
    target: str,
    input: Any,
    *,
    agent: str | None = None,
    sample: int | None = None,
    timeout_seconds: float = TIMEOUT_SECONDS,
    progress: Callable[[int, int], object] | None = None,
) -> Report:
    """Run an agent on an input once, then once for each durable boundary that run crossed, and kill it there.

    `target` is what `outlast serve` takes; `agent` names one of several. Each run has a process, a session and an
    SQLite database of its own, and a second process comes after the kill. `sample` is the number of boundaries to
    take, spread over the run; None takes all. `progress` is told how many kills of how many are done. The agent is
    entered twice as often as there are boundaries, with whatever it does to the world.

    Raises CrashTestFailed when the run without a crash fails, and OutlastError for a target that cannot be served.
    """
    agents = targets.load(target).agents.by_name()
    if agent not in agents and (agent is not None or len(agents) > 1):
        raise InvalidRequest(f"name one of the agents of {target}: {', '.join(sorted(agents))}", field="agent")
    asked = {"target": target, "agent": agent or next(iter(agents)), "input": input}
    with (
        KillHarness(libraries=_libraries(), timeout_seconds=timeout_seconds) as harness,
        tempfile.TemporaryDirectory() as folder,
    ):
        asked["database"] = str(Path(folder) / "empty.db")
        harness.run(make_tables, {"url": f"sqlite:///{asked['database']}"})
        first = _undisturbed(harness, asked)
        places = _sampled(_places(first.reached), sample)
        cases = []
        for number, place in enumerate(places):
            if progress is not None:
                progress(number, len(places))
            if (case := _killed(harness, asked, place)) is not None:
                cases.append(case)
        if progress is not None:
            progress(len(places), len(places))
    return Report(first.result, _names(first.entered), tuple(cases))


def named(place: KillAt) -> str:
    """Return the name of a place for people."""
    return place.point if place.nth == 1 else f"{place.point}, {place.nth}."


async def run_once(target: str, agent: str, input: Any, id: str, database: str) -> dict[str, Any]:
    """Serve a target in this process, ask for a run by its id, and return its record when it ended, or the problem."""
    server = targets.load(target)
    server.store_url = f"sqlite:///{database}"
    transport = httpx.ASGITransport(server)
    async with (
        server.router.lifespan_context(server),
        httpx.AsyncClient(transport=transport, base_url="http://crashtest", timeout=None) as client,
    ):
        asked = {"id": id, "session_id": id, "agent": agent, "input": input}
        while True:
            answer = await client.post("/api/invocations", json=asked, headers={"Prefer": "wait=60"})
            found: dict[str, Any] = answer.json()
            if answer.is_error or Status(found["status"]).final:
                return found


def _undisturbed(harness: KillHarness, asked: Mapping[str, Any]) -> Ended:
    with tempfile.TemporaryDirectory() as folder:
        try:
            ended = harness.run(run_once, _own(asked, folder))
            run = ended.result
        except ScenarioFailed as error:
            raise CrashTestFailed(f"the agent fails without a crash:\n{error}") from error
        except HarnessError as error:
            raise CrashTestFailed(f"the agent does not end, without a crash: {error}") from error
    if (problem := _problem(run)) is not None:
        raise CrashTestFailed(f"the server refuses the run: {problem}")
    if run["status"] not in (Status.COMPLETED, Status.INTERRUPTED):
        reason = run["error"]
        raise CrashTestFailed(f"the run fails without a crash ({reason['code']}): {reason['message']}")
    return ended


def _killed(harness: KillHarness, asked: Mapping[str, Any], place: KillAt) -> Case | None:
    """Kill a run at a place and let another process have it; None when this time it did not come to that place."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = _own(asked, folder)
        try:
            before = harness.start(run_once, arguments, kill=place).wait()
            if not before.killed:
                return None
            after = harness.run(run_once, arguments)
            run = after.result
        except HarnessError as error:
            return Case(place, None, error=str(error))
    if (problem := _problem(run)) is not None:
        return Case(place, None, error=problem)
    again = {one.key for one in before.entered} & {one.key for one in after.entered if not one.repeatable}
    twice = tuple(one.name for one in after.entered if one.key in again)
    return Case(place, run, _names((*before.entered, *after.entered)), twice)


def _problem(answer: Mapping[str, Any]) -> str | None:
    return None if "id" in answer else str(answer.get("detail", answer))


def _own(asked: Mapping[str, Any], folder: str) -> dict[str, Any]:
    """Name one run, and give it a database."""
    database = Path(folder) / "state.db"
    shutil.copyfile(asked["database"], database)
    return {**asked, "id": str(uuid.uuid4()), "database": str(database)}


def _places(reached: Sequence[str]) -> list[KillAt]:
    """Return where a run can be killed: after every durable step and before it is durable, in order."""
    counts: Counter[str] = Counter()
    places = []
    for point in reached:
        counts[point] += 1
        if not point.startswith(_OUTSIDE) and not point.endswith(_SAME):
            places.append(KillAt(point, counts[point]))
    return places


def _sampled(places: Sequence[KillAt], sample: int | None) -> list[KillAt]:
    if sample is None or sample >= len(places):
        return list(places)
    return [places[at * len(places) // sample] for at in range(sample)]


def _names(entered: Sequence[Entered]) -> tuple[str, ...]:
    return tuple(one.name for one in entered)


def _libraries() -> list[str]:
    """Return what is imported of installed packages now, after the target was: no process need import it again.

    The project's own modules are left out, for what they do when they are imported should happen in each process.
    """
    roots = tuple({sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib")})
    return [
        name
        for name, module in list(sys.modules.items())
        if name.startswith("outlast") or (getattr(module, "__file__", None) or "").startswith(roots)
    ]
