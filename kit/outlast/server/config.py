"""`agent.toml`: what is served and how, read together with `.env` beside it and the environment."""

import difflib
import io
import os
import re
import tomllib
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from dotenv.parser import parse_stream
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from outlast.adapters.declared import ToolServer
from outlast.core import times
from outlast.core.errors import OutlastError
from outlast.core.records import Status
from outlast.engine import EngineSettings
from outlast.store.url import DEFAULT_URL, below

FILE, STORE, ENV_FILE = "agent.toml", "OUTLAST_STORE", ".env"
TOOLS = "tools"
_NOT_YET = ("auth", "session_store", "memory_store", "tracing", "store.direct_url")
"""What is planned: refused, as everything unknown is, but not as a slip of the pen."""
_DEFAULT = EngineSettings()


class BadConfig(OutlastError):
    """`agent.toml` cannot be used; the message is for people, on one line."""

    code = "bad_config"


def _number(value: object) -> object:
    if isinstance(value, bool):
        # pydantic would take true for 1; and it makes a refusal of a ValueError only.
        raise ValueError("it is a number")  # noqa: TRY004
    return value


def _span(value: object) -> object:
    if isinstance(value, str) and not re.fullmatch(r"\d+(\.\d+)?", value):
        return times.seconds(value)
    return _number(value)


def _words(value: object) -> object:
    return [one.strip() for one in value.split(",") if one.strip()] if isinstance(value, str) else value


Count = Annotated[int, BeforeValidator(_number)]
Seconds = Annotated[float, BeforeValidator(_span), Field(ge=0, allow_inf_nan=False)]
"""A number of seconds, or a text such as 90s, 12h or 30d."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class AgentSection(_Section):
    """`[agent]`: what is served, and the limits of its runs."""

    name: Annotated[str | None, Field(description="Name of the agent in the store. Default: the adapter's own.")] = None
    target: Annotated[
        str | None, Field(description="What `outlast serve` serves: `module:object` or `path.py:object`.")
    ] = None
    server: Annotated[
        Literal["outlast", "custom"],
        Field(description="Whose app it is: `outlast`, or `custom` for your own, in which the server is installed."),
    ] = "outlast"
    max_crashes: Annotated[
        Count, Field(ge=0, description="Workers a run may lose without progress before it fails; 0 = no limit.")
    ] = _DEFAULT.max_crashes
    run_timeout: Annotated[Seconds, Field(description="Longest run; 0 = no limit.")] = _DEFAULT.run_timeout
    drain_timeout: Annotated[Seconds, Field(description="How long runs may go on after SIGTERM.")] = (
        _DEFAULT.drain_timeout
    )
    concurrency: Annotated[Count, Field(ge=1, description="Runs at once in a process.")] = _DEFAULT.concurrency


class StoreSection(_Section):
    """`[store]`: where everything is kept."""

    url: Annotated[
        str, Field(min_length=1, description="The store; a relative SQLite path begins at the folder of the file.")
    ] = DEFAULT_URL
    retention: Annotated[Seconds, Field(description="How long final runs are kept; 0 = for ever.")] = (
        _DEFAULT.retention[Status.COMPLETED]
    )


class CorsSection(_Section):
    """`[cors]`: which web pages may call."""

    allowed_origins: Annotated[
        tuple[str, ...],
        BeforeValidator(_words),
        Field(description="Origins such as `https://example.com`, or `*`; in the variable, with commas between."),
    ] = ()


class DeploySection(_Section):
    """`[deploy]`: what `outlast deploy` renders."""

    workers: Annotated[Count, Field(ge=1, description="Processes that serve.")] = 2
    port: Annotated[Count, Field(ge=1, le=65535, description="Port of this machine, for `--to compose`.")] = 8000
    image: Annotated[
        str | None,
        Field(min_length=1, description="Container image, for `--to kubernetes`. Default: the name, `:latest`."),
    ] = None
    secrets: Annotated[
        tuple[Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")], ...],
        Field(description="Names of the variables that the agent needs and that are secret; never their values."),
    ] = ()


class AgentFile(_Section):
    """The sections of the file."""

    agent: AgentSection = AgentSection()
    store: StoreSection = StoreSection()
    cors: CorsSection = CorsSection()
    deploy: DeploySection = DeploySection()
    tools: tuple[ToolServer, ...] = ()


_SECTIONS = {name: type(field.default) for name, field in AgentFile.model_fields.items() if name != TOOLS}


@dataclass(frozen=True, slots=True)
class Setting:
    """One key: its name such as `agent.name`, and the environment variable that overrides it, if one may."""

    key: str
    variable: str | None
    default: Any
    description: str


def settings() -> Iterator[Setting]:
    """Give every key of a table."""
    for section, fields in _SECTIONS.items():
        for name, one in fields.model_fields.items():
            yield Setting(f"{section}.{name}", _variable(section, name), one.default, one.description or "")


def _variable(section: str, name: str) -> str | None:
    if (section, name) == ("agent", "server"):
        return None  # which of the two it is stands in the program, and no variable switches that
    if section == "deploy":
        return None  # what is rendered is reviewed, and must not depend on who renders it
    return STORE if (section, name) == ("store", "url") else f"OUTLAST_{name.upper()}"


@dataclass(frozen=True, slots=True)
class Config:
    """What was read, and where each value came from."""

    path: Path
    file: AgentFile
    sources: Mapping[str, str]
    """By key, such as `store.url`: the name of the file or of the variable that has it; nothing for a default."""

    @classmethod
    def read(cls, path: Path, environ: MutableMapping[str, str] = os.environ) -> Self:
        """Read `agent.toml`, or the one in a folder. Raise BadConfig with the reason and the way out.

        Variables of `.env` beside it are set where the environment does not have them, for the agent needs them too;
        then variables override what the file says.
        """
        path = (path / FILE if path.is_dir() else path).absolute()
        values = _parsed(path)
        _refuse_unknown(values, path.name)
        sources = {f"{section}.{name}": path.name for section in values if section != TOOLS for name in values[section]}
        from_env_file = load_env_file(path.parent, environ)
        for setting in settings():
            if setting.variable is not None and (given := environ.get(setting.variable)):
                section, _, name = setting.key.partition(".")
                values.setdefault(section, {})[name] = given
                in_file = setting.variable in from_env_file
                sources[setting.key] = f"{setting.variable} in .env" if in_file else setting.variable
        config = cls(path, _checked(values, sources, path.name), sources)
        if config.custom and config.file.cors.allowed_origins:
            raise BadConfig(
                f'{sources["cors.allowed_origins"]}: with server = "custom" the app is yours, and so are its origins; '
                "remove [cors] and add fastapi.middleware.cors.CORSMiddleware to the app"
            )
        return config

    @property
    def custom(self) -> bool:
        """Whether the app is the user's own, in which a server is installed."""
        return self.file.agent.server == "custom"

    @property
    def folder(self) -> Path:
        return self.path.parent

    @property
    def store_url(self) -> str:
        url = self.file.store.url
        return url if self.sources.get("store.url") == STORE else below(url, self.folder)

    def engine(self, settings: EngineSettings) -> EngineSettings:
        """Return settings with those that were chosen here in their place."""
        agent, chosen = self.file.agent, dict[str, Any]()
        for name in ("max_crashes", "run_timeout", "drain_timeout", "concurrency"):
            if f"agent.{name}" in self.sources:
                chosen[name] = getattr(agent, name)
        if "store.retention" in self.sources:
            keep = self.file.store.retention
            chosen["retention"] = {status: keep for status in Status if status.final and keep}
        return replace(settings, **chosen)


def check(text: str, name: str) -> None:
    """Raise BadConfig for what could not be read as the `agent.toml` of this name."""
    values = _of_toml(text, name)
    _refuse_unknown(values, name)
    _checked(values, {f"{section}.{key}": name for section in _SECTIONS for key in values.get(section, ())}, name)


def _parsed(path: Path) -> dict[str, Any]:
    try:
        return _of_toml(path.read_text("utf-8"), path.name)
    except FileNotFoundError:
        raise BadConfig(f"there is no file {path}") from None
    except OSError as error:
        raise BadConfig(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise BadConfig(f"{path.name} is no TOML: {error}") from None


def _of_toml(text: str, name: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except ValueError as error:
        raise BadConfig(f"{name} is no TOML: {error}") from None


def _refuse_unknown(values: Mapping[str, Any], file: str) -> None:
    known = {section: fields.model_fields for section, fields in _SECTIONS.items()}
    for section, table in values.items():
        if section == TOOLS:
            _refuse_unknown_of_tools(table, file)
            continue
        if section not in known:
            at_home = [f"[{one}] {section}" for one in known if section in known[one]]
            _refuse(file, section, f"[{section}]", [*known, TOOLS], at_home, "[{}]")
        if not isinstance(table, dict):
            raise BadConfig(f"{file}: [{section}] is a table, such as\n[{section}]\n{next(iter(known[section]))} = …")
        for name in table:
            if name not in known[section]:
                elsewhere = [f"[{one}] {name}" for one in known if name in known[one]]
                _refuse(file, f"{section}.{name}", f"{name} in [{section}]", list(known[section]), elsewhere, "{}")


def _refuse_unknown_of_tools(tables: object, file: str) -> None:
    if not isinstance(tables, list) or not all(isinstance(one, dict) for one in tables):
        raise BadConfig(
            f"{file}: each server of tools is a table of its own, [[{TOOLS}]]; `outlast tools add` writes it"
        )
    for table in tables:
        for name in table:
            if name not in ToolServer.model_fields:
                _refuse(file, f"{TOOLS}.{name}", f"{name} in [[{TOOLS}]]", list(ToolServer.model_fields), [], "{}")


def _refuse(file: str, key: str, shown: str, known: list[str], elsewhere: list[str], form: str) -> None:
    if key in _NOT_YET:
        raise BadConfig(f"{file}: outlast does not have {shown} yet; remove it")
    near = difflib.get_close_matches(key.rpartition(".")[2], known, n=1)
    meant = elsewhere or [form.format(one) for one in near]
    told = f"did you mean {meant[0]}?" if meant else f"there is {', '.join(form.format(one) for one in known)}"
    raise BadConfig(f"{file}: there is no {shown}; {told}")


def _checked(values: Mapping[str, Any], sources: Mapping[str, str], file: str) -> AgentFile:
    try:
        found = AgentFile.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        said = first["msg"].removeprefix("Value error, ")
        if first["loc"][0] == TOOLS:
            name = values[TOOLS][first["loc"][1]].get("name", first["loc"][1])
            raise BadConfig(": ".join([file, f"[[{TOOLS}]] {name!r}", *map(str, first["loc"][2:3]), said])) from None
        key = ".".join(str(part) for part in first["loc"][:2])
        raise BadConfig(f"{sources[key]}: {key}: {said}") from None
    names = [one.name for one in found.tools]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise BadConfig(f"{file}: there are two [[{TOOLS}]] named {twice!r}")
    return found


def load_env_file(folder: Path, environ: MutableMapping[str, str] = os.environ) -> set[str]:
    """Set the variables of a folder's `.env` that are not set, and return their names. Raise BadConfig."""
    path = folder / ENV_FILE
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        return set()
    except (OSError, UnicodeDecodeError) as error:
        raise BadConfig(f"{path} cannot be read: {getattr(error, 'strerror', None) or 'it is not UTF-8'}") from None
    found = {}
    # Not `dotenv_values`: it goes on behind a line that it cannot read, and puts other variables into values.
    for one in parse_stream(io.StringIO(text)):
        if one.key is not None and one.value is not None:
            found[one.key] = one.value
        elif one.error or one.key is not None:
            lines = one.original.string
            number = one.original.line + lines[: len(lines) - len(lines.lstrip())].count("\n")
            raise BadConfig(f"{path.name}, line {number} is not like NAME=value")
    added = {name: value for name, value in found.items() if name not in environ}
    environ.update(added)
    return set(added)
