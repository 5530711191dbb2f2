"""The programs in `examples/` that tell by themselves whether they work."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


@pytest.mark.skipif(not EXAMPLES.is_dir(), reason="there are no examples beside an installed wheel")
def test_five_interruptions_are_resumed(tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / "resume.py")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["No tool ran twice."]), done.stderr
