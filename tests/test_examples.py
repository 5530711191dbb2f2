"""The programs in `examples/` that tell by themselves whether they work."""

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


@pytest.mark.skipif(not EXAMPLES.is_dir(), reason="there are no examples beside an installed wheel")
def test_five_interruptions_are_resumed(tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / "resume.py")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    said = done.stdout.splitlines()
    assert (done.returncode, said[-1:]) == (0, ["No tool ran twice."]), done.stderr
    assert [sum(word in line for line in said) for word in ("interrupted:", "resumed:")] == [5, 5]
    assert [line.rpartition("(")[2] for line in said if "interrupted:" in line] == [
        "provider_error)", "worker_died)", "provider_error)", "it was the answer itself)", "cancelled)",
    ]  # fmt: skip


@pytest.mark.skipif(not EXAMPLES.is_dir(), reason="there are no examples beside an installed wheel")
def test_session_of_the_openai_agents_sdk_is_kept(tmp_path: Path) -> None:
    pytest.importorskip("agents")
    command = [sys.executable, str(EXAMPLES / "openai" / "session_only.py")]
    for count in (2, 4):
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
        assert done.stdout.splitlines() == ["I remember.", f"{count} items here, 2 in the branch"], done.stderr


@pytest.mark.skipif(not EXAMPLES.is_dir(), reason="there are no examples beside an installed wheel")
def test_agent_of_the_openai_agents_sdk_hands_over_and_refunds(tmp_path: Path) -> None:
    pytest.importorskip("agents").set_tracing_disabled(True)
    from outlast_openai import recognise

    agent = recognise(runpy.run_path(str(EXAMPLES / "openai" / "main.py"))["agent"])
    assert agent is not None
    reply = agent.session("s", store=f"sqlite:///{tmp_path / 'state.db'}").sync.run("refund")
    assert reply.text == "Your money is on its way."
