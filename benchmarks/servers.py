"""The processes that are measured, and what they take of the machine. Reads /proc, so it needs Linux."""

import contextlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from outlast.testing.serving import ServerProcess

ROOT = Path(__file__).resolve().parent.parent
TARGET = f"{ROOT / 'benchmarks' / 'app.py'}:app"
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Served:
    """A running server."""

    port: int
    pid: int

    def cpu_seconds(self) -> float:
        """CPU time of the process so far, in all its threads."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def resident_bytes(self) -> int:
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise RuntimeError("the system does not tell the memory of a process")


@contextlib.contextmanager
def floor(folder: Path) -> Iterator[Served]:
    """Run the floor for the time of the `with` block."""
    command = [sys.executable, "-m", "benchmarks.floor", "{port}"]
    with ServerProcess(command, log=folder / "floor.log", env=_environment(folder, 100), cwd=ROOT) as process:
        yield _served(process)


@contextlib.contextmanager
def outlast(store_url: str, folder: Path, *, concurrency: int = 100) -> Iterator[Served]:
    """Run outlast for the time of the `with` block. With a `concurrency` of 0 it accepts runs and starts none."""
    process = ServerProcess.serving(
        TARGET, store_url, log=folder / "outlast.log", env=_environment(folder, concurrency), cwd=ROOT
    )
    with process:
        yield _served(process)


def _environment(folder: Path, concurrency: int) -> dict[str, str]:
    return {
        "BENCH_STATE_DIR": str(folder / "locks"),
        "BENCH_CONCURRENCY": str(concurrency),
        "PYTHONPATH": str(ROOT),
    }


def _served(process: ServerProcess) -> Served:
    return Served(urlsplit(process.url).port or 0, process.pid)
