"""Typed functions as tools: the schema comes from the signature, the arguments are checked before the body runs."""

import asyncio
import inspect
import logging
import re
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.errors import PydanticUndefinedAnnotation, PydanticUserError
from pydantic_core import PydanticSerializationError, to_jsonable_python

from outlast.adapters.native.model import ToolSpec
from outlast.core import jsontext
from outlast.core.errors import OutlastError
from outlast.engine.threads import call

logger = logging.getLogger("outlast.adapters")

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""What providers take for the name of a function."""
_PREFIX = "p_"
"""Of field names; the parameter's own name is the alias, so that any will do, also those pydantic keeps for itself."""


class ToolSetupError(OutlastError):
    """A function cannot be a tool; the message says why."""

    code = "tool_setup"


class ToolError(Exception):
    """What a model is told went wrong with a call."""


class Tool:
    """A function that a model may call. `async def` runs on the loop, `def` in a thread of its own.

    It has the name of the function unless another is given; providers take 1 to 64 letters, digits, `_` and `-`. What a
    `functools.partial` fixes is no argument of the tool.
    With `needs_approval`, a person has to agree before it runs; it may be a function that says whether. That one takes
    the arguments of the tool that it wants, by name, with their defaults where the model gave none.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        description: str | None = None,
        needs_approval: bool | Callable[..., Any] = False,
    ) -> None:
        """Take a function. Raise ToolSetupError for a name that providers refuse, or parameters that JSON cannot say."""
        if not callable(function):
            raise ToolSetupError(f"a tool is a function; {function!r} is none")
        self.name = _name_of(function) if name is None else _named(name)
        self._function, self._needs_approval = function, needs_approval
        self._arguments, schema = _arguments_of(function, self.name)
        self._asked = _asked_of(needs_approval, list(schema["properties"]), self.name)
        self.spec = ToolSpec(self.name, description or inspect.getdoc(_inner(function)) or "", schema)

    async def run(self, arguments: str) -> str:
        """Call the function with JSON text from a model and return what the model is told.

        Raises ToolError for arguments that do not fit and a result that is not JSON; exceptions of the function go out.
        """
        return _told_of(await _called(self._function, self.check(arguments)))

    def check(self, arguments: str) -> dict[str, Any]:
        """Return the arguments in JSON text as values for the function. Raises ToolError for what does not fit."""
        checked = self._checked(arguments)
        return {name.removeprefix(_PREFIX): getattr(checked, name) for name in checked.model_fields_set}

    async def asks(self, arguments: str) -> bool:
        """Say whether a person has to agree to a call; yes, where the function that says it raises.

        Not for arguments that the tool refuses anyway.
        """
        try:
            checked = self._checked(arguments)
        except ToolError:
            return False
        if not callable(self._needs_approval):
            return self._needs_approval
        values = {name: getattr(checked, f"{_PREFIX}{name}") for name in self._asked}
        try:
            return bool(await _called(self._needs_approval, values))
        except (Exception, SystemExit) as error:
            logger.warning("`needs_approval` of the tool %r raised: a person is asked", self.name, exc_info=error)
            return True

    def _checked(self, arguments: str) -> BaseModel:
        try:
            return self._arguments.model_validate_json(arguments or "{}")
        except ValidationError as error:
            raise ToolError(f"the arguments do not fit: {_told(error)}") from None


async def _called(function: Callable[..., Any], values: Mapping[str, Any]) -> Any:
    """Call a function of the user's. Raise ToolError where it raises CancelledError and nobody had cancelled the run."""
    try:
        return await call(partial(function, **values))
    except asyncio.CancelledError as error:
        # An inner timeout, a client that was closed.
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise ToolError(f"CancelledError: {error}") from error


def tools(given: Sequence[Callable[..., Any] | Tool]) -> dict[str, Tool]:
    """Return tools by name. Raise ToolSetupError when two have one name."""
    if isinstance(given, Tool) or callable(given):
        raise ToolSetupError("`tools` is a sequence, such as [pay]")
    found: dict[str, Tool] = {}
    for one in given:
        tool = one if isinstance(one, Tool) else Tool(one)
        if tool.name in found:
            raise ToolSetupError(f"there are two tools named {tool.name!r}")
        found[tool.name] = tool
    return found


def _inner(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return what a `functools.partial` calls: that has the docstring and the types."""
    return _inner(function.func) if isinstance(function, partial) else function


def _name_of(function: Callable[..., Any]) -> str:
    name = str(getattr(function, "__name__", "" if isinstance(function, partial) else type(function).__name__))
    if not _NAME.fullmatch(name):
        raise ToolSetupError(f"{function!r} has no name that a model can call it by; give it one: Tool(f, name='...')")
    return name


def _named(name: object) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ToolSetupError(f"the name of a tool is 1 to 64 letters, digits, _ and -; {name!r} is none")
    return name


def _arguments_of(function: Callable[..., Any], name: str) -> tuple[type[BaseModel], dict[str, Any]]:
    """Return a model of the parameters of a function, and its JSON schema."""
    inner, fixed = _inner(function), function.keywords if isinstance(function, partial) else ()
    target = inner if inspect.isroutine(inner) else type(inner).__call__
    try:
        hints = typing.get_type_hints(target, include_extras=True)
    except NameError as error:
        raise ToolSetupError(f"the tool {name!r} has an annotation that is not defined: {error}") from error
    fields: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name in fixed:
            continue
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise ToolSetupError(f"the tool {name!r} takes {parameter}; name each parameter instead")
        if parameter.name not in hints:
            raise ToolSetupError(f"the tool {name!r} needs a type for its parameter {parameter.name!r}")
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[f"{_PREFIX}{parameter.name}"] = (hints[parameter.name], Field(default, alias=parameter.name))
    try:
        model = create_model(name, __config__=ConfigDict(extra="forbid", arbitrary_types_allowed=False), **fields)
        return model, model.model_json_schema()
    except (PydanticUserError, PydanticUndefinedAnnotation) as error:
        raise ToolSetupError(f"the tool {name!r} has a parameter that JSON cannot describe: {error}") from error


def _asked_of(needs_approval: object, parameters: Sequence[str], name: str) -> Sequence[str]:
    """Return which of a tool's parameters the function takes that says whether a call needs approval."""
    if not callable(needs_approval):
        if not isinstance(needs_approval, bool):
            raise ToolSetupError(f"`needs_approval` of the tool {name!r} must be true, false or a function")
        return ()
    taken = inspect.signature(needs_approval).parameters.values()
    if any(one.kind is one.VAR_KEYWORD for one in taken):
        return parameters
    for one in taken:
        positional = one.kind in (one.POSITIONAL_ONLY, one.VAR_POSITIONAL)
        if positional or (one.name not in parameters and one.default is one.empty):
            raise ToolSetupError(
                f"`needs_approval` of the tool {name!r} takes {one}, which is no parameter of the tool"
            )
    return [one.name for one in taken if one.name in parameters]


def _told_of(result: object) -> str:
    """Return the text of what a tool returned: itself, or JSON, also of what pydantic writes as JSON."""
    if isinstance(result, str):
        return result
    if isinstance(result, BaseModel):
        return result.model_dump_json()
    try:
        return jsontext.encode(result)
    except OutlastError as error:
        refused = error
    try:
        if not isinstance(result, Iterator):  # reading one would run code of the tool
            return jsontext.encode(to_jsonable_python(result))
    except (PydanticSerializationError, OutlastError, ValueError):
        pass
    raise ToolError(f"the tool returned what JSON cannot hold: {refused}")


def _told(error: ValidationError) -> str:
    return "; ".join(f"{'.'.join(map(str, one['loc'])) or 'it'}: {one['msg']}" for one in error.errors())
