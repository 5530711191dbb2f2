"""`agent.toml`: what it says is done, and what it cannot say is refused."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from outlast import Agent, DurableAgentServer, SyncAgentClient
from outlast.core.records import Status
from outlast.server import AgentSetupError, BadConfig, Config
from outlast.testing.scripted import ScriptedModel
from outlast.testing.serving import ServerProcess

COMMAND = [sys.executable, "-c", "from outlast.cli import main; main()"]
AGENT = "from outlast import Agent\nfrom outlast.testing.scripted import ScriptedModel\nagent = Agent(ScriptedModel('Hi.'))\n"


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Write `agent.toml` into the current folder, an empty one, without variables that would override it."""
    monkeypatch.chdir(tmp_path)
    for name in ("OUTLAST_STORE", "OUTLAST_CONFIG", "OUTLAST_CONCURRENCY", "OUTLAST_NAME"):
        monkeypatch.delenv(name, raising=False)

    def write(text: str) -> Path:
        path = tmp_path / "agent.toml"
        path.write_text(text)
        return path

    return write


def agent() -> Agent:
    return Agent(ScriptedModel("Hi."))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[agent]\nmax_crash = 3", "there is no max_crash in [agent]; did you mean max_crashes?"),
        ("[agents]\nname = 'a'", "there is no [agents]; did you mean [agent]?"),
        ("[agent]\nretention = 3", "did you mean [store] retention?"),
        ("name = 'a'", "did you mean [agent] name?"),
        ("[zzz]", "there is no [zzz]; there is [agent], [store], [cors], [deploy], [tools]"),
        ("[auth.user]\nrequired = true", "outlast does not have [auth] yet"),
        ("[store]\ndirect_url = 'x'", "outlast does not have direct_url in [store] yet"),
        ("[agent]\nmax_crashes = 'many'", "agent.toml: agent.max_crashes: Input should be a valid integer"),
        ("[agent]\nconcurrency = true", "agent.toml: agent.concurrency: it is a number"),
        ("[agent]\nrun_timeout = '3 fortnights'", "'3 fortnights' is no span of time such as 90s"),
        ("[agent]\nserver = 'mine'", "Input should be 'outlast' or 'custom'"),
        ("[agent", "agent.toml is no TOML"),
        ("agent = 3", "[agent] is a table"),
        ("[agent]\nserver = 'custom'\n[cors]\nallowed_origins = ['*']", "the app is yours, and so are its origins"),
    ],
)
def test_what_cannot_be_done_is_refused_with_the_way_out(
    write: Callable[[str], Path], outlast: Callable[..., Any], text: str, says: str
) -> None:
    write(text)
    done = outlast("config", code=2)
    assert says in done.err
    assert done.err.count("\n") == 1


def test_variables_override_the_env_file_and_the_env_file_overrides_the_file(
    write: Callable[[str], Path], tmp_path: Path
) -> None:
    path = write("[agent]\nname = 'a'\nconcurrency = 1\nmax_crashes = 1\nrun_timeout = '2h'\n")
    (tmp_path / ".env").write_text("# mine\nOUTLAST_CONCURRENCY=2\nexport OUTLAST_MAX_CRASHES='2' \nKEY=x # not y\n")
    environ = {"OUTLAST_MAX_CRASHES": "3"}
    config = Config.read(path, environ)
    assert (config.file.agent.concurrency, config.file.agent.max_crashes, config.file.agent.run_timeout) == (2, 3, 7200)
    assert config.sources == {
        "agent.name": "agent.toml",
        "agent.concurrency": "OUTLAST_CONCURRENCY in .env",
        "agent.max_crashes": "OUTLAST_MAX_CRASHES",
        "agent.run_timeout": "agent.toml",
    }
    assert environ["KEY"] == "x"


def test_a_line_of_the_env_file_that_sets_nothing_is_refused_without_showing_it(
    write: Callable[[str], Path], tmp_path: Path
) -> None:
    path = write("")
    (tmp_path / ".env").write_text("A=1\nsecret\n")
    with pytest.raises(BadConfig, match=r"^\.env, line 2 is not like NAME=value$"):
        Config.read(path, {})


def test_config_shows_each_value_and_its_origin_and_no_password(
    write: Callable[[str], Path], outlast: Callable[..., Any]
) -> None:
    write("[agent]\nname = 'desk'\n[store]\nurl = 'postgresql://me:hunter2@db/a?password=hunter2'\n")
    said = outlast("config", "--json")
    rows = {row["key"]: row for row in said.objects}
    assert rows["agent.name"] == {"key": "agent.name", "value": "desk", "source": "agent.toml"}
    assert rows["agent.max_crashes"] == {"key": "agent.max_crashes", "value": 5, "source": "default"}
    assert "hunter2" not in said.out + outlast("config").out
    assert "me:***@db" in rows["store.url"]["value"]


def test_a_server_does_as_the_file_says(write: Callable[[str], Path], tmp_path: Path) -> None:
    path = write(
        "[agent]\nname = 'desk'\nconcurrency = 7\ndrain_timeout = '5s'\n[store]\nretention = '1d'\n"
        "[cors]\nallowed_origins = ['https://example.com']\n"
    )
    app = DurableAgentServer(agent(), config=Config.read(path, {}))
    assert list(app.agents.by_name()) == ["desk"]
    assert (app.settings.engine.concurrency, app.settings.engine.drain_timeout) == (7, 5)
    assert app.settings.engine.retention[Status.COMPLETED] == 86_400
    with TestClient(app) as client:
        asked = client.get("/api/agent", headers={"Origin": "https://example.com"})
        assert asked.headers["access-control-allow-origin"] == "https://example.com"
        other = client.get("/api/agent", headers={"Origin": "https://example.org"})
        assert "access-control-allow-origin" not in other.headers
    assert (tmp_path / ".outlast" / "state.db").is_file()


def test_zero_keeps_runs_for_ever(write: Callable[[str], Path]) -> None:
    app = DurableAgentServer(agent(), config=Config.read(write("[store]\nretention = 0\n"), {}))
    assert app.settings.engine.retention == {}


def test_the_kind_of_server_is_not_switched_by_its_line(write: Callable[[str], Path]) -> None:
    custom = Config.read(write("[agent]\nserver = 'custom'\n"), {})
    with (
        pytest.raises(AgentSetupError, match="the line alone switches nothing"),
        TestClient(DurableAgentServer(agent(), config=custom)),
    ):
        pass
    own = Config.read(write("[agent]\nserver = 'outlast'\n"), {})
    app = FastAPI()
    DurableAgentServer(agent(), config=own).install(app)
    with pytest.raises(AgentSetupError, match="the line alone switches nothing"), TestClient(app):
        pass


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "there is no agent.toml here that says what to serve; give a TARGET"),
        ("[agent]\nname = 'a'\n", "agent.toml has no target"),
        ("[agent]\nserver = 'custom'\ntarget = 'main:app'\n", "run it by `uvicorn main:app`"),
        ("[agent]\nname = 'other'\ntarget = 'served.py:app'\n", "names the agent 'other'; the server has agent"),
    ],
)
def test_serve_without_a_target_says_what_is_missing(
    write: Callable[[str], Path], outlast: Callable[..., Any], tmp_path: Path, text: str | None, says: str
) -> None:
    (tmp_path / "served.py").write_text(
        AGENT + "from outlast import DurableAgentServer\napp = DurableAgentServer(agent)"
    )
    if text is not None:
        write(text)
    assert says in outlast("serve", code=2).err


@pytest.mark.parametrize(("workers", "target"), [("1", "place.py:agent"), ("2", "place:agent")])
def test_serve_without_a_target_serves_what_the_file_says_from_any_folder(
    write: Callable[[str], Path], tmp_path: Path, workers: str, target: str
) -> None:
    path = write(f"[agent]\nname = 'desk'\ntarget = '{target}'\n[store]\nurl = 'sqlite:///kept.db'\n")
    (tmp_path / "place.py").write_text(AGENT)
    (elsewhere := tmp_path / "elsewhere").mkdir()
    command = [*COMMAND, "serve", "--port", "{port}", "--workers", workers]
    env = {"OUTLAST_CONFIG": str(path)}
    with ServerProcess(command, log=tmp_path / "log", env=env, cwd=elsewhere) as server:
        with SyncAgentClient(server.url) as client:
            assert client.session("s").run("Hello").text == "Hi."
        assert [one["name"] for one in httpx.get(f"{server.url}/api/agent").json()["agents"]] == ["desk"]
    assert (tmp_path / "kept.db").is_file()
    listed = [*COMMAND, "sessions", "list", "--json"]
    found = subprocess.run(listed, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60)
    assert json.loads(found.stdout)["id"] == "s"
