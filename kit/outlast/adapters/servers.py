"""Servers of tools, as `agent.toml` declares them."""

import re
import shlex
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def _words(value: object) -> object:
    return shlex.split(value) if isinstance(value, str) else value


def _variable(value: object) -> object:
    if not isinstance(value, str) or not _VARIABLE.fullmatch(value):
        # Without showing it: it may be the secret itself.
        raise ValueError("it is the name of an environment variable that has the secret, never the secret itself")
    return value


def _name(value: object) -> object:
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z0-9_-]{1,32}", value):
        raise ValueError("it has 1 to 32 letters, digits, - and _: the names of the tools begin with it")
    return value


class ToolServer(BaseModel):
    """One `[[tools]]`: a server, how it is reached, and whose credential its tools are called with."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[
        str, BeforeValidator(_name), Field(description="Name of the server; the names of its tools begin with it.")
    ]
    type: Annotated[Literal["mcp"], Field(description="What the server speaks.")] = "mcp"
    url: Annotated[str | None, Field(description="Where it listens (streamable HTTP).")] = None
    command: Annotated[
        tuple[str, ...] | None,
        BeforeValidator(_words),
        Field(description="Or the command that starts it (stdio), as a list or one text."),
    ] = None
    auth: Annotated[
        Literal["user", "app"],
        Field(
            description="With whose credential tools are called: the `user`'s who sent the request, or the `app`'s own."
        ),
    ] = "user"
    credential: Annotated[
        str | None,
        BeforeValidator(_variable),
        Field(
            description="The environment variable that has the service's own credential; a command gets its credential in it."
        ),
    ] = None
    needs_approval: Annotated[
        bool | tuple[str, ...], Field(description="Whether a person has to agree to calls, or the tools of which.")
    ] = False
    rerun_safe: Annotated[
        bool | tuple[str, ...],
        Field(description="Whether tools may run again when nobody knows whether they ran, or which."),
    ] = False

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.url is None) is (not self.command):
            raise ValueError("it has a url, or a command")
        if self.url is not None:
            parts = urlsplit(self.url)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise ValueError("url is not like https://host/path")
            if parts.username is not None or parts.password is not None:
                raise ValueError(
                    "url has a password in it; put it into an environment variable and name that: credential"
                )
        return self

    @property
    def place(self) -> str:
        """Where it is, for people."""
        return self.url or shlex.join(self.command or ())
