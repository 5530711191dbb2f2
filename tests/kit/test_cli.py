"""The command line, as scripts use it."""

import contextlib
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from outlast import cli
from outlast.cli.target import BadTarget, load
from outlast.core.errors import OutlastError
from outlast.testing._ports import free_port

APP = Path(__file__).resolve().parent / "server_app.py"
COMMAND = [sys.executable, "-c", "from outlast.cli import main; main()"]


def run(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(cli.main, arguments)
    return done.exit_code, done.output


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder, with no trace of it left in the interpreter."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


def module_name() -> str:
    return f"module_{uuid.uuid4().hex}"


def test_version() -> None:
    code, output = run("--version")
    assert code == 0
    assert re.fullmatch(r"outlast \d+\.\d+\.\d+\S*\n", output)


def test_the_module_is_the_command_too() -> None:
    command = [sys.executable, "-m", "outlast"]
    shown = subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=60, check=True)
    assert shown.stdout == run("--version")[1]
    wrong = subprocess.run([*command, "serve", "main"], capture_output=True, text=True, timeout=60, check=False)
    assert (wrong.returncode, wrong.stderr[:9]) == (2, "outlast: ")


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("main", "is no target; use module:object or path.py:object"),
        ("missing_module:app", "there is no module 'missing_module'"),
        ("missing.py:app", "there is no file"),
        (f"{APP}:missing", "has no 'missing'; it has app"),
        (f"{APP}:asyncio", "is no agent"),
    ],
)
def test_a_bad_target_is_one_clear_line(here: Path, target: str, says: str) -> None:
    code, output = run("serve", target)
    assert (code, output.count("\n")) == (2, 1)
    assert output.startswith("outlast: ")
    assert says in output


@pytest.mark.parametrize(
    ("app", "kind"),
    [("FastAPI()", "fastapi.applications.FastAPI"), ("plain", "builtins.function"), ("CORSMiddleware(plain)", "CORS")],
)
def test_a_plain_app_is_no_target_and_the_line_says_how_it_is_run(here: Path, app: str, kind: str) -> None:
    name = module_name()
    (here / f"{name}.py").write_text(
        "from fastapi import FastAPI\nfrom starlette.middleware.cors import CORSMiddleware\n"
        f"async def plain(scope, receive, send): ...\napp = {app}\n"
    )
    (here / "sub").mkdir()
    (here / "sub" / f"{name}2.py").write_text((here / f"{name}.py").read_text())
    for target, command in (
        (f"{name}:app", f"`uvicorn {name}:app`"),
        (f"{name}.py:app", f"`uvicorn {name}:app`"),
        (f"sub/{name}2.py:app", f"`uvicorn --app-dir sub {name}2:app`"),
    ):
        code, output = run("serve", target)
        assert (code, output.count("\n")) == (2, 1)
        for text in ("no DurableAgentServer", kind, "an agent is an adapter, AgentHandlers, or", "langgraph", command):
            assert text in output


def test_what_is_no_app_either_is_not_sent_to_uvicorn(here: Path) -> None:
    name = module_name()
    (here / f"{name}.py").write_text("from fastapi import FastAPI as factory\nnumber = 5\nasync def handler(c): ...\n")
    for target in ("factory", "number", "handler"):
        code, output = run("serve", f"{name}:{target}")
        assert code == 2 and "uvicorn" not in output and "is no agent" in output


def test_an_error_in_the_target_names_its_line(here: Path) -> None:
    name = module_name()
    (here / f"{name}.py").write_text("x = 1\ny = x / 0\n")
    code, output = run("serve", f"{name}:app")
    assert (code, output.count("\n")) == (2, 1)
    assert f"ZeroDivisionError: division by zero ({name}.py:2)" in output
    (here / "broken.py").write_text("def\n")
    assert "SyntaxError" in run("serve", "broken.py:app")[1]
    (here / "needs.py").write_text("import not_installed_at_all\n")
    assert "No module named 'not_installed_at_all'" in run("serve", "needs:app")[1]


def test_an_agent_is_served_as_it_is(here: Path) -> None:
    """Handlers, and a file beside the target, are enough."""
    name = module_name()
    (here / f"{name}.py").write_text("from outlast import AgentHandlers\nagent = AgentHandlers(lambda context: 1)\n")
    (here / "target.py").write_text(f"from {name} import agent\n")
    assert list(load("target.py:agent").agents.by_name()) == ["agent"]
    assert list(load(f"{name}:agent").agents.by_name()) == ["agent"]
    (here / "empty.py").write_text("from outlast import DurableAgentServer\napp = DurableAgentServer()\n")
    with pytest.raises(OutlastError, match="no invoke handler"):
        load("empty.py:app")
    with pytest.raises(BadTarget):
        load(":app")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_an_open_address_needs_authentication(here: Path, host: str) -> None:
    code, output = run("serve", f"{APP}:app", "--host", host)
    assert (code, output.count("\n")) == (2, 1)
    assert "--insecure" in output


def test_a_taken_port_is_found_before_anything_starts(here: Path, free: int) -> None:
    with socket.create_server(("127.0.0.1", free)):
        code, output = run("serve", f"{APP}:app", "--port", str(free))
    assert (code, output.count("\n")) == (1, 1)
    assert f"cannot listen on 127.0.0.1:{free}" in output
    assert not (here / ".outlast").exists()


@pytest.fixture
def free() -> int:
    return free_port()


@contextlib.contextmanager
def started(*arguments: str, cwd: Path) -> Iterator[tuple["subprocess.Popen[str]", Callable[[str], str]]]:
    """Run a command; the second value waits for a line of its stderr."""
    process = subprocess.Popen([*COMMAND, *arguments], cwd=cwd, stderr=subprocess.PIPE, text=True)
    lines: list[str] = []
    assert process.stderr is not None
    stderr = process.stderr

    def collect() -> None:
        lines.extend(iter(stderr.readline, ""))

    reader = threading.Thread(target=collect, daemon=True)
    reader.start()

    def line_with(text: str) -> str:
        give_up = time.monotonic() + 60
        while not (found := [line for line in lines if text in line]):
            assert time.monotonic() < give_up and process.poll() is None, lines
            time.sleep(0.02)
        return found[0]

    try:
        yield process, line_with
    finally:
        process.kill()
        process.wait()
        reader.join()
        stderr.close()


def post(url: str, input: Any) -> Any:
    body = {"id": str(uuid.uuid4()), "input": input}
    return httpx.post(f"{url}/api/invocations", json=body, timeout=60).json()


def test_serve_says_when_it_is_ready_and_ends_cleanly(tmp_path: Path) -> None:
    with started("serve", f"{APP}:app", "--port", "0", cwd=tmp_path) as (process, line_with):
        ready = line_with("Outlast is ready on ")
        url = ready.removeprefix("Outlast is ready on ").strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+", url)
        assert post(url, {"n": 1})["status"] == "completed"
        assert (tmp_path / ".outlast" / "state.db").exists()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def test_a_store_that_cannot_be_used_is_one_line(tmp_path: Path) -> None:
    command = [*COMMAND, "serve", f"{APP}:app", "--port", "0", "--store", "mysql://x/y"]
    done = subprocess.run(command, check=False, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert done.stderr.count("\n") == 1
    assert "no store for 'mysql' URLs" in done.stderr


@pytest.mark.parametrize(
    "store_url",
    ["sqlite", pytest.param("postgresql", marks=[pytest.mark.postgres, pytest.mark.slow])],
    indirect=True,
)
def test_several_workers_share_the_port_and_all_drain(tmp_path: Path, store_url: str) -> None:
    options = ("--port", "0", "--workers", "2", "--store", store_url)
    with started("serve", f"{APP}:app", *options, cwd=tmp_path) as (process, line_with):
        url = line_with("Outlast is ready on ").removeprefix("Outlast is ready on ").strip()
        assert {post(url, {"n": n})["status"] for n in range(20)} == {"completed"}
        children = children_of(process.pid)
        assert len(children) >= 2
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        until_ended(children)


def test_workers_stop_when_what_started_them_is_killed(tmp_path: Path) -> None:
    options = ("--port", "0", "--workers", "2", "--store", f"sqlite:///{tmp_path / 'state.db'}")
    with started("serve", f"{APP}:app", *options, cwd=tmp_path) as (process, line_with):
        line_with("Outlast is ready on ")
        children = children_of(process.pid)
        process.kill()
        until_ended(children)


def children_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def until_ended(children: list[str]) -> None:
    give_up = time.monotonic() + 20
    while any(runs(child) for child in children):
        assert time.monotonic() < give_up
        time.sleep(0.02)


def runs(pid: str) -> bool:
    """Whether a process exists and is not only waiting to be buried."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.slow
def test_workers_that_cannot_start_end_the_command(tmp_path: Path) -> None:
    command = [*COMMAND, "serve", f"{APP}:app", "--port", "0", "--store", "mysql://x/y", "--workers", "2"]
    done = subprocess.run(command, check=False, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "no store for 'mysql' URLs" in done.stderr
