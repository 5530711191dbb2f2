"""Between the SDK's items and the neutral forms: inputs, transcripts, what a model is sent, how a response stopped."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from outlast.adapters.inputs import Content, InputMessage, refuse
from outlast.core.resume import (
    CANCELLED_RESULT,
    INTERRUPTED_RESULT,
    NOT_APPROVED_RESULT,
    NOT_RUN_RESULT,
    REJECTED_RESULT,
)
from outlast.core.transcript import CallRequest, Message, Role, StopReason
from outlast_openai.items import (
    Item,
    arguments_of,
    is_call,
    is_note,
    is_output,
    name_of,
    output_of,
    text_of,
    with_ids_of_their_own,
)

_ROLES = {"system": Role.SYSTEM, "developer": Role.SYSTEM, "user": Role.USER}
_FAILED = (INTERRUPTED_RESULT, NOT_RUN_RESULT, CANCELLED_RESULT, NOT_APPROVED_RESULT, REJECTED_RESULT)
_INCOMPLETE = {"max_output_tokens": StopReason.MAX_OUTPUT, "content_filter": StopReason.CONTENT_FILTER}
_FINISHED = {"length": StopReason.MAX_OUTPUT, "content_filter": StopReason.CONTENT_FILTER}


class Row(NamedTuple):
    """One item as it is stored."""

    id: str
    item: Item
    number: int | None = None
    """The run that stored it."""


@dataclass(slots=True)
class Entry:
    """A message in both forms: its rows, and, once it is whole, the neutral message."""

    rows: list[Row] = field(default_factory=list)
    message: Message = field(default_factory=lambda: Message(Role.ASSISTANT))
    note: Mapping[str, Any] = field(default_factory=dict)

    @property
    def said(self) -> bool:
        return self.message.role is Role.ASSISTANT

    @property
    def calls(self) -> list[Row]:
        return [row for row in self.rows if is_call(row.item)]

    @property
    def items(self) -> list[Item]:
        return [row.item for row in self.rows if not is_note(row.item)]


def entries(rows: Sequence[Row]) -> list[Entry]:
    """Read a history: what a model said in one response is one entry, and so is everything else."""
    found: list[Entry] = []
    response: Entry | None = None
    internal = False
    for row in rows:
        item = row.item
        if is_note(item):
            internal = bool(item.get("internal"))
            if "response" in item or "finished" in item:
                response = Entry([row], note=item.get("response") or item["finished"])
                found.append(response)
        elif is_output(item):
            response = None
            found.append(Entry([row], _result(item)))
        elif item.get("role") in _ROLES:
            response = None
            role = Role.INTERNAL if internal else _ROLES[item["role"]]
            found.append(Entry([row], Message(role, _content(item.get("content")))))
            internal = False
        else:
            if response is None:
                response = Entry()
                found.append(response)
            response.rows.append(row)
    for entry in found:
        if entry.said:
            entry.message = _said(entry)
    return found


def _said(entry: Entry) -> Message:
    """Make the neutral message of a response. Where no note says how it stopped, its items do."""
    note, items = entry.note, entry.items or list(entry.note.get("unsent", ()))
    texts = [item for item in items if item.get("role") == "assistant"]
    stop = StopReason(note["stop"]) if note.get("stop") in set(StopReason) else _stop_of(items)
    return Message(
        Role.ASSISTANT,
        note.get("text") or "".join(_text(item.get("content")) for item in texts),
        tuple(CallRequest(item["call_id"], name_of(item), arguments_of(item)) for item in items if is_call(item)),
        stop=stop,
        reasoning="\n".join(filter(None, (_reasoning(item) for item in items))),
        model=note.get("model"),
        usage=note.get("usage") or {},
    )


def _stop_of(items: Sequence[Item]) -> StopReason:
    if any(is_call(item) for item in items):
        return StopReason.TOOL_CALLS
    if any(item.get("status") in ("incomplete", "in_progress") for item in items):
        return StopReason.INTERRUPTED
    return StopReason.STOP


def _reasoning(item: Item) -> str:
    if item.get("type") != "reasoning":
        return ""
    parts = [*(item.get("summary") or ()), *(item.get("content") or ())]
    return "\n".join(part["text"] for part in parts if isinstance(part.get("text"), str))


def _result(item: Item) -> Message:
    text = text_of(item)
    return Message(Role.TOOL, text, call_id=item.get("call_id") or "", failed=text.startswith(_FAILED))


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join(part.get("text") or part.get("refusal") or "" for part in content or ())


def _content(content: Any) -> Content:
    """Return a user's content in the neutral form: parts of text are of the type `text`."""
    if content is None or isinstance(content, str):
        return content or ""
    parts = [dict(part) for part in content]
    return [{"type": "text", "text": part["text"]} if part.get("type") == "input_text" else part for part in parts]


def for_model(found: Sequence[Entry], before: Sequence[Item] = ()) -> list[dict[str, Any]]:
    """Return a history, behind items a model was sent `before`, as providers accept it; what is stored stays as it is.

    Each call has one result right behind its response, in the order of the calls; one that is missing is the interrupted
    result. A result that answers no call is left out, and so is reasoning that nothing follows.
    """
    sent: list[Item] = [*before]
    starts = [at for at, entry in enumerate(found) if entry.said]
    for first, behind in zip([0, *starts], [*starts, len(found)], strict=True):
        part = list(found[first:behind])
        answers = [entry.items[0] for entry in part if entry.message.role is Role.TOOL]
        rest = [entry for entry in part if entry.message.role is not Role.TOOL]
        if rest and rest[0].said:
            said = rest.pop(0)
            if any(item.get("type") != "reasoning" for item in said.items):
                sent.extend(said.items)
                sent.extend(_taken(answers, row.item) for row in said.calls)
        sent.extend(item for entry in rest for item in entry.items)
    return with_ids_of_their_own(sent)


def _taken(answers: list[Item], call: Item) -> Item:
    """Take the result of a call out of some results."""
    found = next((item for item in answers if item.get("call_id") == call["call_id"]), None)
    if found is None:
        return output_of(call, INTERRUPTED_RESULT, failed=True)
    answers.remove(found)
    return found


def from_input(message: InputMessage) -> dict[str, Any]:
    """Make the item of an input message."""
    if message.role == "tool":
        raise refuse("a tool message; results come from the tools of the agent")
    if message.fields:
        raise refuse(f"a message with {sorted(message.fields)}")
    if isinstance(message.content, str):
        return {"role": message.role, "content": message.content}
    kind = "output_text" if message.role == "assistant" else "input_text"
    return {"role": message.role, "content": [_part(part, kind) for part in message.content]}


def _part(part: Mapping[str, Any], text_kind: str) -> dict[str, Any]:
    match part:
        case {"type": "text", "text": text}:
            return {"type": text_kind, "text": text}
        case {"type": "image_url", "image_url": {"url": url, **more}}:
            return {"type": "input_image", "image_url": url, "detail": more.get("detail", "auto")}
        case _:
            return dict(part)


def stop_of_response(
    status: str | None, reason: str | None = None, *, finish: str | None = None, refused: bool, calls: bool
) -> StopReason:
    """Say why a response stopped: of the Responses API by its status, of Chat Completions by its `finish_reason`."""
    if status == "incomplete":
        return _INCOMPLETE.get(reason or "", StopReason.UNKNOWN)
    if finish in _FINISHED and not calls:
        return _FINISHED[finish]
    if finish == "" and not calls and not refused:
        return StopReason.UNKNOWN
    if status == "failed":
        return StopReason.ERROR
    if refused:
        return StopReason.REFUSED
    return StopReason.TOOL_CALLS if calls else StopReason.STOP
