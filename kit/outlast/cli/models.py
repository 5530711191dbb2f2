"""`outlast models`: what can be named as the model of an agent."""

import os
from datetime import UTC, datetime
from typing import Any

import httpx
import typer

from outlast.cli import agent_toml
from outlast.cli.errors import FAILED, USAGE, fail
from outlast.cli.options import Json
from outlast.cli.output import table, write_json
from outlast.core.errors import OutlastError
from outlast.store.url import masked

BASE_URL, KEY = "OPENAI_BASE_URL", "OPENAI_API_KEY"
OPENAI = "https://api.openai.com/v1"
PATIENCE_SECONDS = 20.0

main = typer.Typer(no_args_is_help=True)


@main.callback()
def models() -> None:
    """Look at the models of a provider."""


@main.command("list")
def list_(json: Json = False) -> None:
    """List the models of the provider that OPENAI_BASE_URL and OPENAI_API_KEY say, or `.env` beside agent.toml.

    Any address that speaks as OpenAI's does; without one, OpenAI's. Exit code 1: it does not answer, or refuses.
    """
    try:
        agent_toml.set_environment()
    except OutlastError as error:
        fail(str(error), USAGE)
    found = sorted(_models(os.environ.get(BASE_URL) or OPENAI, os.environ.get(KEY)), key=lambda one: one["id"])
    if json:
        for one in found:
            write_json(one)
    else:
        table(("id", "owner", "created"), [(one["id"], one.get("owned_by"), _day(one.get("created"))) for one in found])


def _models(base_url: str, key: str | None) -> list[dict[str, Any]]:
    url = f"{base_url.rstrip('/')}/models"
    headers = {"authorization": f"Bearer {key}"} if key else {}
    try:
        answer = httpx.get(url, headers=headers, timeout=PATIENCE_SECONDS, follow_redirects=True)
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        # Not the text of the error: that of a key that is no header shows the key.
        fail(f"{masked(url)} cannot be reached: {type(error).__name__}; see {BASE_URL}", FAILED)
    if answer.status_code in (401, 403):
        fail(f"{masked(url)} refuses {f'the key in {KEY}' if key else f'a request without a key; set {KEY}'}", FAILED)
    try:
        listed = answer.raise_for_status().json()["data"]
        return [one for one in listed if isinstance(one["id"], str)]
    except (httpx.HTTPStatusError, ValueError, KeyError, TypeError):
        fail(f"{masked(url)} does not list models as OpenAI does (status {answer.status_code}); see {BASE_URL}", FAILED)


def _day(created: object) -> str | None:
    return datetime.fromtimestamp(created, UTC).date().isoformat() if isinstance(created, int) else None
