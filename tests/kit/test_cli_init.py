"""`outlast init`: a whole project, or nothing and one line that says why."""

import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import outlast_templates
from outlast.server import Config
from outlast.store.url import file_of

TEMPLATES = Path(outlast_templates.__file__).parent
COMMAND = [sys.executable, "-c", "from outlast.cli import main; main()", "init"]
HANG_SECONDS = 60


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, empty."""
    (folder := tmp_path / "here").mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.delenv("OUTLAST_CONFIG", raising=False)
    return folder


def everything(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")}


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("desk", "desk"), ("My Desk", "my-desk"), ("1st", "1st"), ("Kundendienst für Bücher", "kundendienst-fur-bucher"),
        ("служба", "my-agent"), ("it's 50%", "it-s-50"), ("a#b:c", "a-b-c"), ("{x}", "x"), ("class", "class"),
    ],
)  # fmt: skip
def test_any_name_of_a_folder_makes_a_project(here: Path, outlast: Callable[..., Any], folder: str, name: str) -> None:
    said = outlast("init", folder, "--no-install").out
    assert f"{folder} has the project {name}." in said
    assert everything(here) >= {folder, f"{folder}/.env.example", f"{folder}/runtime/main.py"}
    assert os.listdir(here) == [folder]
    config = Config.read(here / folder, {})
    assert config.file.agent.name == name
    assert file_of(config.store_url) == here / folder / ".outlast" / "state.db"


@pytest.mark.parametrize("name", [".", "empty", "../here/empty"])
def test_an_empty_folder_is_filled_and_stays_the_one_it_was(here: Path, outlast: Callable[..., Any], name: str) -> None:
    folder = here if name == "." else here / "empty"
    folder.mkdir(exist_ok=True)
    before = folder.stat().st_ino
    outlast("init", name, "--framework", "native", "--no-install")
    assert folder.stat().st_ino == before
    assert {path.name for path in folder.iterdir()} == {path.name for path in (TEMPLATES / "common").iterdir()} | {
        "pyproject.toml"
    }


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("full", "full is not empty, and nothing in it is changed"),
        ("file", "file is a file"),
        ("link", "link is a symbolic link"),
        ("dangling", "dangling is a symbolic link"),
        (".", "is not empty"),
        ("..", "is no name of a folder"),
        ("", "is no name of a folder"),
        ("/", "is no name of a folder"),
        ("a\nb", "is no name of a folder"),
        ("what?", "because of its question mark"),
        ("x" * 256, "longer than 255 bytes"),
        ("missing/desk", "there is no folder missing"),
        ("file/desk", "there is no folder file"),
    ],
)
def test_what_is_there_or_cannot_be_is_refused_before_anything_is_written(
    here: Path, outlast: Callable[..., Any], name: str, says: str
) -> None:
    (here / "full").mkdir()
    (here / "full" / "mine.txt").write_text("mine")
    (here / "file").touch()
    (here / "link").symlink_to("full")
    (here / "dangling").symlink_to("nowhere")
    before = everything(here)
    done = outlast("init", name, "--no-install", code=2)
    assert says in done.err
    assert done.err.count("\n") == 1
    assert everything(here) == before


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_one_line(here: Path, outlast: Callable[..., Any]) -> None:
    here.chmod(0o500)
    done = outlast("init", "desk", code=1)
    assert "Permission denied" in done.err and done.err.count("\n") == 1


@pytest.mark.parametrize("name", ["desk", "."])
def test_ctrl_c_in_the_middle_leaves_nothing(here: Path, tmp_path: Path, name: str) -> None:
    """The templates are a copy with a pipe among them that nobody writes to: there the command stands still."""
    copy = tmp_path / "templates" / TEMPLATES.name
    shutil.copytree(TEMPLATES, copy, ignore=shutil.ignore_patterns("__pycache__", ".ruff_cache"))
    (copy / "langgraph" / "pyproject.toml").unlink()
    os.mkfifo(copy / "langgraph" / "pyproject.toml")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(copy.parent), *sys.path])}
    process = subprocess.Popen(
        [*COMMAND, name, "--no-install"], env=env, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    give_up = time.monotonic() + HANG_SECONDS
    while not any(path.name == "README.md" for path in here.rglob("*")):
        assert process.poll() is None and time.monotonic() < give_up
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=HANG_SECONDS)
    assert (process.returncode, said.decode().strip()) == (130, "nothing was made")
    assert everything(here) == set()


def test_nothing_is_asked_where_nobody_can_answer(here: Path, outlast: Callable[..., Any]) -> None:
    outlast("init", "--no-install")
    assert os.listdir(here) == ["my-agent"]
    assert "outlast_langgraph" in (here / "my-agent" / "runtime" / "adapter.py").read_text()


def test_options_choose_framework_server_and_model(here: Path, outlast: Callable[..., Any]) -> None:
    outlast("init", "desk", "--framework", "openai", "--server", "custom", "--model", "gpt-x", "--no-install")
    assert 'MODEL = "gpt-x"' in (here / "desk" / "agent" / "model.py").read_text()
    assert 'server = "custom"' in (here / "desk" / "agent.toml").read_text()
    assert "FastAPI(" in (here / "desk" / "runtime" / "main.py").read_text()


AGENT = (
    "from outlast import Agent\nfrom outlast.testing.scripted import ScriptedModel\n{} = Agent(ScriptedModel('Hi.'))\n"
)


@pytest.mark.parametrize(("server", "name"), [("outlast", "clerk"), ("custom", "agent")])
def test_an_agent_that_is_there_becomes_a_service_and_none_of_its_files_changes(
    here: Path, outlast: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, server: str, name: str
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    package = f"shop_{uuid.uuid4().hex}"
    (here / package).mkdir()
    (here / package / "desk.py").write_text(AGENT.format(name))
    (here / "tests").mkdir()
    (here / "tests" / "test_mine.py").write_text("def test_mine() -> None: ...\n")
    before = {path: path.read_bytes() for path in here.rglob("*.py")}
    outlast("init", "--existing", f"{package}.desk:{name}", "--server", server)
    assert {path.relative_to(here).as_posix() for path in here.rglob("*") if path.is_file() and path not in before} == {
        "agent.toml", "runtime/__init__.py", "runtime/main.py", "tests/test_runtime.py",
        *(path.relative_to(here).as_posix() for path in here.rglob("*.pyc")),
    }  # fmt: skip
    assert {path: path.read_bytes() for path in before} == before
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q"], capture_output=True, text=True, timeout=120, check=False
    )
    assert "2 passed" in done.stdout, done.stdout


def test_what_cannot_be_brought_in_leaves_the_folder_as_it_is(
    here: Path, outlast: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    module = f"desk_{uuid.uuid4().hex}"
    (here / f"{module}.py").write_text(AGENT.format("agent") + "number = 5\n")
    (here / "agent.toml").touch()
    for arguments, says in (
        (["desk"], "is not like module:object"),
        ([f"{module}:number"], "is no agent"),
        (["not_there_at_all:agent"], "there is no module"),
        ([f"{module}:agent"], "there is agent.toml already"),
        ([f"{module}:agent", "--framework", "openai"], "give no NAME, --framework or --model"),
    ):
        done = outlast("init", "--existing", *arguments, code=2)
        assert says in done.err
    assert {path.name for path in here.iterdir()} - {"__pycache__"} == {f"{module}.py", "agent.toml"}
