"""The SDK's items: which are calls, which are results, and what of a history a model may see.

A history has the SDK's items as they are, one row each, and between them notes of ours with what the items do not say:
which agent answered, why the model stopped, who speaks next. Notes are nothing for a model.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic_core import to_jsonable_python

from outlast.core import jsontext
from outlast.core.errors import InvalidRequest

Item = Mapping[str, Any]

NOTE = "outlast.note"
"""The `type` of a note."""

CALLS = {
    "function_call": "function_call_output",
    "custom_tool_call": "custom_tool_call_output",
    "shell_call": "shell_call_output",
    "local_shell_call": "local_shell_call_output",
    "apply_patch_call": "apply_patch_call_output",
}
"""Types of calls that run here, each with the type of its result."""

UNIQUE_FROM = 16
"""Characters of a call id; a shorter one is a counter of its provider, and comes again."""

_OUTPUTS = frozenset(CALLS.values())


def note(**fields: Any) -> dict[str, Any]:
    """Make a note."""
    return {"type": NOTE, **fields}


def ended(text: str) -> dict[str, Any]:
    """Make the note that says that a run is over whose answer no model said."""
    return note(finished={"stop": "stop", "text": text})


def is_note(item: Item) -> bool:
    return item.get("type") == NOTE


def is_call(item: Item) -> bool:
    return item.get("type") in CALLS


def is_output(item: Item) -> bool:
    return item.get("type") in _OUTPUTS


def uses_tool(item: Item) -> bool:
    """Say whether an item is a call by which the SDK takes a `tool_choice` back, also one that ran at the provider."""
    kind = item.get("type") or ""
    return kind.endswith("_call") and kind != "tool_search_call"


def as_text(value: Any) -> str:
    """Return a value as a model is told it."""
    return value if isinstance(value, str) else jsontext.encode(to_jsonable_python(value, fallback=str))


def parsed(arguments: str) -> Any:
    """Return the value of a call's arguments; what is no JSON stays text, and its tool refuses it."""
    try:
        return jsontext.parse(arguments.encode()) if arguments else {}
    except (InvalidRequest, UnicodeEncodeError):
        return arguments


def name_of(call: Item) -> str:
    """Return what a call's tool is called; a tool of a kind of its own by that kind."""
    name: str = call.get("name") or call["type"].removesuffix("_call")
    return name


def arguments_of(call: Item) -> str:
    """Return what a call gives its tool, as JSON but for the text of a custom tool."""
    given = next((call[name] for name in ("arguments", "input", "action", "operation") if name in call), "")
    return given if isinstance(given, str) else jsontext.encode(given)


def output_of(call: Item, output: Any, *, failed: bool = False) -> dict[str, Any]:
    """Make the result of a call."""
    made = {"type": CALLS[call["type"]], "call_id": call["call_id"], "output": output}
    match call["type"]:
        case "shell_call":
            ended = {"type": "exit", "exit_code": int(failed)}
            return made | {"output": [{"stdout": as_text(output), "stderr": "", "outcome": ended}]}
        case "apply_patch_call":
            return made | {"status": "failed" if failed else "completed"}
        case _:
            return made


def text_of(output: Item) -> str:
    """Return what a result says."""
    said = output.get("output")
    if output["type"] == CALLS["shell_call"] and isinstance(said, list):
        return "\n".join(filter(None, (one.get(name) for one in said for name in ("stdout", "stderr"))))
    return said if isinstance(said, str) else jsontext.encode(said)


def with_ids_of_their_own(items: Sequence[Item]) -> list[dict[str, Any]]:
    """Return a history in which no two calls share an id, and which shares none with calls to come.

    Some providers count calls in each response, and begin anew. Of two calls of one id the SDK keeps the newest result
    only; the model then never sees what it asked for. The same call has the same name in every later run.
    """
    ids = [item["call_id"] for item in items if is_call(item)]
    total, taken, seen = Counter(ids), set(ids), Counter[str]()
    # Of the calls of one response that share an id, each result answers the next one.
    waiting: dict[str, list[str]] = {}
    same_response = False
    made = []
    for item in items:
        if is_call(item):
            if not same_response:
                waiting.clear()
            id = item["call_id"]
            seen[id] += 1
            keep = len(id) >= UNIQUE_FROM and seen[id] == total[id]
            named = id if keep else _unused(f"{id}_{seen[id]}", taken)
            waiting.setdefault(id, []).append(named)
            made.append({**item, "call_id": named})
        elif is_output(item):
            names = waiting.get(item["call_id"], [item["call_id"]])
            made.append({**item, "call_id": names.pop(0) if len(names) > 1 else names[0]})
        else:
            made.append(dict(item))
        same_response = is_call(item) or item.get("type") == "reasoning"
    return made


def _unused(id: str, taken: set[str]) -> str:
    while id in taken:
        id += "_"
    taken.add(id)
    return id
