"""The context object of a user's tools, as far as it is kept with the session.

It is made anew for each attempt, by the user's factory; what tools changed in it since the session began is laid over that.
So the part of it that comes from the request is the request's, and the part that tools wrote is theirs.
"""

import dataclasses
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, get_type_hints

from pydantic import BaseModel, SecretBytes, SecretStr, TypeAdapter
from pydantic_core import to_jsonable_python

from outlast.core import jsontext
from outlast.core.errors import NotJSON

logger = logging.getLogger("outlast.openai")

_NOT_SAID = object()


class Functions(NamedTuple):
    """The user's own way to say a context in JSON, and to make one of that and of what the factory made."""

    to_json: Callable[[Any], Any]
    from_json: Callable[[Any, Any], Any]


class Contexts:
    """How the contexts of one wrapped agent are kept."""

    def __init__(self, name: str, functions: Functions | None) -> None:
        self.functions = functions
        self._name = name
        self._warned = False

    def kept(self, made: Any, stored: Any) -> "Kept":
        """Return a context that the factory made, with what the session has of it."""
        if self.functions is not None:
            value = made if stored is None else self.functions.from_json(stored, made)
            return Kept(self, value, {}, None if stored is None else jsontext.fingerprint(stored))
        base = dict(_said(made))
        return Kept(self, _laid_over(made, stored or {}), base, jsontext.fingerprint(stored or {}))

    def warn(self, what: str) -> None:
        """Say once what will be gone."""
        if not self._warned:
            self._warned = True
            logger.warning(
                "agent %s: a tool changed %s of the context, which cannot be kept with the session and is gone after the run; "
                "make the context a dataclass or a pydantic model of such values, or pass context_to_json and context_from_json",
                self._name, what,
            )  # fmt: skip


class Kept:
    """One context during an attempt."""

    def __init__(self, contexts: Contexts, value: Any, base: Mapping[str, Any], stored: str | None) -> None:
        self.value = value
        self._contexts, self._base, self._stored = contexts, base, stored
        self._seen = dict(_unsaid(value)) if contexts.functions is None else {}

    def news(self) -> Any:
        """Return what is to be stored of the context now, or None when the session has it already."""
        try:
            state = self._state()
            found = jsontext.fingerprint(state)
        except (NotJSON, RuntimeError, TypeError, ValueError) as error:
            # A thread may be changing it; the next step tries again.
            self._contexts.warn(f"something ({error})")
            return None
        if found == self._stored:
            return None
        self._stored = found
        return state

    def _state(self) -> Any:
        functions = self._contexts.functions
        if functions is not None:
            return functions.to_json(self.value)
        if (gone := dict(_unsaid(self.value))) != self._seen:
            self._seen = gone
            self._contexts.warn(next(iter(gone), "something"))
        return {name: said for name, said in _said(self.value) if said != self._base.get(name, _NOT_SAID)}


def _fields(value: Any) -> Iterator[tuple[str, Any, Any]]:
    """Give the fields of a context that may be kept, with their types and values; not what is marked as a secret."""
    if isinstance(value, BaseModel):
        for name, field in type(value).model_fields.items():
            if not field.exclude and field.repr:
                yield name, field.annotation, getattr(value, name)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        hints = _hints(type(value))
        for one in dataclasses.fields(value):
            if one.init and one.repr:
                yield one.name, hints.get(one.name, Any), getattr(value, one.name)


def _hints(kind: type) -> dict[str, Any]:
    try:
        return get_type_hints(kind, include_extras=True)
    except NameError:
        # A class inside of a function: its plain values are kept all the same.
        return {}


def _said(value: Any) -> Iterator[tuple[str, Any]]:
    """Give the fields that come back from JSON as they are, in JSON."""
    for name, kind, content in _fields(value):
        said = _json(kind, content)
        if said is not _NOT_SAID:
            yield name, said


def _unsaid(value: Any) -> Iterator[tuple[str, Any]]:
    """Give prints of what is not kept, by which a change of it shows."""
    known = [name for name, _, _ in _fields(value)]
    if not known and value is not None:
        yield "something", _print(value)
    for name, kind, content in _fields(value):
        if not isinstance(content, SecretStr | SecretBytes) and _json(kind, content) is _NOT_SAID:
            yield name, _print(content)


def _json(kind: Any, content: Any) -> Any:
    """Return a value in JSON, if it can be had back from there."""
    if isinstance(content, SecretStr | SecretBytes):
        return _NOT_SAID
    try:
        said = to_jsonable_python(content)
        jsontext.encode(said)
        return said if _read(kind, said) == content else _NOT_SAID
    except Exception:  # noqa: BLE001 - the types are the user's, and so is what they raise
        return _NOT_SAID


def _read(kind: Any, said: Any) -> Any:
    return TypeAdapter(kind).validate_json(jsontext.encode(said))


def _print(value: Any) -> Any:
    try:
        return jsontext.fingerprint(to_jsonable_python(value))
    except Exception:  # noqa: BLE001 - as above
        inside = vars(value) if hasattr(value, "__dict__") else {}
        return id(value), {name: id(one) for name, one in inside.items()}


def _laid_over(made: Any, stored: Mapping[str, Any]) -> Any:
    found = {}
    kinds = {name: kind for name, kind, _ in _fields(made)}
    for name, said in stored.items():
        try:
            found[name] = _read(kinds[name], said)
        except (KeyError, ValueError) as error:
            logger.warning(
                "the field %r of the context of a session is not what it was, and not restored: %s", name, error
            )
    if not found:
        return made
    return made.model_copy(update=found) if isinstance(made, BaseModel) else dataclasses.replace(made, **found)
