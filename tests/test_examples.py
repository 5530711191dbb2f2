"""The programs in `examples/` that tell by themselves whether they work."""

import subprocess
import sys
from pathlib import Path

import pytest

from outlast import SyncAgentClient
from outlast.testing.serving import ServerProcess

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
@pytest.mark.parametrize(
    ("name", "answers"),
    [
        ("main", ["Your money is on its way.", "What can I do for you?"]),
        ("research", ["Tea is an old plant: six books say so."]),
        ("approval", ["I ask somebody.", "Your money is on its way."]),
    ],
)
def test_agents_of_the_openai_agents_sdk_are_served_as_they_are(tmp_path: Path, name: str, answers: list[str]) -> None:
    pytest.importorskip("agents")
    target, store = f"{EXAMPLES / 'openai' / name}.py:agent", f"sqlite:///{tmp_path / 'state.db'}"
    with (
        ServerProcess.serving(target, store, log=tmp_path / "log") as server,
        SyncAgentClient(server.url) as client,
    ):
        chat = client.session("s")
        said = [chat.run("Please.")]
        if name == "approval":
            (asked,) = client.approvals()
            said.append(chat.run({"resume": {"decisions": [{"id": asked.id, "type": "approve"}]}}))
        elif name == "main":
            said.append(chat.run("Thanks."))
    assert [reply.text for reply in said] == answers
