import json

import pytest

from outlast.core import jsontext
from outlast.core.records import Event, Invocation, Kind, Status
from outlast.wires.native import project

RUN = Invocation(
    number=1, principal="local", id="0f8fad5b-d9cb-469f-a165-70867728950e", session_id='a"b\u2028', session_number=1,
    agent="support", kind=Kind.MESSAGE, status=Status.RUNNING, fingerprint="", input="1", config="{}",
    metadata='{"a":"b"}', attempt=2, crashes=0, epoch=1, holder=None, cancel=None, suspect=False, timeout_ms=None,
    last_position=0, output=None, error=None, interrupt=None, usage=None, created_at=1_700_000_000_007,
    started_at=1_700_000_001_000, finished_at=None,
)  # fmt: skip
URL = f"/base/api/invocations/{RUN.id}"


def test_the_object_of_a_running_invocation() -> None:
    assert json.loads(project.invocation(RUN, "/base")) == {
        "id": RUN.id, "session_id": 'a"b\u2028', "agent": "support", "status": "running", "kind": "message",
        "attempt": 2, "created_at": "2023-11-14T22:13:20.007Z", "started_at": "2023-11-14T22:13:21.000Z",
        "finished_at": None, "usage": None, "metadata": {"a": "b"}, "status_url": URL, "events_url": f"{URL}/events",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("status", "field", "text"),
    [
        (Status.COMPLETED, "output", '{"n":1000000000000000000000000000000,"s":"\\u0000\\ud800"}'),
        (Status.COMPLETED, "output", "null"),
        (Status.FAILED, "error", '{"code":"handler_error","message":"no"}'),
        (Status.INTERRUPTED, "interrupt", '{"reason":"approval_required","approvals":[],"questions":[]}'),
    ],
)
def test_a_final_object_has_the_stored_text_of_its_result(status: Status, field: str, text: str) -> None:
    final = RUN._replace(status=status, usage='{"tokens":1}', **{field: text})  # type: ignore[arg-type]  # a str field
    shown = project.invocation(final, "")
    assert f'"{field}":{text},"usage":{{"tokens":1}}' in shown
    assert set(json.loads(shown)) & {"output", "error", "interrupt"} == {field}


def test_a_202_says_where_the_invocation_is() -> None:
    assert json.loads(project.accepted(RUN, "/base")) == {
        "id": RUN.id, "session_id": RUN.session_id, "status": "running", "status_url": URL,
        "events_url": f"{URL}/events",
    }  # fmt: skip


def test_pages() -> None:
    page = json.loads(project.invocations([RUN], "", 7))
    assert (page["items"], page["next_cursor"]) == ([json.loads(project.invocation(RUN, ""))], "7")
    assert json.loads(project.events([Event(3, 1, 1_700_000_000_007, "[]")], None)) == {
        "items": [{"position": 3, "attempt": 1, "at": "2023-11-14T22:13:20.007Z", "event": []}],
        "next_cursor": None,
    }


def frame(event: object) -> bytes:
    return project.frame(5, jsontext.encode(event))


def test_a_frame_is_the_event_alone() -> None:
    assert frame({"type": "step", "n": 1}) == b'id: 5\nevent: step\ndata: {"type":"step","n":1}\n\n'
    assert frame({"n": 1, "type": "agent.part.delta"}).startswith(b"id: 5\nevent: agent.part.delta\n")
    assert frame([1, "type"]) == b'id: 5\ndata: [1,"type"]\n\n'


# BR-32: model text used as a type must not make a second field or frame
@pytest.mark.parametrize(
    "type_",
    ["end", "error", "open", "message", "", "a b", "x" * 129, "x\n", "x\r", 'x\nid: 999\ndata: {"type":"end"}\n\n', "ü", 5,
     None, ["a"], {"type": "nested"}],
)  # fmt: skip
def test_only_a_safe_type_names_a_frame(type_: object) -> None:
    event = {"type": type_}
    assert frame(event) == b"id: 5\ndata: " + jsontext.encode(event).encode() + b"\n\n"
    assert frame({"first": 1, **event}).count(b"\n") == 3


def test_a_nested_type_is_not_the_event_s_own() -> None:
    assert b"event:" not in frame({"inner": {"type": "step"}})


# BR-33
def test_a_frame_is_ascii() -> None:
    text = "a\u2028b\u2029c\u0085d\x0be\x1cf\0\ud800"
    sent = frame({"text": text})
    assert sent.isascii()
    assert len(sent.decode().splitlines()) == 3
    assert json.loads(sent.decode().splitlines()[1].removeprefix("data: ")) == {"text": text}


def test_the_last_frame_has_the_object_and_no_id() -> None:
    final = RUN._replace(status=Status.COMPLETED, output='"\\u2028"')
    sent = project.end(final, "/base")
    assert sent == b"event: end\ndata: " + project.invocation(final, "/base").encode() + b"\n\n"
