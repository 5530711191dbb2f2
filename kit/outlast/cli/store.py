"""`outlast store`: look after a database."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from outlast.cli.access import opened_store, store_url
from outlast.cli.errors import USAGE, command, fail
from outlast.cli.options import Json, StoreUrl, Yes, confirm
from outlast.cli.output import duration, fields, progress, say, size, write_json
from outlast.core.records import Status
from outlast.core.times import seconds, shown
from outlast.engine.settings import EngineSettings
from outlast.store import Store
from outlast.store.backup import backup as copy
from outlast.store.url import parse

main = typer.Typer(no_args_is_help=True, add_completion=False)

BATCH = 200


@main.callback()
def group() -> None:
    """Look after a database."""


@main.command()
@command
async def migrate(store: StoreUrl = None, json: Json = False) -> None:
    """Make the tables, or bring them up to date. Servers do it too when they start."""
    url = store_url(store)
    if url == "memory":
        fail("the store `memory` ends with its process; name a file or a database", USAGE)
    file = parse(url).path
    before = await Store.revision(url) if file is None or file.exists() else None
    opened = await Store.open(url)
    await opened.close()
    after = await Store.revision(url)
    shown_ = str(opened.url)
    if json:
        write_json({"store": shown_, "before": before, "after": after})
    elif before == after:
        say(f"{shown_} is up to date (schema {after})")
    else:
        say(f"{shown_} has the schema {after} now" + (f", it had {before}" if before else ""))


@main.command()
@command
async def status(store: StoreUrl = None, json: Json = False) -> None:
    """Show what is in a store. On a very large one, counting takes a while."""
    async with opened_store(store) as opened:
        seen, url = await opened.read.overview(), str(opened.url)
    unfinished = seen.oldest_unfinished
    if json:
        write_json(
            {
                "store": url, "database": seen.version, "bytes": seen.bytes, "schema": await Store.revision(store_url(store)),
                "invocations": seen.invocations, "sessions": seen.sessions, "memories": seen.memories,
                "open_approvals": seen.open_approvals, "workers": seen.workers,
                "oldest_unfinished": None if unfinished is None else shown(unfinished), "now": shown(seen.now),
            }
        )  # fmt: skip
        return
    runs = ", ".join(f"{count} {status}" for status, count in seen.invocations.items() if count)
    waits = None if unfinished is None else f"accepted {duration((seen.now - unfinished) / 1000)} ago"
    fields(
        {
            "store": url, "database": seen.version, "size": size(seen.bytes),
            "schema": f"{await Store.revision(store_url(store))}, up to date", "runs": runs or "none",
            "oldest unfinished": waits, "sessions": seen.sessions, "memories": seen.memories,
            "open approvals": seen.open_approvals, "workers": seen.workers,
        }
    )  # fmt: skip


@main.command()
@command
async def prune(
    older_than: Annotated[str, typer.Option("--older-than", help="Age since they ended, such as 12h, 30d or 8w.")],
    status: Annotated[
        list[Status] | None, typer.Option(help="Those that ended so; may be given again. Default: however.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say how many there are, and delete nothing.")] = False,
    yes: Yes = False,
    store: StoreUrl = None,
    json: Json = False,
) -> None:
    """Delete final runs and their logs. Sessions and their items stay; servers delete by themselves what is 30 days old."""
    age_ms, ended = round(_seconds(older_than) * 1000), status or [one for one in Status if one.final]
    if running := [one for one in ended if not one.final]:
        fail(f"a run that is {running[0]} is not final, and stays", USAGE)
    keep_ms = round(EngineSettings().idempotency_retention * 1000)
    async with opened_store(store, writes=not dry_run) as opened:
        found = sum([await opened.read.old(status=one, age_ms=age_ms) for one in ended])
        removed = 0
        if found and not dry_run:
            confirm(f"Delete {found} runs and their logs?", yes)
            with progress("deleting", json) as advance:
                for one in ended:
                    while count := await opened.remove_old(status=one, age_ms=age_ms, keep_ms=keep_ms, limit=BATCH):
                        removed += count
                        advance(removed, max(found, removed))
    if json:
        write_json({"found": found, "deleted": removed})
    else:
        say(f"{found} runs would be deleted" if dry_run else f"{removed} runs are deleted")


@main.command()
@command
async def backup(
    file: Annotated[Path, typer.Argument(help="A new file to write to.")], store: StoreUrl = None, json: Json = False
) -> None:
    """Copy an SQLite store while it is used, and check the copy. PostgreSQL has pg_dump for this.

    The copy is a store: serve it by --store sqlite:///FILE, or put it where the old one was while nothing runs.
    """
    async with opened_store(store) as opened:
        with progress("copying", json) as advance:
            count = await asyncio.get_running_loop().run_in_executor(None, copy, opened.url, file, advance)
    write_json({"file": str(file), "bytes": count}) if json else say(f"{file} has the store, {size(count)}")


def _seconds(age: str) -> float:
    try:
        return seconds(age)
    except ValueError:
        fail(f"--older-than {age!r} is no age such as 12h, 30d or 8w", USAGE)
