"""Checkpoints of LangGraph as the store keeps them: a frame of its own, and each channel's value apart.

A list is kept by its elements and a dict by its entries, so that what did not change is stored once. Only LangGraph's
own serialiser says the same of the same; what another one makes is kept whole. Nothing is ever unpickled.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

from langgraph.checkpoint.base import Checkpoint
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from outlast.adapters.history import Element, History, Payload, Value

_WHOLE, _LIST, _ENTRIES = 0, 1, 2
Shape = int | dict[str, Any]
"""How a value was taken apart; a dict says it of each of its entries."""

OPENED_ENTRIES = 8
OPENED_DEPTH = 3
"""A small dict, such as the input of a graph, is opened: the lists in it are kept by their elements too."""


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


def _split(serde: SerializerProtocol, value: Any, values: list[Value], depth: int = 0) -> Shape:
    """Append what a value is made of, and return how."""
    if type(serde) is JsonPlusSerializer:
        if type(value) is list:
            values.append([dumped(serde, element) for element in value])
            return _LIST
        if type(value) is dict and all(type(key) is str for key in value):
            if len(value) <= OPENED_ENTRIES and depth < OPENED_DEPTH:
                return {key: _split(serde, inner, values, depth + 1) for key, inner in value.items()}
            values.append([dumped(serde, entry) for entry in value.items()])
            return _ENTRIES
    values.append(dumped(serde, value))
    return _WHOLE


def to_frame(serde: SerializerProtocol, checkpoint: Checkpoint) -> tuple[Payload, list[Value]]:
    """Return what a checkpoint has for itself, and what the values of its channels are made of."""
    values: list[Value] = []
    shapes = {channel: _split(serde, value, values) for channel, value in checkpoint["channel_values"].items()}
    frame = {key: value for key, value in checkpoint.items() if key != "channel_values"}
    return dumped(serde, [frame, shapes]), values


def to_values(serde: SerializerProtocol, value: Any) -> tuple[Payload | None, list[Value]]:
    """Return the shape of one written value, where it does not show by itself, and what it is made of."""
    values: list[Value] = []
    shape = _split(serde, value, values)
    return (None if shape in (_WHOLE, _LIST) else dumped(serde, shape)), values


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
        frame, shapes = loaded(self._serde, own)
        return cast(Checkpoint, {**frame, "channel_values": self._joined(shapes, iter(values))})

    def value(self, own: Payload | None, values: Iterable[Value]) -> Any:
        """Return a written value from what `to_values` made of it."""
        return self._joined(_LIST if own is None else loaded(self._serde, own), iter(values))

    def _joined(self, shape: Shape, values: Iterator[Value]) -> Any:
        if isinstance(shape, dict):
            return {key: self._joined(inner, values) for key, inner in shape.items()}
        value = next(values)
        if isinstance(value, Payload | bytes):
            return self(value)
        elements = [self(element) for element in value]
        return dict(elements) if shape == _ENTRIES else elements


def _elements(value: Value) -> Iterable[Element]:
    return (value,) if isinstance(value, Payload | bytes) else value
