"""The README shows programs that exist and stay short."""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("name", ["own_loop", "langgraph"])
def test_readme_shows_the_example_word_for_word(name: str) -> None:
    program = (ROOT / "examples" / name / "main.py").read_text("utf-8")
    assert f"```python\n{program}```" in (ROOT / "README.md").read_text("utf-8")
    assert len(program.splitlines()) < 30
