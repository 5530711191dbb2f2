"""`outlast demo`: kill a server in the middle of a tool, start it again, and check what a client saw."""

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import httpx
import typer

from outlast.cli.errors import FAILED, fail

TARGET = "outlast_templates.demo.refunds:app"
NEEDED = ("langgraph", "outlast_langgraph", "outlast_templates")
QUESTION = "Please pay order 1042 back."
READY = re.compile(r"Outlast is ready on (http://\S+)")
COMMAND = "from outlast.cli import main; main()"
HANG_SECONDS = 40.0


@dataclass(slots=True)
class Seen:
    """What the client saw, over both connections."""

    events: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    end: dict[str, Any] | None = None

    @property
    def position(self) -> int:
        return self.events[-1][0] if self.events else 0


class DemoFailed(Exception):
    """Something was not as promised."""


def demo() -> None:
    """Show a run that survives its server, in well under a minute."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        fail(f"the demo needs {', '.join(missing)}: pip install 'outlast[langgraph]'", FAILED)
    with tempfile.TemporaryDirectory(prefix="outlast-demo-") as folder:
        try:
            _play(Path(folder))
        except (DemoFailed, httpx.HTTPError, OSError) as error:
            typer.echo((Path(folder) / "log").read_text("utf-8", "replace"), err=True)
            fail(f"the demo failed: {error}", FAILED)


def _play(folder: Path) -> None:
    ledger, seen = folder / "ledger.txt", Seen()
    id = str(uuid.uuid4())
    typer.echo("A LangGraph agent with two tools is asked to pay an order back. Its server will not live long.\n")
    with _Server(folder) as server:
        request = {"id": id, "session_id": "demo", "input": QUESTION, "stream": True}
        typer.echo(f'  client  POST /api/invocations  "{QUESTION}"')
        show = _Screen()
        for position, event in _read(seen, "POST", f"{server.url}/api/invocations", json=request):
            show.take(position, event)
            if event.get("type") == "agent.tool.started" and event.get("name") == "refund":
                break
        _wait_for(ledger, "refund 1042")
        server.kill()
    first = seen.position
    typer.echo(f"\n  SIGKILL while the tool `refund` is running; the client has seen positions 1 to {first}.")
    with _Server(folder) as server:
        typer.echo(f"  The server is up again.\n\n  client  GET …/events?after={first}")
        show = _Screen()
        for position, event in _read(seen, "GET", f"{server.url}/api/invocations/{id}/events?after={first}"):
            show.take(position, event)
    _report(seen, ledger)


class _Server:
    """`outlast serve` in a child process; killed at the end of the block."""

    def __init__(self, folder: Path) -> None:
        self._log = folder / "log"
        self._command = [
            sys.executable, "-c", COMMAND, "serve", TARGET, "--port", "0",
            "--store", f"sqlite:///{folder / 'state.db'}",
        ]  # fmt: skip
        self._environment = {**os.environ, "REFUNDS_LEDGER": str(folder / "ledger.txt")}
        self.url = ""

    def __enter__(self) -> Self:
        written = self._log.stat().st_size if self._log.exists() else 0
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, env=self._environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        give_up = time.monotonic() + HANG_SECONDS
        while (ready := READY.search(self._log.read_text("utf-8", "replace")[written:])) is None:
            if self._process.poll() is not None or time.monotonic() > give_up:
                self.kill()
                raise DemoFailed("the server did not start")
            time.sleep(0.02)
        self.url = ready[1]
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
        self._process.wait()


def _read(seen: Seen, method: str, url: str, **options: Any) -> Iterator[tuple[int, dict[str, Any]]]:
    """Give the events of a stream as they come; the record at its end goes to `seen`."""
    with httpx.stream(method, url, timeout=HANG_SECONDS, **options) as response:
        if response.status_code != httpx.codes.OK:
            response.read()
            raise DemoFailed(f"{method} {url} answered {response.status_code}: {response.text}")
        frame: dict[str, str] = {}
        for line in response.iter_lines():
            if line:
                name, _, value = line.partition(":")
                frame[name] = value.removeprefix(" ")
                continue
            if frame.get("event") == "end":
                seen.end = json.loads(frame["data"])
                return
            if "id" in frame and "data" in frame:
                found = (int(frame["id"]), json.loads(frame["data"]))
                seen.events.append(found)
                yield found
            frame = {}


def _wait_for(ledger: Path, line: str) -> None:
    """The tool is in its body once its line is there."""
    give_up = time.monotonic() + HANG_SECONDS
    while not ledger.exists() or line not in ledger.read_text().splitlines():
        if time.monotonic() > give_up:
            raise DemoFailed("the tool never began")
        time.sleep(0.01)


class _Screen:
    """Shows events in one line each, and text that comes in pieces in one line."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._texts: set[str] = set()

    def take(self, position: int, event: dict[str, Any]) -> None:
        match event.get("type"):
            case "agent.part.started" if event["kind"] == "text":
                self._texts.add(event["part_id"])
            case "agent.part.delta" if event["part_id"] in self._texts:
                self._text.append(event["delta"])
            case "agent.part.finished" if self._text:
                self._say(position, "text", "".join(self._text))
                self._text.clear()
            case "agent.tool.started":
                self._say(position, "tool", f"{event['name']} starts")
            case "agent.tool.finished":
                self._say(position, "tool", f"{event['name']}: {event['outcome']} ({event['origin']})")
            case "agent.resume":
                self._say(position, "recovery", event["kind"])

    def _say(self, position: int, what: str, text: str) -> None:
        typer.echo(f"  {position:>4}  {what:<9} {text}")


def _report(seen: Seen, ledger: Path) -> None:
    positions = [position for position, _ in seen.events]
    end = seen.end or {}
    executions = Counter(ledger.read_text().splitlines())
    _check(bool(positions) and positions == list(range(1, len(positions) + 1)), f"positions {positions}")
    _check(end.get("status") == "completed", f"the run ended {end.get('status')}: {end.get('error')}")
    _check(end.get("attempt") == 2, f"attempt {end.get('attempt')}")
    _check(set(executions.values()) == {1}, f"executions {dict(executions)}")
    _check("refund 1042" in executions, "no refund was made")
    typer.echo("\nWhat happened")
    typer.echo(f"  the client saw   {len(positions)} events, positions 1 to {positions[-1]}: no gap, no repeat")
    typer.echo(f"  attempts         {end['attempt']}")
    for line, count in executions.items():
        typer.echo(f"  tool executions  {line}: {count}")
    typer.echo(f"  final answer     {end['output']['text']}")


def _check(holds: bool, what: str) -> None:
    if not holds:
        raise DemoFailed(f"not as promised: {what}")
