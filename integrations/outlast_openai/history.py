"""A conversation that is kept as the SDK's items: what of it is open, who speaks next, what a model may see."""

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from outlast.adapters.history import History
from outlast.adapters.items import StoredItems
from outlast.adapters.journal import Outcome, ToolCall
from outlast.core import jsontext
from outlast.core.records import Approval, ApprovalStatus
from outlast.core.transcript import Message, Role, last_answer, open_calls
from outlast_openai.contexts import Kept
from outlast_openai.inside import Parked
from outlast_openai.items import Item, as_text, is_note, note, output_of, parsed
from outlast_openai.messages import Entry, Row, entries, for_model

Contents = Sequence[tuple[str, Item]]


class OpenCall(NamedTuple):
    """A call of the last response that has no result."""

    call: ToolCall
    item: Item
    agent: str | None
    """Who asked for it."""

    def result(self, outcome: Outcome, preface: str = "") -> tuple[str, Item]:
        """Return its row: what its tool gave, as the model is told it, or why there is none."""
        value = outcome.output if outcome.value is None else outcome.value
        told = preface + as_text(value) if preface or not isinstance(value, str | list) else value
        return f"{self.call.key}:result", output_of(self.item, told, failed=outcome.failed)


class Conversation:
    """The items of one history, read once, then appended to by the run that has it."""

    def __init__(self, stored: StoredItems) -> None:
        self._stored = stored
        self.rows = [Row(one.id, jsontext.decode(one.item), one.invocation_number) for one in stored.stored]
        self.approvals: dict[str, Approval] = {}
        """What is known of decisions about the open calls and calls inside of them, by the calls' keys."""
        self._entries: list[Entry] | None = None

    @classmethod
    async def load(cls, history: History) -> "Conversation":
        """Read a history as it is committed."""
        conversation = cls(await history.stored_items())
        await conversation.read_decisions(history)
        return conversation

    async def read_decisions(self, history: History) -> None:
        """Read what was decided about the open calls, and about calls inside of them."""
        if opened := self.open_calls():
            keys = [call.key for key in opened for call in self.asking(key)]
            self.decided((await history.approvals(keys)).values())

    @property
    def entries(self) -> list[Entry]:
        if self._entries is None:
            self._entries = entries(self.rows)
        return self._entries

    @property
    def messages(self) -> list[Message]:
        """The history in neutral terms."""
        return [entry.message for entry in self.entries]

    @property
    def agent(self) -> str | None:
        """The agent that speaks next, where a handoff said so."""
        return next(
            (row.item["agent"] for row in reversed(self.rows) if "agent" in row.item and is_note(row.item)), None
        )

    @property
    def context(self) -> Any:
        """What the session has of the user's context object, or None."""
        found = (row.item["context"] for row in reversed(self.rows) if "context" in row.item and is_note(row.item))
        return next(found, None)

    def for_model(self) -> list[dict[str, Any]]:
        """Return what the model of the next response is sent.

        Where a handoff of this turn narrowed that, it is what the agent behind it was sent first, and all that followed.
        """
        for place in range(len(self.rows) - 1, -1, -1):
            item = self.rows[place].item
            if "view" in item and is_note(item):
                since = entries(self.rows[place + 1 :])
                if not any(entry.message.role is Role.USER for entry in since):
                    return for_model(since, item["view"])
                break
        return for_model(self.entries)

    @property
    def turn(self) -> list[Entry]:
        """What followed the last message of a user."""
        users = [index for index, entry in enumerate(self.entries) if entry.message.role is Role.USER]
        return self.entries[users[-1] + 1 :] if users else self.entries

    def refuse_known(self, ids: Iterable[str]) -> None:
        """Raise RunFailed for an id that is in the history, or twice among these."""
        self._stored.refuse_known(ids)

    def open_calls(self) -> dict[str, OpenCall]:
        """Return the calls of the last response that have no result, by their keys."""
        last = last_answer(self.messages)
        if last is None:
            return {}
        entry = self.entries[last]
        found = {}
        for place in open_calls(self.messages):
            row = entry.calls[place]
            request = entry.message.calls[place]
            call = ToolCall(row.id, request.id, request.name, parsed(request.arguments))
            found[row.id] = OpenCall(call, row.item, entry.note.get("agent"))
        return found

    @property
    def parked(self) -> dict[str, Parked]:
        """The agents in open calls that stopped before calls of their own, by the calls' keys."""
        opened = self.open_calls()
        notes = [row.item["parked"] for row in self.rows if "parked" in row.item and is_note(row.item)]
        return {one["key"]: Parked.of(one["key"], one) for one in notes if one["key"] in opened}

    def rounds(self, key: str) -> int:
        """Count how often the agent in a call has stopped."""
        return sum(is_note(row.item) and row.item.get("parked", {}).get("key") == key for row in self.rows)

    def asking(self, key: str) -> list[ToolCall]:
        """Return what a person may have to decide about before an open call goes on: it, and calls inside of it."""
        parked = self.parked.get(key)
        return [self.open_calls()[key].call, *(() if parked is None else parked.calls)]

    def waits(self, key: str) -> bool:
        """Say whether an open call waits for a person."""
        return any(self.is_open(call.key) for call in self.asking(key))

    def decided(self, approvals: Iterable[Approval]) -> None:
        """Take in what is known of decisions about the open calls, and calls inside of them."""
        self.approvals = {row.key: row for row in approvals}
        last = last_answer(self.messages)
        if last is None:
            return
        entry, opened = self.entries[last], self.open_calls()
        waiting = {key for key in opened if self.waits(key)}
        calls = zip(entry.message.calls, entry.calls, strict=True)
        entry.message = replace(
            entry.message, calls=tuple(replace(call, awaits_approval=row.id in waiting) for call, row in calls)
        )

    def is_open(self, key: str) -> bool:
        """Say whether a person has not decided yet about a call."""
        row = self.approvals.get(key)
        return row is not None and row.status is ApprovalStatus.OPEN

    def keep(self, context: Kept, *, number: int) -> list[Any]:
        """Return the parts of a write that stores what is new in the context object."""
        news = context.news()
        return [] if news is None else self.append([(uuid.uuid4().hex, note(context=news))], number=number)

    def append(self, contents: Contents, *, number: int) -> list[Any]:
        """Return the parts of a write that stores items at the end, and count them in. `number` is the run's."""
        parts = self._stored.add(contents, number=number)
        self.rows += [Row(id, item, number) for id, item in contents]
        self._entries = None
        return parts
