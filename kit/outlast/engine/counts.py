"""What this process did since it started; for metrics only."""

from collections import Counter
from dataclasses import dataclass, field

from outlast.core.records import Invocation, Status


@dataclass(slots=True)
class Counts:
    """Numbers that only grow."""

    accepted: int = 0
    attempts: int = 0
    started: int = 0
    """First attempts."""
    waited_ms: int = 0
    """How long the invocations that were started here waited for it, by the database's clock."""
    ended: Counter[Status] = field(default_factory=Counter)

    def begun(self, run: Invocation) -> None:
        """An attempt began."""
        self.attempts += 1
        if run.attempt == 1 and run.started_at is not None:
            self.started += 1
            self.waited_ms += max(0, run.started_at - run.created_at)
