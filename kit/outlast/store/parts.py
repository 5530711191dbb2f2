"""Values that are kept once: what is not tiny is a part, named by what it says, and alike lists share their pages.

A list is written as a number is in base 8: eight references make a page, eight pages a page of the next level, and
a checkpoint names what is left over on each level. Full pages are parts, and never change while the list grows: a list
of any length costs a checkpoint a few hundred bytes, and what was appended.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import NamedTuple

PAGE = 8
"""References in a page."""

TINY = 48
"""Bytes that are not worth a part of their own."""

DIGEST_BYTES = 16

_INLINE, _PART = 0, 1
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
    """Values in the form in which a row holds them, with the parts they need, by digest."""

    body: bytes
    parts: Mapping[bytes, bytes]


def digest(content: bytes) -> bytes:
    """Name a part by its content."""
    return blake2b(content, digest_size=DIGEST_BYTES).digest()


def pack(values: Iterable[Value], *, own: Payload | None = None) -> Packed:
    """Write values down; `own` stays in the row whatever its size, since no other row has the same."""
    parts: dict[bytes, bytes] = {}
    written = [b"" if own is None else own.content]
    body = [_number(len(written[0])), written[0]]
    for value in values:
        if isinstance(value, Payload | bytes):
            body += [bytes([_ONE]), _reference(value, parts)]
        else:
            body += [bytes([_MANY]), _list(value, parts)]
    return Packed(b"".join(body), parts)


def _reference(element: Element, parts: dict[bytes, bytes]) -> bytes:
    if isinstance(element, Payload):
        content = element.content
        if len(content) <= TINY:
            return bytes([_INLINE]) + _number(len(content)) + content
        element = _kept(content, parts)
    return bytes([_PART]) + element


def _kept(content: bytes, parts: dict[bytes, bytes]) -> bytes:
    name = digest(content)
    parts[name] = content
    return name


def _list(elements: Sequence[Element], parts: dict[bytes, bytes]) -> bytes:
    levels: list[list[bytes]] = []
    references = [_reference(element, parts) for element in elements]
    while references:
        full = len(references) - len(references) % PAGE
        pages = [b"".join(references[at : at + PAGE]) for at in range(0, full, PAGE)]
        levels.append(references[full:])
        references = [bytes([_PART]) + _kept(page, parts) for page in pages]
    # From the top, where the oldest are.
    written = [_number(len(levels))]
    for level in reversed(levels):
        written += [_number(len(level)), *level]
    return b"".join(written)


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


def unpack(bodies: Sequence[bytes], fetch: Fetch) -> list[Unpacked]:
    """Read rows, with one fetch for each level of the longest list of all."""
    opened = [_Opened(*_opened(body), set()) for body in bodies]
    while wanted := list(dict.fromkeys(digest for row in opened for digest in row.turn())):
        pages = fetch(wanted)
        for row in opened:
            row.replace(pages)
    return [row.closed() for row in opened]


class _Opened(NamedTuple):
    """A row whose lists may have pages that were not read yet."""

    own: Payload | None
    values: list[Element | list[Element | _Page]]
    pages: set[bytes]

    def turn(self) -> list[bytes]:
        """Return the pages to be read next."""
        lists = (value for value in self.values if isinstance(value, list))
        found = [entry.digest for entries in lists for entry in entries if isinstance(entry, _Page)]
        self.pages.update(found)
        return found

    def replace(self, pages: Mapping[bytes, bytes]) -> None:
        for value in self.values:
            if isinstance(value, list):
                value[:] = [entry for old in value for entry in _turned(old, pages)]

    def closed(self) -> Unpacked:
        return Unpacked(self.own, self.values, frozenset(self.pages))  # type: ignore[arg-type]  # no page is left


def needed_by(bodies: Sequence[bytes], fetch: Fetch) -> set[bytes]:
    """Return the digests of all parts that rows need, pages among them."""
    return {digest for row in unpack(bodies, fetch) for digest in row.needed()}


def _turned(entry: Element | _Page, pages: Mapping[bytes, bytes]) -> Iterator[Element | _Page]:
    if not isinstance(entry, _Page):
        yield entry
        return
    page, at = pages[entry.digest], 0
    while at < len(page):
        element, at = _element(page, at)
        yield _above(element, entry.level - 1)


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
