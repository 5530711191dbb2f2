"""Each template makes a project that runs: its own tests pass, and each way to start it works."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from outlast.cli.rendering import Choices, Framework, Server, render
from outlast.testing.serving import ServerNotStarted, ServerProcess

NEEDED = {Framework.LANGGRAPH: "langchain", Framework.OPENAI: "agents", Framework.NATIVE: "openai"}
EACH = [
    Framework.NATIVE,
    *(pytest.param(one, marks=pytest.mark.slow) for one in (Framework.LANGGRAPH, Framework.OPENAI)),
]
"""The one without a framework is among the quick tests: they import nothing big in each of many processes."""
KEY = "OPENAI_API_KEY"
TOOL_SERVER = str(Path(__file__).parent / "kit" / "tool_server.py")
ANOTHER_MODEL = """def make_model() -> BaseChatModel:
    from outlast.testing.scripted import Script
    from outlast_langgraph.testing import ScriptedChatModel

    return ScriptedChatModel(script=Script("Hi."))
"""
EVERY_FILE = {
    ".env.example", ".gitignore", "AGENTS.md", "Dockerfile", "README.md", "agent.toml", "app.yaml", "pyproject.toml",
    "agent/__init__.py", "agent/model.py", "agent/prompt.py", "agent/shop.py", "agent/tools.py",
    "runtime/__init__.py", "runtime/adapter.py", "runtime/main.py",
    "tests/script.py", "tests/served.py", "tests/test_service.py",
}  # fmt: skip

Make = Callable[..., Path]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Make a project; without a key in the environment."""
    for name in (KEY, "OUTLAST_CONFIG", "OUTLAST_STORE"):
        monkeypatch.delenv(name, raising=False)

    def make(framework: Framework, server: Server = Server.OUTLAST, model: str | None = None) -> Path:
        pytest.importorskip(NEEDED[framework])
        folder = tmp_path / "project"
        folder.mkdir()
        render(Choices("desk", framework, server, model), folder)
        return folder

    return make


def run(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder, env={**os.environ, **variables}, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip


def commands(server: Server) -> list[list[str]]:
    ways = [["-m", "runtime.main", "--port", "{port}"], ["-m", "uvicorn", "runtime.main:app", "--port", "{port}"]]
    return ways if server is Server.CUSTOM else [["-m", "outlast", "serve", "--port", "{port}"], *ways]


def _take_another_model(folder: Path) -> None:
    model = folder / "agent" / "model.py"
    model.write_text(re.sub(r"def make_model(.|\n)*", ANOTHER_MODEL, model.read_text()))


@pytest.mark.parametrize("framework", EACH)
def test_the_tests_of_a_project_pass_without_a_key(make: Make, framework: Framework) -> None:
    folder = make(framework)
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert files >= EVERY_FILE
    done = run(folder, "-m", "pytest", "-q", "-p", "no:cacheprovider")
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout


@pytest.mark.parametrize("framework", EACH)
def test_a_project_loads_the_tools_that_are_added_to_it(make: Make, framework: Framework, tmp_path: Path) -> None:
    pytest.importorskip("mcp")
    folder = make(framework)
    if framework is Framework.LANGGRAPH:
        _take_another_model(folder)
    command = ["env", f"PYTHONPATH={os.pathsep.join(sys.path)}", sys.executable, TOOL_SERVER, str(tmp_path)]
    added = run(folder, "-m", "outlast", "tools", "add", "mcp", "shop", "--", *command)
    done = run(folder, "-c", "import runtime.main", **{KEY: "x"})
    assert (added.returncode, done.returncode) == (0, 0), added.stderr + done.stderr
    assert len(list(tmp_path.glob("server-*"))) == 1


@pytest.mark.parametrize("framework", Framework)
@pytest.mark.parametrize("server", Server)
def test_a_project_is_linted_and_names_itself(make: Make, framework: Framework, server: Server) -> None:
    folder = make(framework, server, "another")
    checked = [
        run(folder, "-m", "ruff", *command, "--no-cache", ".") for command in (("check",), ("format", "--check"))
    ]
    assert [done.returncode for done in checked] == [0, 0], [done.stdout for done in checked]
    texts = {path.name: path.read_text() for path in folder.rglob("*") if path.is_file()}
    assert not [name for name, text in texts.items() if "my-agent" in text]
    assert 'name = "desk"' in texts["pyproject.toml"] and 'name = "desk"' in texts["agent.toml"]
    assert f'server = "{server}"' in texts["agent.toml"]
    assert 'MODEL = "another"' in texts["model.py"]


@pytest.mark.parametrize("framework", EACH)
def test_a_missing_key_is_one_line_that_names_it(make: Make, framework: Framework) -> None:
    folder = make(framework)
    for value in ({}, {KEY: ""}):
        for command in commands(Server.OUTLAST):
            done = run(folder, *(part.replace("{port}", "0") for part in command), **value)
            assert done.returncode != 0
            assert done.stderr.count("\n") == 1 and f"{KEY} is not set" in done.stderr, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("framework", [Framework.OPENAI, Framework.NATIVE])
@pytest.mark.parametrize("server", Server)
def test_a_key_in_the_env_file_is_enough_for_every_way_to_start(
    make: Make, framework: Framework, server: Server, tmp_path: Path
) -> None:
    folder = make(framework, server)
    (folder / ".env").write_text(f"{KEY}=sk-not-a-key\n")
    for command in commands(server):
        with ServerProcess([sys.executable, *command], log=tmp_path / "log", cwd=folder) as service:
            (agent,) = httpx.get(f"{service.url}/api/agent").json()["agents"]
            assert agent["name"] == "desk"
    assert (folder / ".outlast" / "state.db").is_file()


@pytest.mark.slow
def test_a_graph_with_a_model_of_another_provider_is_served(make: Make, tmp_path: Path) -> None:
    folder = make(Framework.LANGGRAPH, Server.CUSTOM)
    _take_another_model(folder)
    command = [sys.executable, *commands(Server.CUSTOM)[0]]
    with ServerProcess(command, log=tmp_path / "log", cwd=folder, env={KEY: "x"}) as service:
        asked = {"id": "7f1d2c34-5b6a-4c7d-8e9f-0a1b2c3d4e5f", "session_id": "s", "input": "Hello"}
        answer = httpx.post(f"{service.url}/api/invocations", json=asked, timeout=60)
        assert answer.json()["output"]["text"] == "Hi."
        assert httpx.get(f"{service.url}/").json()["agent"] == "/api/agent"


def test_the_server_of_a_project_is_not_switched_by_the_word_in_its_file(make: Make, tmp_path: Path) -> None:
    folder = make(Framework.NATIVE)
    file = folder / "agent.toml"
    file.write_text(file.read_text().replace('server = "outlast"', 'server = "custom"'))
    served = run(folder, "-m", "outlast", "serve", **{KEY: "x"})
    assert "run it by `uvicorn runtime.main:app`" in served.stderr
    command = [sys.executable, "-m", "uvicorn", "runtime.main:app", "--port", "{port}"]
    with pytest.raises(ServerNotStarted, match="the line alone switches nothing"):
        ServerProcess(command, log=tmp_path / "log", cwd=folder, env={KEY: "x"}).start()


GRAPH_OF_SOMEBODY = """
from typing import TypedDict

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph


class State(TypedDict):
    number: int


def double(state: State) -> State:
    return {"number": state["number"] * 2}


builder = StateGraph(State)
builder.add_node("double", double)
builder.add_edge(START, "double")
graph = builder.compile(checkpointer=InMemorySaver())
"""
AGENTS_OF_SOMEBODY = """
from agents import Agent

from outlast.testing.scripted import Say, Script, ScriptedCall
from outlast_openai.testing import ScriptModel

money = Agent(name="money", model=ScriptModel(Script("", "You get it back.")))
handoff = Say("", [ScriptedCall("transfer_to_money", {}, "call_1")])
desk = Agent(name="desk", model=ScriptModel(Script(handoff)), handoffs=[money])
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("needed", "text", "name", "input", "answer"),
    [
        ("langgraph", GRAPH_OF_SOMEBODY, "graph", {"number": 4}, ("state", {"number": 8})),
        ("agents", AGENTS_OF_SOMEBODY, "desk", "My money, please.", ("text", "You get it back.")),
    ],
    ids=["a graph with a state and a checkpointer", "agents with a handoff"],
)
def test_an_agent_of_somebody_becomes_a_service(
    tmp_path: Path, needed: str, text: str, name: str, input: object, answer: tuple[str, object]
) -> None:
    pytest.importorskip(needed)
    (folder := tmp_path / "app").mkdir()
    (folder / "theirs.py").write_text(text)
    made = run(folder, "-m", "outlast", "init", "--existing", f"theirs:{name}", OPENAI_AGENTS_DISABLE_TRACING="1")
    assert made.returncode == 0, made.stderr
    command = [sys.executable, "-m", "outlast", "serve", "--port", "{port}"]
    env = {"OPENAI_AGENTS_DISABLE_TRACING": "1"}
    with ServerProcess(command, log=tmp_path / "log", cwd=folder, env=env) as service:
        asked = {"id": "7f1d2c34-5b6a-4c7d-8e9f-0a1b2c3d4e5f", "session_id": "s", "input": input}
        done = httpx.post(f"{service.url}/api/invocations", json=asked, timeout=60).json()
    assert done["output"][answer[0]] == answer[1], done
    assert (folder / "theirs.py").read_text() == text
