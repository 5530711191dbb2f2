"""Values that are kept once: what is not tiny is a part, named by what it says, and alike lists share their pages.

A list is written as a number is in base 8: eight references make a page, eight pages a page of the next level, and
a checkpoint names what is left over on each level. Full pages are parts, and never change while the list grows: a list
of any length costs a checkpoint a few hundred bytes, and what was appended.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import NamedTuple

PAGE = 8
"""References in a page."""

TINY = 48
"""Bytes that are not worth a part of their own."""

DIGEST_BYTES = 16

REMEMBERED = 400_000
"""Elements of pages that are remembered."""

_INLINE, _PART = 0, 1
_PART_BEFORE = bytes([_PART])
_ONE, _MANY = 0, 1


class Payload(NamedTuple):
    """A serialised value: nobody here looks into it."""

    type: str
    body: bytes

    @property
    def content(self) -> bytes:
        """The payload as a part holds it."""
        return self.type.encode() + b"\0" + self.body

    @classmethod
    def of(cls, content: bytes) -> "Payload":
        type_, _, body = content.partition(b"\0")
        return cls(type_.decode(), body)


Element = Payload | bytes
"""A payload, or the digest of one that is stored already."""

Value = Element | Sequence[Element]
"""One value, or a list by its elements."""


class Packed(NamedTuple):
    """Values in the form in which a row holds them, with parts they need, by digest, and the digests of all they need."""

    body: bytes
    parts: Mapping[bytes, bytes]
    needs: frozenset[bytes]


def digest(content: bytes) -> bytes:
    """Name a part by its content."""
    return blake2b(content, digest_size=DIGEST_BYTES).digest()


def pack(values: Collection[Value], *, own: Payload | None = None) -> Packed:
    """Write values down; `own` stays in the row whatever its size, since no other row has the same."""
    parts: dict[bytes, bytes] = {}
    written = [b"" if own is None else own.content]
    body = [_number(len(written[0])), written[0]]
    for value in values:
        if isinstance(value, Payload | bytes):
            body += [bytes([_ONE]), _reference(value, parts)]
        else:
            body += [bytes([_MANY]), _list(value, parts)]
    named = [element for value in values for element in elements_of(value) if not isinstance(element, Payload)]
    return Packed(b"".join(body), parts, frozenset([*parts, *named]))


def _reference(element: Element, parts: dict[bytes, bytes]) -> bytes:
    if isinstance(element, Payload):
        content = element.content
        if len(content) <= TINY:
            return bytes([_INLINE]) + _number(len(content)) + content
        element = _kept(content, parts)
    return _PART_BEFORE + element


def _kept(content: bytes, parts: dict[bytes, bytes]) -> bytes:
    name = digest(content)
    parts[name] = content
    return name


def _list(elements: Sequence[Element], parts: dict[bytes, bytes]) -> bytes:
    levels: list[list[bytes]] = []
    while elements:
        full = len(elements) - len(elements) % PAGE
        pages = [_page(elements[at : at + PAGE], parts) for at in range(0, full, PAGE)]
        levels.append([_reference(element, parts) for element in elements[full:]])
        elements = [_kept(page, parts) for page in pages]
    # From the top, where the oldest are.
    written = [_number(len(levels))]
    for level in reversed(levels):
        written += [_number(len(level)), *level]
    return b"".join(written)


def _page(elements: Sequence[Element], parts: dict[bytes, bytes]) -> bytes:
    try:
        # Most elements of a long list are digests already.
        return _PART_BEFORE + _PART_BEFORE.join(elements)  # type: ignore[arg-type]  # payloads are no bytes
    except TypeError:
        return b"".join(_reference(element, parts) for element in elements)


class Unpacked(NamedTuple):
    """What a row holds. The elements of `values` are payloads, or digests of parts; `pages` are digests too."""

    own: Payload | None
    values: list[Value]
    pages: frozenset[bytes]

    def needed(self) -> set[bytes]:
        """Return the digests of all parts that the row needs."""
        elements = (element for value in self.values for element in elements_of(value))
        return {*self.pages, *(element for element in elements if not isinstance(element, Payload))}


def elements_of(value: Value) -> Sequence[Element]:
    """Return the elements of a list, or the one element that a value is."""
    return (value,) if isinstance(value, Payload | bytes) else value


Fetch = Callable[[Sequence[bytes]], Mapping[bytes, bytes]]
"""Gives parts by their digests."""


class _Page(NamedTuple):
    """A reference to a page of some level above the elements."""

    level: int
    digest: bytes


class _Flat(NamedTuple):
    """What is below a page: all elements, and the digests of the pages, its own among them."""

    elements: tuple[Element, ...]
    digests: frozenset[bytes]


class Pages:
    """Pages that were read lately. They never change, so that a list is read again by what was appended to it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of: OrderedDict[_Page, _Flat] = OrderedDict()
        self._size = 0

    def get(self, page: _Page) -> _Flat | None:
        with self._lock:
            if (found := self._of.get(page)) is not None:
                self._of.move_to_end(page)
            return found

    def put(self, page: _Page, flat: _Flat) -> None:
        with self._lock:
            if page not in self._of:
                self._of[page] = flat
                self._size += len(flat.elements)
            while self._size > REMEMBERED:
                self._size -= len(self._of.popitem(last=False)[1].elements)


def unpack(bodies: Sequence[bytes], fetch: Fetch, pages: Pages | None = None) -> list[Unpacked]:
    """Read rows, with one fetch for each level of the longest list of all, and none for pages that are remembered."""
    opened = [_opened(body) for body in bodies]
    reading = _Reading(fetch, pages or Pages())
    reading.read({entry for _, values in opened for value in values if isinstance(value, list) for entry in value})
    return [reading.unpacked(own, values) for own, values in opened]


class _Reading:
    """The pages of some rows."""

    def __init__(self, fetch: Fetch, pages: Pages) -> None:
        self._fetch, self._pages = fetch, pages
        self._flat: dict[_Page, _Flat] = {}
        self._read: dict[_Page, list[Element | _Page]] = {}

    def read(self, entries: Iterable[Element | _Page]) -> None:
        """Read the pages among some entries, and all below them."""
        while wanted := [entry for entry in entries if isinstance(entry, _Page) and not self._is_known(entry)]:
            found = self._fetch([page.digest for page in wanted])
            self._read.update((page, list(_entries(found[page.digest], page.level - 1))) for page in wanted)
            entries = {entry for page in wanted for entry in self._read[page]}

    def _is_known(self, page: _Page) -> bool:
        if page in self._read or page in self._flat:
            return True
        if (flat := self._pages.get(page)) is not None:
            self._flat[page] = flat
        return flat is not None

    def unpacked(self, own: Payload | None, values: Sequence[Element | list[Element | _Page]]) -> Unpacked:
        whole: list[Value] = []
        digests: set[bytes] = set()
        for value in values:
            if isinstance(value, list):
                elements, below = self._below(value)
                whole.append(elements)
                digests |= below
            else:
                whole.append(value)
        return Unpacked(own, whole, frozenset(digests))

    def _below(self, entries: Iterable[Element | _Page]) -> tuple[list[Element], set[bytes]]:
        elements: list[Element] = []
        digests: set[bytes] = set()
        for entry in entries:
            if isinstance(entry, _Page):
                flat = self._flattened(entry)
                elements += flat.elements
                digests |= flat.digests
            else:
                elements.append(entry)
        return elements, digests

    def _flattened(self, page: _Page) -> _Flat:
        flat = self._flat.get(page)
        if flat is None:
            elements, digests = self._below(self._read[page])
            flat = self._flat[page] = _Flat(tuple(elements), frozenset({*digests, page.digest}))
            self._pages.put(page, flat)
        return flat


def needed_by(bodies: Sequence[bytes], fetch: Fetch) -> set[bytes]:
    """Return the digests of all parts that rows need, pages among them."""
    return {digest for row in unpack(bodies, fetch) for digest in row.needed()}


def _entries(page: bytes, level: int) -> Iterator[Element | _Page]:
    at = 0
    while at < len(page):
        element, at = _element(page, at)
        yield _above(element, level)


def _above(element: Element, level: int) -> Element | _Page:
    return _Page(level, element) if level and not isinstance(element, Payload) else element


def _opened(body: bytes) -> tuple[Payload | None, list[Element | list[Element | _Page]]]:
    length, at = _read_number(body, 0)
    own = Payload.of(body[at : at + length]) if length else None
    at += length
    values: list[Element | list[Element | _Page]] = []
    while at < len(body):
        many, at = body[at] == _MANY, at + 1
        if not many:
            element, at = _element(body, at)
            values.append(element)
            continue
        found: list[Element | _Page] = []
        levels, at = _read_number(body, at)
        for level in reversed(range(levels)):
            count, at = _read_number(body, at)
            for _ in range(count):
                element, at = _element(body, at)
                found.append(_above(element, level))
        values.append(found)
    return own, values


def _element(data: bytes, at: int) -> tuple[Element, int]:
    if data[at] == _PART:
        end = at + 1 + DIGEST_BYTES
        return data[at + 1 : end], end
    length, at = _read_number(data, at + 1)
    return Payload.of(data[at : at + length]), at + length


def _number(value: int) -> bytes:
    """Write a number with seven bits in a byte, the low ones first."""
    written = bytearray()
    while value > 0x7F:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)


def _read_number(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte, at = data[at], at + 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
