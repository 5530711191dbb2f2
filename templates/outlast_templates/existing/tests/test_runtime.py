"""The service starts with the agent in it. Add runs that need no network: give the agent a scripted model."""

import sys
from pathlib import Path

import httpx

from outlast.testing.serving import ServerProcess

ROOT = Path(__file__).parents[1]


def test_the_agent_is_served(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "uvicorn", "runtime.main:app", "--port", "{port}"]
    env = {"OUTLAST_STORE": f"sqlite:///{tmp_path / 'state.db'}"}
    with ServerProcess(command, log=tmp_path / "log", env=env, cwd=ROOT) as service:
        (agent,) = httpx.get(f"{service.url}/api/agent").json()["agents"]
    assert agent["name"] == "my-agent"
