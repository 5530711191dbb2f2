"""Turns what a graph streams and commits into the `agent.*` events of its run.

Text is told while it is streamed. That a model answer is finished is told in the transaction that stores the checkpoint
holding it: a finished answer is one the history has.
"""

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, ToolMessage
from langchain_core.runnables import RunnableConfig

from outlast.adapters.events import Event, Message
from outlast.adapters.journal import Outcome, ToolCall, finished
from outlast.adapters.outputs import total
from outlast.adapters.run import Place, Run
from outlast.core.errors import NotJSON
from outlast_langgraph import places
from outlast_langgraph.answers import IS_SEEN, ModelAnswers
from outlast_langgraph.messages import stop_reason, told, tool_calls, usage_of


@dataclass(slots=True)
class Observed:
    """What a checkpoint makes true."""

    calls: list[ToolCall] = field(default_factory=list)
    closed: list[tuple[ToolCall, Outcome]] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)


@dataclass(slots=True)
class _Stream:
    """A model answer that is being streamed in one task of a graph."""

    task: str
    message: Message
    ids: set[str]
    ended: bool = False


class Observer:
    """Watches one attempt."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.answering = False
        """Whether this run hands over answers of a person."""
        self.told: set[str | None] = set()
        """Provider's ids of calls of nodes, of which the journal tells where their tools run."""
        self.steady: set[str] = {""}
        """Namespaces of the graphs that keep their state: ids of their tasks are the same in every attempt."""
        self.answers = ModelAnswers(run.journal, run.context.lease)
        self._writing: set[asyncio.Future[None]] = set()
        self._known: set[str] = set()
        self._streams: list[_Stream] = []
        self._usages: list[Mapping[str, Any]] = []

    def enter(self, config: RunnableConfig) -> None:
        """Note that the code of a task is entered. Raises RunFailed (`cannot_recover`) where it cannot be entered again."""
        task = places.namespace(config)
        if places.is_called(config):
            self.steady.add(task.rpartition("|")[0])
        self.answers.enter(places.task(self.steady, task), task)

    def leave(self, config: RunnableConfig) -> None:
        """Note that the code of a task is done."""
        task = places.namespace(config)
        self.answers.entries.leave(places.task(self.steady, task), task)

    def lose(self, metadata: dict[str, Any] | None = None) -> None:
        """Note that a model is called, unless it is called for an answer that is kept."""
        if not IS_SEEN.get():
            task = places.namespace(places.within(RunnableConfig(metadata=metadata or {})))
            self.answers.lose(places.task(self.steady, task), task)

    def place(self, config: RunnableConfig) -> Place:
        """Return where code runs, with what was counted there since it was entered."""
        task = places.namespace(config)
        place = places.task(self.steady, task)
        return Place(place, self.answers.entries.at(place, task).counts)

    def loaded(self, namespace: str, values: Mapping[str, Any]) -> None:
        """A history was read: its messages are no news."""
        self._known.update(message.id for message in _messages(values) if message.id)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Surround the storing of what a task wrote."""
        over = asyncio.get_running_loop().create_future()
        self._writing.add(over)
        try:
            yield
        finally:
            self._writing.discard(over)
            over.set_result(None)

    async def stored(self) -> None:
        """Wait until what tasks wrote so far is stored. May be called in any event loop."""
        if not self.run.on_loop:
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self.stored(), self.run.context.loop))
        elif writing := [*self._writing]:
            await self.run.context.barrier()
            await asyncio.wait(writing)

    # What streams ---------------------------------------------------------------------------------------------------

    def take(self, namespace: Sequence[str], mode: str, payload: Any) -> None:
        """Take the next item of the graph's stream."""
        match mode:
            case "messages":
                chunk, metadata = payload
                if isinstance(chunk, AIMessageChunk):
                    self._chunk(chunk, metadata)
            case "custom":
                self._custom(payload)
            case "tasks":
                self._task(namespace, payload)

    def _custom(self, payload: Any) -> None:
        try:
            self.run.events.post(payload)
        except NotJSON:
            self.run.events.post(
                {"type": "agent.raw", "source": "langgraph", "name": "custom", "data": repr(payload)}
            )  # fmt: skip

    def _task(self, namespace: Sequence[str], payload: Mapping[str, Any]) -> None:
        context = self.run.context
        step_id = f"{context.invocation_id}.a{context.attempt}.{payload['id']}"
        event = {"step_id": step_id, "name": payload["name"], "kind": "node", "path": list(namespace)}
        if "triggers" in payload:
            self.run.events.post({"type": "agent.step.started", **event})
        else:
            self.run.events.post({"type": "agent.step.finished", **event})

    def _chunk(self, chunk: AIMessageChunk, metadata: Mapping[str, Any]) -> None:
        stream = self._stream_of(str(metadata.get("langgraph_checkpoint_ns", "")), chunk.id, metadata)
        if stream is None:
            return
        events, message = self.run.events, stream.message
        for index, (kind, text) in enumerate(_texts(chunk)):
            events.delta(message, (kind, index if kind != "text" else 0), kind, text)
        for call in chunk.tool_call_chunks:
            key = ("call", call.get("index") if call.get("index") is not None else call.get("id"))
            events.delta(
                message, key, "tool_call", call.get("args") or "", call_id=call.get("id"), name=call.get("name")
            )
        stream.ended = stream.ended or chunk.chunk_position == "last"

    def _stream_of(self, task: str, id: str | None, metadata: Mapping[str, Any]) -> _Stream | None:
        """Find what a chunk belongs to; the closing chunk of an answer may carry another id than the rest."""
        here = [stream for stream in self._streams if stream.task == task and not stream.ended]
        if id is not None and id in self._known:
            return None
        for stream in here:
            if id in stream.ids:
                return stream
        if id is not None and id.startswith("lc_run-") and len(here) == 1 and not _is_run(here[0].ids):
            here[0].ids.add(id)
            return here[0]
        message = self.run.events.start_message(_path(task)[:-1], model=metadata.get("ls_model_name"))
        stream = _Stream(task, message, {id or ""})
        self._streams.append(stream)
        return stream

    # What is committed ----------------------------------------------------------------------------------------------

    def observe(self, namespace: str, values: Mapping[str, Any]) -> Observed:
        """Say what a checkpoint holds that the one before it did not."""
        seen = Observed()
        messages = _messages(values)
        for message in [one for one in messages if one.id and one.id not in self._known]:
            if message.id in self._known:
                continue
            self._known.add(str(message.id))
            if isinstance(message, AIMessage):
                self._answer(namespace, message, seen)
            elif isinstance(message, ToolMessage) and (answer := _asking(messages, message)) is not None:
                self._result(message, answer, seen)
        self._end_streams(namespace, seen)
        return seen

    def end(self) -> None:
        """Close what no checkpoint will hold any more."""
        for stream in self._streams:
            self.run.events.post(
                self.run.events.finished_message(stream.message, stop_reason="aborted", stored=False)
            )  # fmt: skip
        self._streams.clear()
        self.run.events.flush()

    def _answer(self, namespace: str, answer: AIMessage, seen: Observed) -> None:
        events = self.run.events
        message = self._streamed(namespace, answer) or events.start_message(_path(namespace))
        self._complete(message, answer)
        usage = usage_of(answer)
        seen.calls.extend(tool_calls(answer))
        seen.events.append(
            events.finished_message(message, stop_reason=stop_reason(answer).value, stored=True, usage=usage)
        )
        if usage:
            self._usages.append(usage)
            model = answer.response_metadata.get("model_name")
            seen.events.append({"type": "agent.usage", "model": model, **usage, "total": total(self._usages)})

    def _streamed(self, namespace: str, answer: AIMessage) -> Message | None:
        """Find the stream an answer came by: by its id, else the only one of this step whose text fits."""
        here = [stream for stream in self._streams if stream.task.rpartition("|")[0] == namespace]
        named = [stream for stream in here if answer.id in stream.ids]
        fitting = [stream for stream in here if answer.text.startswith(stream.message.text())]
        found = named or (fitting if len(fitting) == 1 else [])
        if not found:
            return None
        self._streams.remove(found[0])
        return found[0].message

    def _complete(self, message: Message, answer: AIMessage) -> None:
        """Tell what the stream did not, or not yet."""
        events, told = self.run.events, message.text()
        if answer.text != told and answer.text.startswith(told):
            events.delta(message, ("text", 0), "text", answer.text[len(told) :])
        for part in message.parts.values():
            if part.kind != "tool_call":
                events.finish_part(part)
        told_calls = {part.call_id: part for part in message.parts.values() if part.kind == "tool_call"}
        for index, call in enumerate(answer.tool_calls):
            raw = json.dumps(call["args"])
            if call["id"] not in told_calls:
                events.delta(message, ("stored", index), "tool_call", raw, call_id=call["id"], name=call["name"])
            part = told_calls.get(call["id"]) or message.parts["stored", index]
            events.finish_part(part, arguments=call["args"], raw=part.text)

    def _result(self, message: ToolMessage, answer: AIMessage, seen: Observed) -> None:
        """A node of the user's own answered a call by itself: no journal has told of it."""
        alike = [call for call in tool_calls(answer) if call.call_id == message.tool_call_id]
        if any(self.run.journal.told(call) for call in alike):
            return
        call = alike[0]
        outcome = Outcome("error" if message.status == "error" else "ok", told(message))
        seen.closed.append((call, outcome))
        if message.tool_call_id not in self.told:
            seen.events.append(finished(call, outcome, origin="executed"))

    def _end_streams(self, namespace: str, seen: Observed) -> None:
        """The step is over: what it streamed and did not keep was not for the history."""
        over = [stream for stream in self._streams if stream.task.rpartition("|")[0] == namespace]
        for stream in over:
            self._streams.remove(stream)
            seen.events.append(
                self.run.events.finished_message(stream.message, stop_reason="stop", stored=False)
            )  # fmt: skip


def _messages(values: Mapping[str, Any]) -> list[BaseMessage]:
    return [
        message
        for value in values.values()
        for message in (value if isinstance(value, list) else [value])
        if isinstance(message, BaseMessage)
    ]


def _asking(messages: Sequence[BaseMessage], result: ToolMessage) -> AIMessage | None:
    """Find the answer whose call a result belongs to: the last one that is before it."""
    before = takewhile(lambda message: message is not result, messages)
    answers = [message for message in before if isinstance(message, AIMessage)]
    return next((one for one in reversed(answers) if result.tool_call_id in _call_ids(one)), None)


def _call_ids(answer: AIMessage) -> list[str]:
    return [call["id"] or "" for call in answer.tool_calls]


def _texts(chunk: AIMessageChunk) -> list[tuple[str, str]]:
    """Return the text and reasoning in a chunk."""
    if isinstance(chunk.content, str):
        return [("text", chunk.content)] if chunk.content else []
    found = []
    for block in chunk.content:
        if isinstance(block, str):
            found.append(("text", block))
        elif isinstance(block.get("text"), str):
            found.append(("text", block["text"]))
        elif isinstance(thought := block.get("thinking") or block.get("reasoning"), str):
            found.append(("reasoning", thought))
    return found


def _path(namespace: str) -> list[str]:
    return [part.split(":")[0] for part in namespace.split("|") if part and not part.isdigit()]


def _is_run(ids: set[str]) -> bool:
    return any(id.startswith("lc_run-") for id in ids)
