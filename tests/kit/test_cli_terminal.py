"""The commands as people see them: on a terminal, where they may be asked, and through completion."""

import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from outlast import Agent, DurableAgentServer, Tool
from outlast.testing.scripted import Say, ScriptedCall, ScriptedModel
from outlast.testing.serving import ServerThread

COMMAND = [sys.executable, "-c", "from outlast.cli import main; main(prog_name='outlast')"]
STYLE = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


def pay(amount: int) -> str:
    """Pay an amount."""
    return f"paid {amount}"


@pytest.fixture
def url() -> Iterator[str]:
    model = ScriptedModel(Say("I pay it.", [ScriptedCall("pay", {"amount": 5})]), "It is paid.")
    app = DurableAgentServer(Agent(model, tools=[Tool(pay, needs_approval=True)]), store="memory")
    with ServerThread(app) as server:
        yield server.url


class Terminal:
    """A command on a terminal of its own; used by `with`."""

    def __init__(self, *arguments: str) -> None:
        self._master, slave = pty.openpty()
        environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100"}
        self._process = subprocess.Popen(
            [*COMMAND, *arguments], stdin=slave, stdout=slave, stderr=slave, env=environment
        )
        os.close(slave)
        self.seen = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._master)

    def until(self, text: str | None) -> str:
        """Read until a text is seen, or to the end for None; return all that was seen, without its colours."""
        give_up = time.monotonic() + 60
        while text is None or text not in STYLE.sub("", self.seen):
            assert time.monotonic() < give_up, self.seen
            if select.select([self._master], [], [], 1)[0]:
                try:
                    self.seen += os.read(self._master, 65_536).decode()
                except OSError:  # the command ended
                    assert text is None, self.seen
                    break
        return STYLE.sub("", self.seen).replace("\r\n", "\n")

    def type(self, line: str) -> None:
        os.write(self._master, f"{line}\n".encode())

    def wait(self) -> int:
        self.until(None)
        return self._process.wait(60)


def test_a_person_is_shown_a_run_and_asked_for_the_decision(outlast: Callable[..., Any], url: str) -> None:
    with Terminal("invoke", "Pay", "--session", "s", "--url", url) as terminal:
        assert terminal.wait() == 3
        seen = terminal.until(None)
        assert "I pay it.\n? pay waits for a person\n" in seen
        assert "\x1b[33m? pay" in terminal.seen  # in colour
    (waiting,) = outlast("approvals", "list", "--json", "--url", url).objects
    with Terminal("approvals", "decide", waiting["id"], "--url", url) as terminal:
        terminal.until("Decision (approve, reject)")
        assert '{"amount":5}' in terminal.seen
        terminal.type("perhaps")
        terminal.type("approve")
        assert terminal.wait() == 0
        assert "← pay ok: paid 5\nIt is paid.\n" in terminal.until(None)


def test_a_person_is_asked_what_a_project_is_made_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with Terminal("init", "--no-install") as terminal:
        for question, answer in (
            ("Folder", "desk"),
            ("Framework", "basic"),
            ("it is one of", "native"),
            ("Server", ""),
        ):
            terminal.until(question)
            terminal.type(answer)
        assert terminal.wait() == 0
        assert "desk has the project desk." in terminal.until(None)
    assert "outlast.Agent" in (tmp_path / "desk" / "runtime" / "adapter.py").read_text()
    with Terminal("init", "other") as terminal:
        terminal.until("Framework")
        terminal.type("\x04")
        assert terminal.wait() == 130
    assert [path.name for path in tmp_path.iterdir()] == ["desk"]


def test_a_person_is_asked_before_something_is_deleted(outlast: Callable[..., Any], url: str) -> None:
    outlast("memory", "put", "a", "b", "--url", url)
    for answer, code in (("n", 1), ("y", 0)):
        with Terminal("memory", "delete", "a", "--url", url) as terminal:
            terminal.until("Delete the memory at 'a'?")
            terminal.type(answer)
            assert terminal.wait() == code
    assert outlast("memory", "list", "--json", "--url", url).objects == []


def test_a_table_keeps_every_letter_on_a_narrow_terminal(outlast: Callable[..., Any], url: str) -> None:
    outlast("memory", "put", "path/" + "x" * 100, "[bold]b[/bold]\x1b[2J", "--url", url)
    with Terminal("memory", "list", "--url", url) as terminal:
        assert terminal.wait() == 0
        seen = terminal.until(None)
    assert seen.count("x") >= 100
    assert "\x1b[2J" not in terminal.seen
    assert "[bold]" in seen.replace("\n", "").replace(" ", "")


def test_help_and_completion_import_no_command() -> None:
    program = (
        "import sys\nfrom outlast.cli import main\n"
        "try:\n    main(prog_name='outlast')\nfinally:\n"
        "    print(*sorted(set(sys.modules) & {'uvicorn', 'langgraph', 'agents', 'sqlalchemy', 'fastapi', 'httpx', 'outlast.cli.serve', "
        "'outlast.cli.sessions'}), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, "--help"], check=True, capture_output=True, text=True)
    assert done.stderr == "\n"
    for name in ("invoke", "sessions", "doctor"):
        assert name in done.stdout
    asked = {**os.environ, "_OUTLAST_COMPLETE": "complete_bash", "COMP_WORDS": "outlast s", "COMP_CWORD": "1"}
    done = subprocess.run([sys.executable, "-c", program], check=False, env=asked, capture_output=True, text=True)
    assert done.stdout.split() == ["serve", "sessions", "store"]
    assert done.stderr == "\n"


def test_completion_knows_commands_of_a_group_and_their_options() -> None:
    for words, found in (("outlast sessions re", ["resume-point", "resume"]), ("outlast doctor --js", ["--json"])):
        asked = {
            **os.environ, "_OUTLAST_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" ")),
        }  # fmt: skip
        done = subprocess.run(COMMAND, check=False, env=asked, capture_output=True, text=True)
        assert done.stdout.split() == found


def test_a_mistyped_command_is_told_what_is_near(outlast: Callable[..., Any], tmp_path: Path) -> None:
    done = outlast("session", "list", code=2)
    assert "sessions" in done.err
    assert "Traceback" not in done.err
