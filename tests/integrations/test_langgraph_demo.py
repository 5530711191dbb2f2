"""The example with effects, and the demo that kills its server."""

from pathlib import Path

import pytest

pytest.importorskip("langgraph")

from typer.testing import CliRunner

import outlast_templates
from outlast.cli import main

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def test_demo_serves_the_example_word_for_word() -> None:
    served = Path(outlast_templates.__file__).with_name("demo") / "refunds.py"
    assert served.read_text("utf-8") == (EXAMPLES / "langgraph" / "refunds.py").read_text("utf-8")


@pytest.mark.slow
def test_demo_ends_well() -> None:
    result = CliRunner().invoke(main, ["demo"])
    assert result.exit_code == 0, result.output
    assert "no gap, no repeat" in result.output
    assert "refund 1042: 1" in result.output
