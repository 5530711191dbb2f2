"""The commands in the documentation run, and its list of commands is that of the code."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outlast import Agent, DurableAgentServer, Tool
from outlast.cli.reference import reference
from outlast.server import Config
from outlast.testing.scripted import Say, ScriptedCall, ScriptedModel
from outlast.testing.serving import ServerThread

DOCS = Path(__file__).parent.parent / "docs"
BLOCK = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
BLOCKS = BLOCK.findall((DOCS / "cli.md").read_text()) if DOCS.is_dir() else []
"""Empty beside an installed wheel, which has no documentation."""


def pay(amount: int) -> str:
    """Pay an amount."""
    return f"paid {amount}"


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_the_commands_on_the_page_run(
    block: str, outlast: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    asks = "approvals" in block
    calls = [ScriptedCall("pay", {"amount": 5})] if asks else []
    model = ScriptedModel(Say("It is on its way.", calls), "It is paid.")
    app = DurableAgentServer(Agent(model, tools=[Tool(pay, needs_approval=True)]), store="memory")
    with ServerThread(app) as server:
        monkeypatch.setenv("OUTLAST_URL", server.url)
        outlast("invoke", "Hi", "--session", "customer-42", code=3 if asks else 0)
        for line in block.splitlines():
            program, *arguments = shlex.split(line)
            assert program == "outlast"
            if "ID" in arguments:
                arguments[arguments.index("ID")] = outlast("approvals", "list", "--json").object["id"]
            assert outlast(*arguments).out or "--output" in arguments, line


@pytest.mark.skipif(not DOCS.is_dir(), reason="beside an installed wheel there is no documentation")
def test_the_servers_of_tools_on_the_page_are_declared(
    outlast: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (DOCS / "tools.md").read_text()
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OUTLAST_CONFIG", raising=False)
    Path("agent.toml").touch()
    for line in BLOCK.findall(page)[0].splitlines():
        if not line.endswith("check"):  # there are no such servers
            assert outlast(*shlex.split(line)[1:]).out, line
    assert [one.name for one in Config.read(tmp_path, {}).file.tools] == ["shop", "bank"]
    (declaration,) = re.findall(r"^```toml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    Path("agent.toml").write_text(declaration)
    assert Config.read(tmp_path, {}).file.tools[0].asks("pay")


@pytest.mark.skipif(not DOCS.is_dir(), reason="beside an installed wheel there is no documentation")
def test_the_list_of_commands_is_that_of_the_code() -> None:
    page = (DOCS / "cli-reference.md").read_text()
    assert page == reference(), "python -m outlast.cli.reference > docs/cli-reference.md"
