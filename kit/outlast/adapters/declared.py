"""Servers of tools as `agent.toml` declares them, and the tools that they have."""

import hashlib
import re
import shlex
from collections.abc import Collection, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Protocol, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from outlast.core.errors import OutlastError

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

    def asks(self, tool: str) -> bool:
        """Say whether a person has to agree to calls of a tool, by the server's name for it."""
        return _covers(self.needs_approval, tool)

    def may_rerun(self, tool: str) -> bool:
        """Say whether a tool may run again when nobody knows whether it ran."""
        return _covers(self.rerun_safe, tool)

    def unknown(self, tools: Collection[str]) -> str | None:
        """Return a tool that is named here and that the server does not have."""
        named = [
            one for given in (self.needs_approval, self.rerun_safe) if not isinstance(given, bool) for one in given
        ]
        return next((one for one in named if one not in tools), None)

    def name_of(self, tool: str) -> str:
        """Return what a model calls a tool: providers take 64 letters, digits, - and _."""
        name = re.sub(r"[^A-Za-z0-9_-]", "_", f"{self.name}_{tool}")
        return name if len(name) <= 64 else f"{name[:55]}_{hashlib.sha256(tool.encode()).hexdigest()[:8]}"


def _covers(given: bool | tuple[str, ...], tool: str) -> bool:
    return given if isinstance(given, bool) else tool in given


class ListedTool(NamedTuple):
    """A tool as its server describes it."""

    name: str
    description: str
    schema: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server said to a call."""

    text: str
    failed: bool


class Lost(OutlastError):
    """The connection ended during a call, and nobody knows what became of it."""

    code = "connection_lost"


class Refused(OutlastError):
    """The server does not take this credential, or wants one."""

    code = "credential_refused"


class Connection(Protocol):
    """An open connection to a server of tools."""

    async def tools(self) -> list[ListedTool]:
        """List what the server has."""
        ...

    async def call(self, name: str, arguments: Mapping[str, Any], meta: Mapping[str, Any]) -> Answer:
        """Call a tool, once. Raise Lost or Refused; what else goes wrong is the answer."""
        ...

    async def look(self) -> None:
        """Ask for nothing; raise when there is no answer."""
        ...


class Speaks(Protocol):
    """A module that speaks what a server does; it has the name of the `type`."""

    def connected(
        self, server: ToolServer, credential: str | None, folder: Path
    ) -> AbstractAsyncContextManager[Connection]:
        """Connect with a credential, in the task that also leaves. Raise Refused, or whatever a transport raises."""
        ...
