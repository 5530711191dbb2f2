"""`outlast crashtest`: kill an agent at every durable boundary of a run, and see that it comes back."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from outlast.cli.errors import STOPPED, fail_with
from outlast.cli.options import Json, input_of
from outlast.cli.output import brief, note, progress, say, table, text_in, write_json
from outlast.core.errors import OutlastError
from outlast.testing import crashtest as testing
from outlast.testing.crashtest import Case, Report


def crashtest(
    target: Annotated[str, typer.Argument(help="module:object or path.py:object: a server, an adapter, or an agent.")],
    input: Annotated[str | None, typer.Option("--input", "-i", help="What to say; - reads it from stdin.")] = None,
    data: Annotated[
        str | None,
        typer.Option("--data", "-d", help="An input that is JSON, instead of a text; - reads it from stdin."),
    ] = None,
    agent: Annotated[str | None, typer.Option(help="Which agent, where there are several.")] = None,
    sample: Annotated[
        int | None, typer.Option(min=1, help="Kill at so many boundaries, spread over the run, instead of at all.")
    ] = None,
    timeout: Annotated[
        float, typer.Option(min=1, help="Seconds that a run may take before it counts as one that hangs.")
    ] = testing.TIMEOUT_SECONDS,
    json: Json = False,
) -> None:
    """Kill an agent at every durable boundary of a run, and see that it comes back.

    The agent runs once without a crash; then once for each boundary, where its process is killed by SIGKILL, and another
    process goes on. Each run has a session and a database of its own. The model and the tools are called each time: use a
    scripted model, and tools that do no harm.

    Exit code 1: a tool ran twice, or a run did not come back.
    """
    asked = input_of(input, data, text_name="--input")
    try:
        with progress("killing", json) as advance:
            report = testing.crashtest(
                target, asked, agent=agent, sample=sample, timeout_seconds=timeout, progress=advance
            )
    except OutlastError as error:
        fail_with(error)
    except KeyboardInterrupt:
        raise typer.Exit(STOPPED) from None
    if json:
        write_json(_as_json(report))
    else:
        _print(report)
    if not report.ok:
        raise typer.Exit(1)


def _print(report: Report) -> None:
    say(f"Without a crash: {report.run['status']}, {_tools(report.tools)}, {_answer(report.run)}")
    rows = [
        (testing.named(case.place), case.outcome, _tools(case.tools), "" if case.run is None else _answer(case.run))
        for case in report.cases
    ]
    table(("killed at", "then", "tools", "answer"), rows)
    bad = sum(not case.ok for case in report.cases)
    kills = f"{len(report.cases)} kills"
    note(f"{kills}, {bad} of them with a failure" if bad else f"{kills}: every run came back, and no tool ran twice")


def _as_json(report: Report) -> dict[str, Any]:
    return {
        "ok": report.ok, "run": report.run, "tools": list(report.tools), "kills": [_case(one) for one in report.cases],
    }  # fmt: skip


def _case(case: Case) -> dict[str, Any]:
    return {
        "point": case.place.point, "nth": case.place.nth, "ok": case.ok, "recovered": case.recovered, "run": case.run,
        "tools": list(case.tools), "twice": list(case.twice), "error": case.error,
    }  # fmt: skip


def _tools(names: Sequence[str]) -> str:
    counts = Counter(names)
    return ", ".join(f"{name} x {times}" if times > 1 else name for name, times in counts.items()) or "no tool"


def _answer(run: Mapping[str, Any]) -> str:
    said = run.get("output", run.get("interrupt"))
    text = text_in(said)
    return brief(said if text is None else text, 60)
