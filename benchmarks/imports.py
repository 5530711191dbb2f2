"""What `import outlast` takes, beside what it imports anyway."""

import subprocess
import sys

from benchmarks.measures import Results, Sample
from benchmarks.servers import ROOT

TIMED = "import time; begin = time.perf_counter(); import {}; print(1000 * (time.perf_counter() - begin))"
ROUNDS = 5


def measure(results: Results) -> None:
    """Take the best of some rounds of each, one after the other: a first import also reads the files."""
    rounds = [(_milliseconds("fastapi, sqlalchemy"), _milliseconds("outlast")) for _ in range(ROUNDS)]
    below, above = (min(times) for times in zip(*rounds, strict=True))
    results.add("import", "sqlite", Sample(above, below))


def _milliseconds(names: str) -> float:
    done = subprocess.run(
        [sys.executable, "-c", TIMED.format(names)], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return float(done.stdout)
