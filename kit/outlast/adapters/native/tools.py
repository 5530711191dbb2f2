"""Typed functions as tools: the schema comes from the signature, the arguments are checked before the body runs."""

import inspect
import typing
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.errors import PydanticSchemaGenerationError, PydanticUndefinedAnnotation

from outlast.adapters.native.model import ToolSpec
from outlast.core import jsontext
from outlast.core.errors import OutlastError
from outlast.engine.threads import call

_PREFIX = "p_"
"""Of field names; the parameter's own name is the alias, so that any will do, also those pydantic keeps for itself."""


class ToolSetupError(OutlastError):
    """A function cannot be a tool; the message says why."""

    code = "tool_setup"


class ToolError(Exception):
    """What a model is told went wrong with a call."""


class Tool:
    """A function that a model may call. `async def` runs on the loop, `def` in a thread of its own.

    With `needs_approval`, a person has to agree before it runs; it may be a function of the tool's arguments that says
    whether.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        description: str | None = None,
        needs_approval: bool | Callable[..., Any] = False,
    ) -> None:
        """Take a function. Raise ToolSetupError for one whose parameters cannot be described to a model."""
        self.name = name or str(getattr(function, "__name__", type(function).__name__))
        self._function, self._needs_approval = function, needs_approval
        self._arguments = _arguments_of(function, self.name)
        self.spec = ToolSpec(
            self.name, description or inspect.getdoc(function) or "", self._arguments.model_json_schema()
        )

    async def run(self, arguments: str) -> str:
        """Call the function with JSON text from a model and return what the model is told.

        Raises ToolError for arguments that do not fit and a result that is not JSON; exceptions of the function go out.
        """
        result = await call(partial(self._function, **self.check(arguments)))
        if isinstance(result, str):
            return result
        if isinstance(result, BaseModel):
            return result.model_dump_json()
        try:
            return jsontext.encode(result)
        except OutlastError as error:
            raise ToolError(f"the tool returned what JSON cannot hold: {error}") from None

    def check(self, arguments: str) -> dict[str, Any]:
        """Return the arguments in JSON text as values for the function. Raises ToolError for what does not fit."""
        try:
            checked = self._arguments.model_validate_json(arguments or "{}")
        except ValidationError as error:
            raise ToolError(f"the arguments do not fit: {_told(error)}") from None
        return {name.removeprefix(_PREFIX): getattr(checked, name) for name in checked.model_fields_set}

    async def asks(self, arguments: str) -> bool:
        """Say whether a person has to agree to a call. Not for arguments that the tool refuses anyway."""
        try:
            values = self.check(arguments)
        except ToolError:
            return False
        if callable(self._needs_approval):
            return bool(await call(partial(self._needs_approval, **values)))
        return self._needs_approval


def tools(given: Sequence[Callable[..., Any] | Tool]) -> dict[str, Tool]:
    """Return tools by name. Raise ToolSetupError when two have one name."""
    found: dict[str, Tool] = {}
    for one in given:
        tool = one if isinstance(one, Tool) else Tool(one)
        if tool.name in found:
            raise ToolSetupError(f"there are two tools named {tool.name!r}")
        found[tool.name] = tool
    return found


def _arguments_of(function: Callable[..., Any], name: str) -> type[BaseModel]:
    target = function if inspect.isroutine(function) else type(function).__call__
    try:
        hints = typing.get_type_hints(target, include_extras=True)
    except NameError as error:
        raise ToolSetupError(f"the tool {name!r} has an annotation that is not defined: {error}") from error
    fields: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise ToolSetupError(f"the tool {name!r} takes {parameter}; name each parameter instead")
        if parameter.name not in hints:
            raise ToolSetupError(f"the tool {name!r} needs a type for its parameter {parameter.name!r}")
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[f"{_PREFIX}{parameter.name}"] = (hints[parameter.name], Field(default, alias=parameter.name))
    try:
        return create_model(name, __config__=ConfigDict(extra="forbid", arbitrary_types_allowed=False), **fields)
    except (PydanticSchemaGenerationError, PydanticUndefinedAnnotation) as error:
        raise ToolSetupError(f"the tool {name!r} has a parameter that JSON cannot describe: {error}") from error


def _told(error: ValidationError) -> str:
    return "; ".join(f"{'.'.join(map(str, one['loc'])) or 'it'}: {one['msg']}" for one in error.errors())
