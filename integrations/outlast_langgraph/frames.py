"""Checkpoints of LangGraph as the store keeps them: a frame of its own, and each channel's value apart.

A list is kept by its elements and a dict by its entries, so that what did not change is stored once. Only LangGraph's
own serialiser says the same of the same; what another one makes is kept whole. Nothing is ever unpickled.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, cast

import ormsgpack
from langgraph.checkpoint.base import Checkpoint
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from outlast.adapters.history import Element, History, Payload, Value, elements_of
from outlast_langgraph.remembering import Memory

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


def loaded(serde: SerializerProtocol, payload: Payload) -> Any:
    """Return the value of a payload. Raise PickledPayload."""
    # An encrypting serialiser names its cipher behind a plus.
    if payload.type.partition("+")[0] == "pickle":
        raise PickledPayload("the store holds a pickled value, which is never loaded")
    return serde.loads_typed((payload.type, payload.body))


class Verbatim(JsonPlusSerializer):
    """Reads what LangGraph stored without making objects of it, and writes them as they were.

    The classes need not be importable: a process that lacks them would make dicts of their objects, for good.
    """

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        type_, body = data
        if type_ != "msgpack":
            return super().loads_typed(data)
        return ormsgpack.unpackb(body, ext_hook=ormsgpack.Ext, option=ormsgpack.OPT_NON_STR_KEYS)


class Frames:
    """Takes values apart, and puts them together again, with what this process remembers of the messages in a history.

    A message that is as it was when it was loaded is neither serialised nor loaded again: a step of a long conversation
    costs little more than one of a short one.
    """

    def __init__(self, serde: SerializerProtocol, memory: Memory, stored: Collection[bytes] = ()) -> None:
        """`stored` are digests of parts that are in the history for certain."""
        self._serde, self._memory, self._stored = serde, memory, stored

    # Take apart -----------------------------------------------------------------------------------------------------

    def to_frame(self, checkpoint: Checkpoint) -> tuple[Payload, list[Value]]:
        """Return what a checkpoint has for itself, and what the values of its channels are made of."""
        values: list[Value] = []
        shapes = {channel: self._split(value, values) for channel, value in checkpoint["channel_values"].items()}
        frame = {key: value for key, value in checkpoint.items() if key != "channel_values"}
        return self._dumped([frame, shapes]), values

    def to_values(self, value: Any) -> tuple[Payload | None, list[Value]]:
        """Return the shape of one written value, where it does not show by itself, and what it is made of."""
        values: list[Value] = []
        shape = self._split(value, values)
        return (None if shape in (_WHOLE, _LIST) else self._dumped(shape)), values

    def _split(self, value: Any, values: list[Value], depth: int = 0) -> Shape:
        """Append what a value is made of, and return how."""
        if type(self._serde) in (JsonPlusSerializer, Verbatim):
            if type(value) is list:
                digests = self._memory.digests(value)
                values.append(
                    [
                        known if known is not None and known in self._stored else self._element(element)
                        for element, known in zip(value, digests, strict=True)
                    ]
                )
                return _LIST
            if type(value) is dict and all(type(key) is str for key in value):
                if len(value) <= OPENED_ENTRIES and depth < OPENED_DEPTH:
                    return {key: self._split(inner, values, depth + 1) for key, inner in value.items()}
                values.append([self._dumped(entry) for entry in value.items()])
                return _ENTRIES
        values.append(self._dumped(value))
        return _WHOLE

    def _element(self, value: Any) -> Element:
        payload = self._dumped(value)
        self._memory.note_dumped(value, payload)
        return payload

    def _dumped(self, value: Any) -> Payload:
        return Payload(*self._serde.dumps_typed(value))

    # Put together ---------------------------------------------------------------------------------------------------

    async def load(self, history: History, found: Iterable[Value]) -> "Loads":
        """Fetch what the values need and is not remembered."""
        digests = [element for value in found for element in elements_of(value) if type(element) is bytes]
        remembered, needed = self._memory.recall(digests), set(digests)
        missing = needed.difference(remembered)
        if len(digests) > len(needed):
            # What is remembered is handed out once.
            missing.update(digest for digest, count in Counter(digests).items() if count > 1)
        return Loads(self._serde, self._memory, remembered, await history.parts([*missing]) if missing else {})


class Loads:
    """Loads elements: payloads as they are, digests from what was remembered or fetched."""

    def __init__(
        self, serde: SerializerProtocol, memory: Memory, remembered: dict[bytes, Any], parts: Mapping[bytes, Payload]
    ) -> None:
        self._serde, self._memory, self._remembered, self._parts = serde, memory, remembered, parts

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
            return self._value(value)
        known = self._remembered
        elements = [known.pop(element) if element in known else self._value(element) for element in value]
        return dict(elements) if shape == _ENTRIES else elements

    def _value(self, element: Element) -> Any:
        if isinstance(element, Payload):
            return loaded(self._serde, element)
        # Two elements of a state are never one object.
        if element in self._remembered:
            return self._remembered.pop(element)
        value = loaded(self._serde, self._parts[element])
        self._memory.note_loaded(element, value)
        return value
