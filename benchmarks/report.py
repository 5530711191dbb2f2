"""Results as the table that people read and the file that programs read."""

import json
import os
import platform
import statistics
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.measures import DATABASES, MEASURES, Against, Database, Measure, Results

HEADER = ("measure", "floor/commit", "outlast sqlite", "ratio", "outlast pg", "ratio", "sure goal", "met")
NONE = "-"
PACKAGES = ("fastapi", "starlette", "uvicorn", "uvloop", "httptools", "sqlalchemy", "psycopg")


def table(results: Results) -> str:
    """Return a Markdown table with one line for each measure that was taken."""
    lines = [HEADER, *(_line(measure, results) for measure in MEASURES if measure.key in results.samples)]
    widths = [max(len(cell) for cell in column) for column in zip(*lines, strict=True)]
    padded = [[cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in lines]
    padded.insert(1, ["-" * width for width in widths])
    return "\n".join(f"| {' | '.join(line)} |" for line in padded)


def surroundings() -> dict[str, Any]:
    """Say when and where. Called before anything is measured, it tells by the load what else runs there."""
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {"cores": os.cpu_count(), "architecture": platform.machine(), "load": os.getloadavg()},
        "versions": {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}},
    }


def save(path: Path, results: Results, found: dict[str, Any]) -> None:
    """Write everything that was measured as JSON, with what is known of the run."""
    record = {
        **found,
        "measures": {
            measure.key: _summary(measure, results) for measure in MEASURES if results.samples.get(measure.key)
        },
        "samples": results.as_json(),
    }
    path.write_text(json.dumps(record, indent=1) + "\n")


def _line(measure: Measure, results: Results) -> tuple[str, ...]:
    databases = [_database_cells(measure, database, results) for database in DATABASES]
    cells = [cell for pair in databases for cell in pair]
    return (measure.title, _compared(measure, results), *cells, *_goal_cells(measure, results))


def _database_cells(measure: Measure, database: Database, results: Results) -> tuple[str, str]:
    samples = results.of(measure, database)
    if not samples:
        return NONE, NONE
    shown = f"{_figure(_median(sample.value for sample in samples))} {measure.unit}"
    if measure.against is Against.NOTHING:
        return shown, NONE
    ratios = [measure.ratio(sample) for sample in samples]
    spread = f" ({_figure(min(ratios))}-{_figure(max(ratios))})" if len(ratios) > 1 else ""
    return shown, _ratio(measure, statistics.median(ratios)) + spread


def _compared(measure: Measure, results: Results) -> str:
    """Show what the figures are compared with: the floor over all databases, a commit for each."""
    samples = [results.of(measure, database) for database in DATABASES if results.of(measure, database)]
    floor = f"{_figure(_median(sample.floor for found in samples for sample in found))} {measure.unit}"
    commits = " / ".join(_figure(_median(sample.commit for sample in found)) for found in samples)
    match measure.against:
        case Against.FLOOR:
            return floor
        case Against.OVER_FLOOR:
            return f"{floor}; commit {commits} ms"
        case Against.COMMIT:
            return f"commit {commits} ms"
        case Against.NOTHING:
            return NONE


def _goal_cells(measure: Measure, results: Results) -> tuple[str, str]:
    if measure.goal is None:
        return NONE, NONE
    goals = dict.fromkeys(_bound(measure, database) for database in DATABASES)
    met = [_met(measure, database, results) for database in DATABASES]
    return " / ".join(goals), " / ".join(met)


def _bound(measure: Measure, database: Database) -> str:
    goal = measure.goal_on(database)
    assert goal is not None
    return f"{'≥' if measure.more_is_better else '≤'} {_ratio(measure, goal.sure)}"


def _met(measure: Measure, database: Database, results: Results) -> str:
    ratio, goal = results.median_ratio(measure, database), measure.goal_on(database)
    if ratio is None or goal is None:
        return NONE
    if measure.meets(ratio, goal.bold):
        return "bold"
    return "yes" if measure.meets(ratio, goal.sure) else "NO"


def _summary(measure: Measure, results: Results) -> dict[str, Any]:
    return {
        database: {
            "title": measure.title,
            "unit": measure.unit,
            "against": measure.against.value,
            "value": _median(sample.value for sample in samples),
            "ratio": results.median_ratio(measure, database),
            "met": _met(measure, database, results) if measure.goal else None,
        }
        for database in DATABASES
        if (samples := results.of(measure, database))
    }


def _ratio(measure: Measure, ratio: float) -> str:
    match measure.against:
        case Against.FLOOR:
            return f"{_figure(ratio)}x"
        case Against.NOTHING:
            return f"{_figure(ratio)} {measure.unit}"
        case _:
            return f"{_figure(ratio)} commits"


def _median(figures: Iterable[float]) -> float:
    return statistics.median(figures)


def _figure(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


__all__: Sequence[str] = ("save", "table")
