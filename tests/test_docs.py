"""The programs in the documentation run."""

import asyncio
import inspect
import re
import uuid
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from outlast import Agent, DurableAgentServer
from outlast.testing.scripted import ScriptedModel
from outlast.testing.serving import ServerThread

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("docs/*.md"), ROOT / "README.md"]) if (ROOT / "docs").is_dir() else []
"""Empty beside an installed wheel, which has no documentation."""
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")

PROGRAMS = [
    pytest.param(block, id=f"{page.stem}-{number}")
    for page in PAGES
    for number, block in enumerate(BLOCK.findall(page.read_text()), 1)
]


def _takes_url(thing: Any) -> bool:
    """Say whether something in a program is a function of its own that is called with the address of a server."""
    own = inspect.isfunction(thing) and thing.__module__ == "main"
    return own and list(inspect.signature(thing).parameters) == ["url"]


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_in_the_documentation_runs(program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if "outlast_langgraph" in program:
        pytest.importorskip("langgraph")
    if "outlast_openai" in program:
        pytest.importorskip("agents").set_tracing_disabled(True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OUTLAST_STORE", f"sqlite:///{tmp_path}/state.db")
    program = program.replace("asyncio.sleep(1)", "asyncio.sleep(0)")
    names: dict[str, Any] = {"__name__": "main"}
    exec(compile(program, "documentation", "exec"), names)  # noqa: S102 - our own documentation
    for function in [one for one in names.values() if _takes_url(one)]:
        with ServerThread(DurableAgentServer(Agent(ScriptedModel("Hello!")))) as server:
            said = function(server.url)
            said = asyncio.run(said) if inspect.iscoroutine(said) else said
        assert "Hello!" in str(said)
    if isinstance(app := names.get("app"), DurableAgentServer):
        adapted = "outlast_langgraph" in program or "Agent(" in program
        input = "hello" if adapted else {"order": "A1", "resume": "savings"}
        with TestClient(app) as client:
            answer = client.post("/api/invocations", json={"id": str(uuid.uuid4()), "session_id": "s", "input": input})
            if app.agents.handwritten.resume_point is not None:
                _resumes(client)
        assert answer.json()["status"] == "completed", answer.text


def _resumes(client: TestClient) -> None:
    """Ask handlers for how their session was interrupted, and have them go on from there."""
    point, resume = "/api/sessions/s/resume-point", {"id": str(uuid.uuid4())}
    assert client.get(point).json()["point"]["kind"] == "call_model"
    assert client.post("/api/sessions/s/resume", json=resume).json()["status"] == "completed"
    assert client.get(point).json()["point"] is None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_link_leads_to_a_file(page: Path) -> None:
    missing = [link for link in LINK.findall(page.read_text()) if not (page.parent / link).exists()]
    assert not missing
