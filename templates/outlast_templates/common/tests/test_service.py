"""The agent as a service: real processes, a scripted model, no network and no key."""

import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from outlast import SyncAgentClient
from outlast.testing.serving import ServerProcess

ROOT = Path(__file__).parents[1]
HANG_SECONDS = 60


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    path = tmp_path / "ledger.txt"
    path.touch()
    return path


@pytest.fixture
def service(tmp_path: Path, ledger: Path) -> Iterator[ServerProcess]:
    """`tests/served.py`, not started yet; its bank is slow while a file `slow` is there."""
    command = [sys.executable, "-m", "outlast", "serve", "tests/served.py:app", "--port", "{port}"]
    env = {"LEDGER": str(ledger), "OUTLAST_STORE": f"sqlite:///{tmp_path / 'state.db'}", "SLOW": str(tmp_path / "slow")}
    process = ServerProcess(command, log=tmp_path / "log", env=env, cwd=ROOT)
    yield process
    process.kill()


def approve(client: SyncAgentClient) -> dict[str, object]:
    (asked,) = client.approvals(status="open")
    assert asked.name == "refund"
    return {"resume": {"decisions": [{"id": asked.id, "type": "approve"}]}}


def test_a_refund_is_paid_when_a_person_has_agreed(service: ServerProcess, ledger: Path) -> None:
    with service, SyncAgentClient(service.url) as client:
        chat = client.session("ann")
        assert chat.run("Please refund order A1.").interrupt is not None
        assert ledger.read_text() == ""
        assert chat.run(approve(client)).text == "Your money is on its way."
    assert ledger.read_text().startswith("A1 39.00 ")


def test_a_refund_that_was_cut_off_is_not_paid_twice(service: ServerProcess, ledger: Path, tmp_path: Path) -> None:
    """Killed in the middle of the tool, and started again: the client that waits gets its answer."""
    (slow := tmp_path / "slow").touch()
    service.start()
    with SyncAgentClient(service.url) as client, ThreadPoolExecutor() as threads:
        chat = client.session("ann")
        chat.run("Please refund order A1.")
        waiting = threads.submit(chat.run, approve(client))
        wait_for_a_line(ledger)
        service.kill()
        slow.unlink()
        service.start()
        assert waiting.result(HANG_SECONDS).text == "Your money is on its way."
        (last, _) = client.invocations(session_id="ann")
        assert (last["status"], last["attempt"]) == ("completed", 2)
    assert len(ledger.read_text().splitlines()) == 1


def wait_for_a_line(file: Path) -> None:
    give_up = time.monotonic() + HANG_SECONDS
    while not file.read_text().endswith("\n"):
        assert time.monotonic() < give_up, "the tool never began"
        time.sleep(0.02)
