"""What chat models said in a node that runs tools, or asks a person, by itself: entered again, it is told the same.

An answer is stored when a tool begins where it was given, before the tool's start is, or a question is asked there; a
node that does neither stores none. Asked the same in a later attempt or in the run that brings a person's decision, the
model is not called, so that the node goes on with the calls that it had, or that the person was shown.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict, cast

from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    SystemMessage,
    ToolMessage,
    message_chunk_to_message,
)

from outlast.adapters.journal import ToolCall, ToolJournal, current_tool_call
from outlast.core.errors import RunFailed
from outlast.core.jsontext import fingerprint
from outlast.core.records import Call
from outlast_langgraph.entries import Entries, is_within
from outlast_langgraph.messages import decoded, encoded, if_json

ANSWER = "answer:"
"""Begins the keys of answers in the journal."""

IS_SEEN: ContextVar[bool] = ContextVar("outlast_langgraph_answer_is_seen", default=False)
"""Set while a model is called whose answer is kept here."""


class ModelFailed(RuntimeError):
    """The model had failed when the same was asked before, and the code had gone on with another answer."""


@dataclass(eq=False, slots=True)
class Asked:
    """One call of a model. While its answer is streamed, or is left half streamed, it may be acted on already."""

    at: str
    task: str
    messages: Sequence[BaseMessage]
    options: Mapping[str, Any]
    state: Literal["asked", "streaming", "failed", "answered"] = "asked"
    answer: AIMessage | None = None
    kept: Any = None
    """The answer, encoded when it was given, for the code may change it; None where it cannot be."""
    failure: str | None = None
    _streamed: AIMessageChunk | None = None

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """Surround the call of the model, or the wait for the next piece of its answer."""
        token = IS_SEEN.set(True)
        try:
            yield
        except BaseException as error:
            self.failure = f"{type(error).__name__}: {error}"
            if self._streamed is None:
                self.state = "failed"
            raise
        finally:
            IS_SEEN.reset(token)

    def answered(self, answer: AIMessage) -> None:
        self.answer, self.kept, self.state = answer, encoded(answer), "answered"

    def came(self, piece: AIMessageChunk | None) -> None:
        """Take the next piece of a streamed answer; None ends it."""
        if piece is not None:
            self._streamed = piece if self._streamed is None else self._streamed + piece
            self.state = "streaming"
        elif self._streamed is not None:
            self.answered(cast(AIMessage, message_chunk_to_message(self._streamed)))

    def as_chunk(self) -> AIMessageChunk:
        """Return the answer as a stream of one piece."""
        assert self.answer is not None
        return AIMessageChunk(**self.answer.model_dump(exclude={"type"}), chunk_position="last")

    def digest(self) -> str:
        """Name what was asked. Instructions may tell the time, and ids are made anew: neither is part of it."""
        told = [_told(message) for message in self.messages if not isinstance(message, SystemMessage)]
        return fingerprint([told, {name: if_json(value, type(value).__name__) for name, value in self.options.items()}])


class _Note(TypedDict):
    """What the journal has of one call of a model."""

    order: list[int]
    place: str
    asked: str | None
    """The digest of what was asked; None for a note of the tool alone."""
    answer: Any
    """Encoded; None where there was none yet, or the model failed."""
    failure: str | None
    """How the model failed, where the code went on with another answer; empty where it had asked the same again."""
    id: str | None
    tool: str | None
    """The tool that was about to begin; None for a question to a person."""


@dataclass(slots=True)
class _Lost:
    """Models that were called at a place and whose answers cannot be kept, and the tools that began there after them."""

    models: set[str] = field(default_factory=set)
    """The tasks that called them."""
    tools: list[tuple[str, ToolCall]] = field(default_factory=list)
    is_noted: bool = False


class ModelAnswers:
    """The answers of models in one attempt. What is seen in a task is forgotten when the task has returned."""

    def __init__(self, journal: ToolJournal, lease: tuple[int, int]) -> None:
        self.entries: Entries[_Note] = Entries()
        self._lease, self._journal = lease, journal
        self._asked: defaultdict[str, list[Asked]] = defaultdict(list)
        self._stored: defaultdict[str, list[tuple[str, _Note]]] = defaultdict(list)
        """With the tasks of this attempt that made them."""
        self._lost: defaultdict[str, _Lost] = defaultdict(_Lost)
        self._number = 0

    def load(self, rows: Sequence[Call]) -> None:
        """Take what was stored from the journal."""
        found: list[_Note] = [self._journal.noted(row) for row in rows if row.key.startswith(ANSWER)]
        for note in sorted(found, key=lambda note: note["order"]):
            self._stored[note["place"]].append(("", note))

    def has(self, id: str) -> bool:
        """Say whether an answer was stored, by its id."""
        return any(note["id"] == id for notes in self._stored.values() for _, note in notes)

    def enter(self, place: str, task: str) -> None:
        """Note that the code of a task is entered.

        Raises RunFailed (`cannot_recover`) when it was before, and tools had begun there for answers that are lost.
        """
        stored = {at: notes for at, notes in self._stored.items() if _place(at) == place}
        if self.entries.enter(place, task, stored):
            for at, asked in self._asked.items():
                if _place(at) == place:
                    asked[:] = [one for one in asked if not is_within(one.task, task)]
            for lost in [lost for at, lost in self._lost.items() if _place(at) == place]:
                began = [call for by, call in lost.tools if is_within(by, task) and not self._journal.has_raised(call)]
                if began and any(is_within(by, task) for by in lost.models):
                    raise cannot_say_again(began[-1].name)

    def ask(self, place: str, task: str, messages: Sequence[BaseMessage], options: Mapping[str, Any]) -> Asked:
        """Note that a model is called; the answer is there already if it was stored.

        Raises ModelFailed where the model had failed, and RunFailed (`cannot_recover`) when the code asks something else than before a tool had begun.
        """
        asked = Asked(_around(place), task, [*messages], options)
        left = self.entries.at(place, task).left.get(asked.at)
        if left and (answer := _taken(left, asked.digest())) is not None:
            asked.answered(answer)
        else:
            self._asked[asked.at].append(asked)
        return asked

    def lose(self, place: str, task: str) -> None:
        """Note that a model is called whose answer cannot be kept."""
        self._lose(_around(place), task)

    def _lose(self, at: str, task: str) -> None:
        self._lost[at].models.add(task)
        self._lost[at].is_noted = False

    def before_tool(self, place: str, task: str, call: ToolCall) -> tuple[dict[str, Any], bool]:
        """Return what has to be noted in the journal before a tool begins, and whether answers were lost; both once."""
        at = _around(place)
        notes = self._notes(at, call.name)
        if (stored := self._stored.get(at)) and all(note["tool"] is None for _, note in stored):
            notes |= self._note(at, task, None, call.name)
        lost = self._lost.get(at)
        if lost is None:
            return notes, False
        lost.tools.append((task, call))
        is_new, lost.is_noted = not lost.is_noted, True
        return notes, is_new

    def at_question(self, task_id: str) -> dict[str, Any]:
        """Return, once, what has to be noted in the journal before a person is asked in a task."""
        notes: dict[str, Any] = {}
        for at in self._asked_in(task_id):
            notes |= self._notes(at, None)
        return notes

    def _notes(self, at: str, tool: str | None) -> dict[str, Any]:
        left, notes, here = list[Asked](), dict[str, Any](), self._asked.get(at, [])
        for number, asked in enumerate(here):
            later = [one.digest() for one in here[number + 1 :] if one.state == "answered"]
            if asked.failure is not None and asked.digest() in later:
                asked.state, asked.failure = "failed", ""
            match asked.state:
                case "answered" if asked.kept is not None:
                    notes |= self._note(at, asked.task, asked, tool)
                case "asked":
                    notes |= self._note(at, asked.task, asked, tool)
                    left.append(asked)
                case "failed":
                    # With no answer after it there is nothing that the code had for it, and it may ask again.
                    notes |= self._note(at, asked.task, asked, tool) if later else {}
                case _:
                    self._lose(at, asked.task)
        self._asked[at] = left
        return notes

    def _note(self, at: str, task: str, asked: Asked | None, tool: str | None) -> dict[str, Any]:
        self._number += 1
        note = _Note(
            order=[*self._lease, self._number],
            place=at,
            asked=None if asked is None else asked.digest(),
            answer=None if asked is None else asked.kept,
            failure=None if asked is None else asked.failure,
            id=None if asked is None or asked.answer is None else asked.answer.id,
            tool=tool,
        )
        self._stored[at].append((task, note))
        return {f"{ANSWER}{'.'.join(map(str, note['order']))}": note}

    def returned(self, task_id: str) -> None:
        """Forget what was seen in a task that is not entered again."""
        for at in self._asked_in(task_id):
            del self._asked[at]

    def _asked_in(self, task_id: str) -> list[str]:
        return [at for at in self._asked if _place(at).endswith(f":{task_id}")]


def cannot_say_again(tool: str) -> RunFailed:
    """Return the failure of a run whose code would ask a model again after a tool had begun for what it had said."""
    return RunFailed(
        "cannot_recover",
        f"a node of the graph runs tools and the model by itself, and the tool {tool!r} had started there: the model could "
        "ask for it again in other words. Use a ToolNode, or send a new message",
    )


def _taken(left: list[_Note], digest: str) -> AIMessage | None:
    """Take the answer to what is asked from those that are left; None where the model has to be asked."""
    same = [note for note in left if note["asked"] == digest]
    if same:
        # What tries again until it has an answer has it at once.
        note = next((note for note in same if note["answer"] is not None or note["failure"]), same[0])
        if note["failure"] == "":
            raise _asks_otherwise(note["tool"])
        left.remove(note)
        if note["failure"]:
            raise ModelFailed(note["failure"])
        return None if note["answer"] is None else cast(AIMessage, decoded(note["answer"]))
    tool = next((note["tool"] for note in left if note["tool"] is not None), None)
    if tool is not None and any(note["answer"] is not None for note in left):
        raise _asks_otherwise(tool)
    return None


def _asks_otherwise(tool: str | None) -> RunFailed:
    what = "a person was asked" if tool is None else f"the tool {tool!r} had started"
    return RunFailed(
        "cannot_recover",
        f"a node of the graph runs tools and the model by itself, {what} there, and now the node asks the model something "
        "else than before: it could call the tool again in other words. Tell the model the same each time, use a ToolNode, "
        "or send a new message",
    )


def _around(place: str) -> str:
    """Tell what the code of a node asks from what the tools that it calls ask."""
    try:
        return f"{place}\n{current_tool_call().idempotency_key}"
    except LookupError:
        return place


def _place(at: str) -> str:
    return at.partition("\n")[0]


def _told(message: BaseMessage) -> list[Any]:
    told = [message.type, if_json(message.content, str(message.content))]
    if isinstance(message, AIMessage):
        told.append([[call["name"], call["args"], call["id"]] for call in message.tool_calls])
    elif isinstance(message, ToolMessage):
        told.append(message.tool_call_id)
    return told
