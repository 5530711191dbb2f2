"""What commands print: for people, by rich on a terminal and plain otherwise; or JSON, one object a line."""

import re
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from outlast.core import jsontext

_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""What could make a terminal do, or show, something else than the text says."""

Show = Callable[[Mapping[str, Any]], object]


def console() -> Console:
    return Console(highlight=False, markup=False, emoji=False, soft_wrap=True)


def clean(value: object) -> str:
    """Return a text of others as it may be shown on a terminal."""
    return _UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", "" if value is None else str(value))


def one_line(value: object) -> str:
    return clean(value).replace("\t", " ").replace("\n", "\\n")


def write_json(value: object) -> None:
    """Print a value on one line, in ASCII."""
    typer.echo(jsontext.encode(value))


def say(text: object) -> None:
    """Print a text for people."""
    typer.echo(clean(text))


def note(text: object) -> None:
    """Tell people something that is not what was asked for."""
    typer.echo(clean(text), err=True)


def fields(value: Mapping[str, object]) -> None:
    """Print names with texts; what is None is left out."""
    shown = {name: text for name, text in value.items() if text is not None}
    width = max(map(len, shown), default=0)
    screen = console()
    for name, text in shown.items():
        screen.print(Text(name.ljust(width + 2), style="bold"), Text(clean(text)), sep="")


def table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table: on a terminal with as many lines as a cell needs, otherwise with a tab between two cells."""
    cells = [[one_line(cell) for cell in row] for row in rows]
    if not sys.stdout.isatty():
        for row in [list(headings), *cells]:
            typer.echo("\t".join(row))
        return
    shown = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        shown.add_column(heading, overflow="fold")
    for row in cells:
        shown.add_row(*map(Text, row))
    Console(highlight=False, markup=False, emoji=False).print(shown)


async def listed(
    things: AsyncIterator[Mapping[str, Any]], columns: Mapping[str, Show], *, json: bool, limit: int = 0
) -> None:
    """Print up to `limit` things, 0 for all: as they come, or as a table with a column for each way to show one."""
    found: list[list[object]] = []
    count = 0
    async for thing in things:
        if limit and count == limit:
            note(f"There are more than {limit}; --limit 0 shows all.")
            break
        count += 1
        if json:
            write_json(thing)
        else:
            found.append([show(thing) for show in columns.values()])
    if not json:
        table(list(columns), found)


@contextmanager
def progress(what: str, quiet: bool) -> Iterator[Callable[[int, int], None]]:
    """Give what is told how much is done; shown on a terminal only, apart from what is printed."""
    screen = Console(stderr=True)
    with Progress(console=screen, transient=True, disable=quiet or not screen.is_terminal) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def key(name: str) -> Show:
    """Return what shows a field."""
    return lambda thing: thing[name]


def moment(time: str | None) -> str | None:
    """Return a time without its milliseconds."""
    return None if time is None else f"{time[:19]}Z"


def at(name: str) -> Show:
    """Return what shows a field that is a time."""
    return lambda thing: moment(thing[name])


def text_in(said: object) -> str | None:
    """Return the text of what an agent returned or asked, None where it has none."""
    return said.get("text") if isinstance(said, Mapping) else None


def brief(value: object, most: int = 120) -> str:
    """Return a value as JSON, or as it is for a text, cut off when it is long."""
    text = one_line(value if isinstance(value, str) else jsontext.encode(value))
    return text if len(text) <= most else f"{text[: most - 1]}…"


def size(count: float) -> str:
    """Return a number of bytes for people."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def duration(seconds: float) -> str:
    """Return a time span for people: its largest two units."""
    units = (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1))
    left, parts = round(seconds), list[str]()
    for unit, long in units:
        if left >= long or (unit == "s" and not parts):
            parts.append(f"{left // long} {unit}")
            left %= long
    return " ".join(parts[:2])
