"""The graphs in `examples/langgraph_*`, served as they are: `outlast serve path:graph`, with no code of ours in between."""

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("langchain")

import httpx
from fastapi.testclient import TestClient

from outlast.cli.target import load
from outlast.testing.serving import ServerProcess

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

pytestmark = pytest.mark.skipif(not EXAMPLES.is_dir(), reason="there are no examples beside an installed wheel")

Post = Callable[[Any], dict[str, Any]]


def target(name: str) -> str:
    return f"{EXAMPLES / f'langgraph_{name}' / 'graph.py'}:graph"


@pytest.fixture
def served(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Send an input to the graph of an example, as a run of one session."""
    monkeypatch.setenv("OUTLAST_STORE", f"sqlite:///{tmp_path / 'state.db'}")
    monkeypatch.setenv("INVOICES_BOOK", str(tmp_path / "book.txt"))
    with TestClient(load(target(request.param))) as client:

        def post(input: Any) -> dict[str, Any]:
            body = {"id": str(uuid.uuid4()), "session_id": "s", "input": input}
            answer: dict[str, Any] = client.post("/api/invocations", json=body).json()
            return answer

        yield post


@pytest.mark.parametrize("served", ["agent"], indirect=True)
def test_agent_with_tools(served: Post) -> None:
    output = served("Where shall I go?")["output"]
    assert output["text"] == "Take the flight to Lisbon: sunny, 24 degrees."
    results = [message["content"] for message in output["messages"] if message["role"] == "tool"]
    assert results == ["sunny, 24 degrees", "rain, 11 degrees"]


@pytest.mark.parametrize("served", ["supervisor"], indirect=True)
def test_supervisor_with_subgraphs(served: Post) -> None:
    output = served("When was the bridge opened?")["output"]
    assert [message["content"] for message in output["messages"]] == [
        "It was opened in 1932.", "The bridge, opened in 1932, still stands.",
    ]  # fmt: skip


@pytest.mark.parametrize("served", ["workflow"], indirect=True)
def test_workflow_without_messages(served: Post, tmp_path: Path) -> None:
    invoices = [{"number": "A1", "amount": 40}, {"number": "A2", "amount": 4000}, {"number": "A3", "amount": 7}]
    state = served({"invoices": invoices})["output"]["state"]
    assert (state["summary"], state["refused"]) == ("2 booked, 1 refused", ["A2"])
    assert sorted((tmp_path / "book.txt").read_text().splitlines()) == ["A1 40", "A3 7"]


@pytest.mark.parametrize("served", ["approval"], indirect=True)
def test_agent_that_asks_twice(served: Post) -> None:
    asked = served("Pay.")
    assert (asked["status"], asked["interrupt"]["reason"]) == ("interrupted", "approval_required")
    (approval,) = asked["interrupt"]["approvals"]
    asked = served({"resume": {"decisions": [{"id": approval["id"], "type": "approve"}]}})
    assert (asked["status"], asked["interrupt"]["reason"]) == ("interrupted", "input_required")
    output = served({"resume": "Ada"})["output"]
    assert [m["content"] for m in output["messages"] if m["role"] == "tool"] == ["Ada got 40"]
    assert output["text"] == "It is paid."


def test_by_the_command(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'state.db'}"
    with ServerProcess.serving(target("agent"), url, log=tmp_path / "log") as server:
        body = {"id": str(uuid.uuid4()), "input": "Where shall I go?"}
        answer = httpx.post(f"{server.url}/api/invocations", json=body, timeout=30).json()
    assert answer["output"]["text"] == "Take the flight to Lisbon: sunny, 24 degrees."
