"""A run as it is seen while it goes on: text as it comes, and a line for each tool."""

from collections.abc import Mapping
from typing import Any

from rich.text import Text

from outlast.cli.output import brief, clean, console


def event_line(event: Any) -> str:
    """Return an event on one line: its type, and what else is in it."""
    if not isinstance(event, Mapping) or not isinstance(event.get("type"), str):
        return brief(event)
    rest = {name: value for name, value in event.items() if name != "type"}
    return f"{clean(event['type'])}  {brief(rest)}" if rest else clean(event["type"])


class Live:
    """Shows the events of a run."""

    def __init__(self) -> None:
        self._screen = console()
        self._kinds: dict[str, str] = {}
        self._in_line = False
        self.text = False
        """Whether an answer was shown."""

    def take(self, event: Any) -> None:
        """Show the next event."""
        kind = event.get("type") if isinstance(event, Mapping) else None
        match kind:
            case "agent.part.started":
                self._kinds[event["part_id"]] = event["kind"]
            case "agent.part.delta":
                self._write(event["delta"], self._kinds.get(event["part_id"], ""))
            case "agent.message.finished":
                self.end_line()
            case "agent.tool.started":
                self._line(f"→ {event['name']} {brief(event.get('input'))}", "cyan")
            case "agent.tool.finished":
                self._line(f"← {event['name']} {event['outcome']}{_result(event)}", "cyan")
            case "agent.approval.requested":
                about = event.get("name") or "a question"
                self._line(f"? {about} waits for a person", "yellow")
            case "agent.resume":
                self._line(f"… goes on: {event['kind']}", "yellow")
            case "agent.attempt.superseded":
                self._kinds.clear()
                self._line("… the worker died; what it had not finished is withdrawn", "yellow")
            case str() if kind.startswith("agent."):
                pass
            case _:
                self._line(event_line(event), "dim")

    def end_line(self) -> None:
        if self._in_line:
            self._screen.print()
        self._in_line = False

    def _write(self, text: str, kind: str) -> None:
        if kind not in ("text", "reasoning"):
            return
        self.text = self.text or kind == "text"
        self._screen.print(Text(clean(text), style="dim" if kind == "reasoning" else ""), end="")
        self._in_line = not text.endswith("\n")

    def _line(self, text: str, style: str) -> None:
        self.end_line()
        self._screen.print(Text(clean(text), style=style))


def _result(event: Mapping[str, Any]) -> str:
    found = event.get("error", event.get("output"))
    return "" if found is None else f": {brief(found)}"
