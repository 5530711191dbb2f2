"""Checkpoints of LangGraph as the store keeps them: a frame of its own, and each channel's value apart.

A list is kept by its elements and a dict by its entries, so that what did not change is stored once. Only LangGraph's
own serialiser says the same of the same; what another one makes is kept whole. Nothing is ever unpickled.
"""

from collections.abc import Iterable, Mapping
from typing import Any, cast

from langgraph.checkpoint.base import Checkpoint
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from outlast.adapters.history import Element, History, Payload, Value

_ONE, _LIST, _DICT = 0, 1, 2


class PickledPayload(ValueError):
    """The database holds, or a serialiser would make, a pickled value; loading it could run any code."""


def refuse_pickle(serde: Any) -> None:
    """Raise PickledPayload for a serialiser that may pickle."""
    while serde is not None:
        if getattr(serde, "pickle_fallback", False):
            raise PickledPayload("StoreSaver never unpickles: make the serialiser with pickle_fallback=False")
        serde = getattr(serde, "serde", None)


def dumped(serde: SerializerProtocol, value: Any) -> Payload:
    return Payload(*serde.dumps_typed(value))


def loaded(serde: SerializerProtocol, payload: Payload) -> Any:
    """Return the value of a payload. Raise PickledPayload."""
    # An encrypting serialiser names its cipher behind a plus.
    if payload.type.partition("+")[0] == "pickle":
        raise PickledPayload("the store holds a pickled value, which is never loaded")
    return serde.loads_typed((payload.type, payload.body))


def _split(serde: SerializerProtocol, value: Any) -> tuple[int, Value]:
    if type(serde) is JsonPlusSerializer:
        if type(value) is list:
            return _LIST, [dumped(serde, element) for element in value]
        if type(value) is dict and all(type(key) is str for key in value):
            return _DICT, [dumped(serde, entry) for entry in value.items()]
    return _ONE, dumped(serde, value)


def _joined(kind: int, value: Value, loads: "Loads") -> Any:
    if isinstance(value, Payload | bytes):
        return loads(value)
    elements = [loads(element) for element in value]
    return dict(elements) if kind == _DICT else elements


def to_frame(serde: SerializerProtocol, checkpoint: Checkpoint) -> tuple[Payload, list[Value]]:
    """Return what a checkpoint has for itself, and the values of its channels."""
    kinds: dict[str, int] = {}
    values: list[Value] = []
    for channel, value in checkpoint["channel_values"].items():
        kinds[channel], kept = _split(serde, value)
        values.append(kept)
    frame = {key: value for key, value in checkpoint.items() if key != "channel_values"}
    return dumped(serde, [frame, kinds]), values


def to_value(serde: SerializerProtocol, value: Any) -> Value:
    """Return one written value; a dict is kept whole, for it cannot be told from a list."""
    if type(value) is list and type(serde) is JsonPlusSerializer:
        return [dumped(serde, element) for element in value]
    return dumped(serde, value)


class Loads:
    """Loads elements: payloads as they are, digests from the parts of a history."""

    def __init__(self, serde: SerializerProtocol, parts: Mapping[bytes, Payload]) -> None:
        self._serde, self._parts = serde, parts

    @classmethod
    async def of(cls, serde: SerializerProtocol, history: History, values: Iterable[Value]) -> "Loads":
        digests = {
            element: None for value in values for element in _elements(value) if not isinstance(element, Payload)
        }
        return cls(serde, await history.parts(list(digests)) if digests else {})

    def __call__(self, element: Element) -> Any:
        return loaded(self._serde, element if isinstance(element, Payload) else self._parts[element])

    def checkpoint(self, own: Payload, values: Iterable[Value]) -> Checkpoint:
        """Return a checkpoint from what `to_frame` made of it."""
        frame, kinds = loaded(self._serde, own)
        named = zip(kinds.items(), values, strict=True)
        frame["channel_values"] = {channel: _joined(kind, value, self) for (channel, kind), value in named}
        return cast(Checkpoint, frame)

    def value(self, value: Value) -> Any:
        """Return a written value."""
        return _joined(_LIST, value, self)


def _elements(value: Value) -> Iterable[Element]:
    return (value,) if isinstance(value, Payload | bytes) else value
