"""What is measured, and the goals we set ourselves.

A goal is a ratio to something taken in the same run, because absolute figures say more about the machine than about us:
to the *floor* (plain FastAPI and uvicorn doing the same work in memory), or to a *commit* (one row, one plain
connection to that database). `sure` must hold; `bold` is what the design should be able to reach.
"""

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any, Literal

Database = Literal["sqlite", "postgresql"]
DATABASES: tuple[Database, ...] = ("sqlite", "postgresql")


class Against(Enum):
    """What a figure is divided by."""

    FLOOR = "the floor"
    OVER_FLOOR = "what is above the floor, in commits"
    COMMIT = "a commit"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Sample:
    """One figure, and what it is compared with, taken just before it. Latencies and commits are milliseconds."""

    value: float
    floor: float = 0.0
    commit: float = 0.0


@dataclass(frozen=True, slots=True)
class Goal:
    sure: float
    bold: float


@dataclass(frozen=True, slots=True)
class Measure:
    """A line of the table."""

    key: str
    title: str
    unit: str
    against: Against
    goal: Goal | None = None
    postgresql: Goal | None = None
    """The goal on PostgreSQL, where it is another one."""
    more_is_better: bool = False

    def goal_on(self, database: Database) -> Goal | None:
        return self.postgresql if self.postgresql is not None and database == "postgresql" else self.goal

    def ratio(self, sample: Sample) -> float:
        """Return what the goal is about."""
        match self.against:
            case Against.FLOOR:
                return sample.value / sample.floor
            case Against.OVER_FLOOR:
                return (sample.value - sample.floor) / sample.commit
            case Against.COMMIT:
                return sample.value / sample.commit
            case Against.NOTHING:
                return sample.value

    def meets(self, ratio: float, goal: float) -> bool:
        return ratio >= goal if self.more_is_better else ratio <= goal


FLOOR, OVER_FLOOR, COMMIT, NOTHING = Against

MEASURES: tuple[Measure, ...] = (
    Measure("sync_c64", "sync, 64 clients", "runs/s", FLOOR, Goal(0.30, 0.50), Goal(0.20, 0.45), more_is_better=True),
    Measure("sync_c64_cpu", "server CPU a run, sync, 64 clients", "ms", FLOOR, Goal(3.5, 2.2)),
    Measure("posted_c64", "the same, pipelined events", "runs/s", FLOOR, more_is_better=True),
    Measure("sync_c1", "sync, 1 client, 10 awaited events", "ms", OVER_FLOOR, Goal(20, 15), Goal(20, 14)),
    Measure("posted_c1", "the same, pipelined events", "ms", OVER_FLOOR, Goal(8, 4.5)),
    Measure("first_c1", "stream, 1 client: first event", "ms", OVER_FLOOR, Goal(5, 3)),
    Measure("first_c64", "stream, 64 clients: first event", "ms", FLOOR, Goal(1.5, 1.0)),
    Measure("stream_c64", "stream, 64 clients", "runs/s", FLOOR, Goal(0.40, 0.65), more_is_better=True),
    Measure("submit_c1", "background submit, 1 client", "ms", OVER_FLOOR, Goal(3, 1.5)),
    Measure("submit_c64", "background submit, 64 clients", "runs/s", FLOOR, Goal(0.45, 0.75), more_is_better=True),
    Measure("background_c64", "submit, run and poll, 64 clients", "runs/s", FLOOR, more_is_better=True),
    Measure("emit", "in process: an awaited event", "ms", COMMIT, Goal(2, 1.2)),
    Measure("post", "in process: pipelined events", "events/s", NOTHING, Goal(15_000, 35_000), more_is_better=True),
    Measure("claim", "claim and finish, a long queue in one session", "ms", NOTHING, Goal(10, 3)),
    Measure("empty_poll", "empty poll, while the head of that queue runs", "ms", NOTHING, Goal(2, 0.3)),
    Measure("frames", "frames to many followers of one run", "frames/s", NOTHING, Goal(7_000, 20_000),
            more_is_better=True),
    Measure("remote", "event to a follower in another process", "ms", NOTHING, Goal(60, 20)),
    Measure("follower", "memory of an idle follower", "KB", NOTHING, Goal(40, 24)),
    Measure("waiting", "memory of a waiting run", "KB", NOTHING, Goal(10, 3)),
    Measure("lock_freed", "a killed process: its lock is free", "ms", NOTHING, Goal(200, 10)),
    Measure("restart", "a killed process: its run goes on, by a worker that starts", "ms", NOTHING),
    Measure("peer", "a killed process: its run goes on, by a worker that runs", "ms", NOTHING),
    Measure("import", "import outlast (floor: fastapi and sqlalchemy)", "ms", FLOOR),
)  # fmt: skip


@dataclass(slots=True)
class Results:
    """Samples by measure and database, one a repeat."""

    samples: dict[str, dict[Database, list[Sample]]] = field(default_factory=dict)

    def add(self, key: str, database: Database, sample: Sample) -> None:
        self.samples.setdefault(key, {}).setdefault(database, []).append(sample)

    def of(self, measure: Measure, database: Database) -> Sequence[Sample]:
        return self.samples.get(measure.key, {}).get(database, ())

    def median_ratio(self, measure: Measure, database: Database) -> float | None:
        """Return the median of the ratios of the repeats, or None where nothing was measured."""
        samples = self.of(measure, database)
        return statistics.median(map(measure.ratio, samples)) if samples else None

    def as_json(self) -> dict[str, Any]:
        return {
            key: {database: [asdict(sample) for sample in samples] for database, samples in found.items()}
            for key, found in self.samples.items()
        }
