"""Following runs: one topic a followed run and process; followers keep a cursor and no buffer of their own.

A topic holds the newest events in a small ring. A follower that is behind the ring reads the store, so a slow reader
costs nobody anything. Nothing enters a topic before it is committed.
"""

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Self

from outlast.core.records import Invocation
from outlast.engine.waiting import done_within, set_within
from outlast.store.reading import Reader

RING_EVENTS = 256
RING_BYTES = 1 << 20
PAGE = 500
"""Events read from the store at once."""


class Entry:
    """One committed event as followers see it. `frame` is for whoever renders it once for all readers."""

    __slots__ = ("attempt", "frame", "position", "text")

    def __init__(self, position: int, attempt: int, text: str) -> None:
        self.position, self.attempt, self.text = position, attempt, text
        self.frame: bytes | None = None


class Topic:
    """What this process knows of one run: how far its log is committed, and its end."""

    def __init__(self, number: int, last: int, *, local: bool) -> None:
        self.number = number
        self.last = last
        self.local = local
        self.followers = 0
        self.waiting = 0
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the run is final, or when this process has nothing more to say of it."""
        self.final: Invocation | None = None
        self.gone = False
        """It was deleted while somebody followed it."""
        self._changed: asyncio.Future[None] | None = None
        self._ring: deque[Entry] = deque()
        self._bytes = 0

    def publish(self, events: Iterable[tuple[int, int, str]]) -> None:
        """Take committed events, in order; what is known already is ignored."""
        for position, attempt, text in events:
            if position <= self.last:
                continue
            if position != self.last + 1 or not self.followers:
                self._ring.clear()
                self._bytes = 0
            self.last = position
            if self.followers:
                self._keep(Entry(position, attempt, text))
        self.wake()

    def _keep(self, entry: Entry) -> None:
        self._ring.append(entry)
        self._bytes += len(entry.text)
        while len(self._ring) > RING_EVENTS or self._bytes > RING_BYTES:
            self._bytes -= len(self._ring.popleft().text)

    def end(self, final: Invocation) -> None:
        """Take the final record; it is committed with or after the last event."""
        if self.final is None:
            self.final = final
            self.last = max(self.last, final.last_position)
        self.leave()

    def leave(self) -> None:
        """Let go of whoever follows or waits."""
        if not self.ended.done():
            self.ended.set_result(None)
        self.wake()

    def wake(self) -> None:
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)

    def behind(self, after: int) -> list[Entry] | None:
        """Return what the ring has after a position, or None when the ring begins later."""
        if not self._ring or self._ring[0].position > after + 1 or self._ring[-1].position != self.last:
            return None
        return list(_from(self._ring, after))

    async def change(self, timeout: float | None) -> None:
        """Wait until something happens, or `timeout` seconds."""
        if self._changed is None or self._changed.done():
            self._changed = asyncio.get_running_loop().create_future()
        await done_within(self._changed, timeout)


def _from(ring: deque[Entry], after: int) -> Iterator[Entry]:
    start = max(0, after + 1 - ring[0].position)
    for index in range(start, len(ring)):
        yield ring[index]


class Follower:
    """One reader of one run. Use as a context manager, and call `next` until `done`."""

    def __init__(self, topics: "Topics", topic: Topic, after: int) -> None:
        self._topics, self.topic = topics, topic
        self.cursor = after

    @property
    def final(self) -> Invocation | None:
        return self.topic.final

    @property
    def done(self) -> bool:
        """The run is final and everything in its log was returned."""
        return self.topic.final is not None and self.cursor >= self.topic.final.last_position

    @property
    def closed(self) -> bool:
        """There is nothing more to be had here: this worker is shutting down, or the run was deleted."""
        return self.topic.gone or self._topics.closed(self.topic)

    def __enter__(self) -> Self:
        self.topic.followers += 1
        return self

    def __exit__(self, *_: object) -> None:
        self.topic.followers -= 1
        self._topics.forget(self.topic)

    async def next(self, timeout: float) -> list[Entry]:
        """Return the next committed events; an empty list after `timeout` seconds, at the end, or when closed."""
        deadline = asyncio.get_running_loop().time() + timeout
        while not self.done and not self.closed:
            if self.cursor < self.topic.last and (entries := await self._read()):
                self.cursor = entries[-1].position
                return entries
            if self.topic.final is not None and self.cursor < self.topic.last:
                # Its log was deleted meanwhile. There is no end to tell: it would say that this was all.
                self.topic.gone = True
                break
            remaining = deadline - asyncio.get_running_loop().time()
            if remaining <= 0:
                break
            await self.topic.change(remaining)
        return []

    async def _read(self) -> list[Entry]:
        entries = self.topic.behind(self.cursor)
        if entries is not None:
            return entries
        events = await self._topics.read.events(self.topic.number, after=self.cursor, limit=PAGE)
        return [Entry(event.position, event.attempt, event.text) for event in events]


class Topics:
    """All topics of this process, and the reader that feeds those of other workers' runs."""

    def __init__(self, read: Reader, poll_seconds: float) -> None:
        self.read = read
        self._poll = poll_seconds
        self._topics: dict[int, Topic] = {}
        self._hint = asyncio.Event()
        self._first = 0
        """The run whose turn it is, when there is more than is read at once."""
        self._closing = False
        self._closed = False

    def open(self, number: int, last: int, *, local: bool) -> Topic:
        """Return the topic of a run, made if nobody follows it yet. `last` is a committed position."""
        topic = self._topics.get(number)
        if topic is None:
            topic = self._topics[number] = Topic(number, last, local=local)
            if self.closed(topic):
                topic.leave()
            elif not local:
                self._hint.set()
        return topic

    def get(self, number: int) -> Topic | None:
        return self._topics.get(number)

    def set_local(self, number: int, local: bool) -> None:
        """A run started, or stopped, running in this process."""
        if topic := self._topics.get(number):
            topic.local = local
            self._hint.set()

    def forget(self, topic: Topic) -> None:
        """Drop a topic that nobody follows or waits for."""
        if topic.followers == topic.waiting == 0 and self._topics.get(topic.number) is topic:
            del self._topics[topic.number]

    def hint(self, numbers: Iterable[int] | None = None) -> None:
        """Something was committed elsewhere: in these runs, or, with None, anywhere."""
        if numbers is None or any(number in self._topics for number in numbers):
            self._hint.set()

    @property
    def remote(self) -> bool:
        """Whether somebody follows a run of another worker."""
        return any(not topic.local and topic.final is None for topic in self._topics.values())

    def closed(self, topic: Topic) -> bool:
        return self._closed or (self._closing and not topic.local)

    def close(self, *, all: bool) -> None:
        """End the streams of runs that are not running here, or of all runs."""
        self._closing, self._closed = True, self._closed or all
        for topic in self._topics.values():
            if self.closed(topic):
                topic.leave()

    async def feed(self) -> None:
        """Read what other workers committed, until cancelled."""
        while True:
            again = await self._pass()
            if again:
                continue
            await set_within(self._hint, self._poll)
            self._hint.clear()

    async def _pass(self) -> bool:
        """Read once for all topics of other workers' runs; say whether there may be more at once."""
        remote = {t.number: t.last for t in self._topics.values() if not t.local and t.final is None}
        if not remote:
            return False
        tails = await self.read.tails(remote, limit=PAGE, first=self._first)
        for number, tail in tails.runs.items():
            topic = self._topics.get(number)
            if topic is None:
                continue
            if tail.gone:
                topic.gone = True
                topic.leave()
                continue
            topic.publish((event.position, event.attempt, event.text) for event in tail.events)
            if tail.final is not None and topic.last >= tail.final.last_position:
                topic.end(tail.final)
        self._first = tails.next or 0
        return tails.next is not None
