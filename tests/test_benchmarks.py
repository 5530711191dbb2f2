"""The benchmarks run. What they measure is theirs to judge: no figure is asserted here."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
HANG_SECONDS = 900
TABLE_BEGINS = "| measure "

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (ROOT / "benchmarks").exists(), reason="needs the repository"),
    pytest.mark.skipif(sys.platform != "linux", reason="the benchmarks read /proc"),
]


def test_a_quick_run_prints_every_measure_and_writes_the_samples(tmp_path: Path) -> None:
    output = tmp_path / "results.json"
    command = [sys.executable, "benchmarks/run.py", "--quick", "--output", str(output), "--folder", str(tmp_path)]
    done = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True, timeout=HANG_SECONDS)
    assert done.returncode == 0, done.stderr
    header, _, *lines = done.stdout[done.stdout.index(TABLE_BEGINS) :].splitlines()
    assert [cell.strip() for cell in header.strip("|").split("|")][-2:] == ["sure goal", "met"]
    found = json.loads(output.read_text())
    assert len(lines) == len(found["measures"]) == len(found["samples"]) > 0
