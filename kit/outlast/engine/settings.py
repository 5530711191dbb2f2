"""How one worker behaves. Read in `server` and `cli`, passed down as values."""

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from outlast.core.records import Status

DAY_SECONDS = 86_400.0


def default_state_dir() -> Path:
    """Return the folder of the workers' lock files; every worker of one user on one machine must use the same."""
    return Path(tempfile.gettempdir()) / f"outlast-{os.getuid()}"


def _thirty_days() -> Mapping[Status, float]:
    return {status: 30 * DAY_SECONDS for status in Status if status.final}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """Times are seconds; 0 switches a limit off where the text says so."""

    concurrency: int = 100
    """Runs at once in this process."""
    claims: bool = True
    """Whether this worker takes queued runs of its agents by itself; without, only what it accepts or adopts."""
    per_principal: int = 0
    """Runs at once of one principal over all workers; 0 = no limit."""
    max_crashes: int = 5
    """Workers a run may lose without progress before it fails; 0 = no limit."""
    run_timeout: float = DAY_SECONDS
    """Longest run, from its first start; 0 = no limit. A request may ask for less or more."""
    cancel_grace: float = 30.0
    drain_timeout: float = 30.0
    beat: float = 2.0
    dead_after: float = 8.0
    """A worker whose counter did not change for so long, by the observer's own monotonic clock, is dead."""
    poll: float = 1.0
    """How often the queue and other workers' runs are looked at when no hint arrives."""
    accept_timeout: float = 10.0
    """How long a request waits for the database before it is answered 503."""
    stall_warning: float = 5.0
    stall_after: float = 60.0
    stall_exit: float = 600.0
    """A loop blocked for so long is named in a warning; claims nothing; ends the process."""
    retention: Mapping[Status, float] = field(default_factory=_thirty_days)
    """How long finished invocations are kept, per status; a missing status is kept for ever."""
    idempotency_retention: float = 90 * DAY_SECONDS
    state_dir: Path = field(default_factory=default_state_dir)
