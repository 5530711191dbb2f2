import json
from collections.abc import Callable
from typing import Any

import pytest

from outlast.core.errors import InvalidRequest, NotJSON
from outlast.core.records import Kind, OnActive
from outlast.wires.native import accept

ID = "0f8fad5b-d9cb-469f-a165-70867728950e"
OTHER_ID = "7c9e6679-7425-40de-944b-e07fc1f90ae7"


def message(body: Any, key: str | None = None, agents: tuple[str, ...] = ("support",)) -> accept.Ask:
    return accept.message(body, idempotency_key=key, principal="local", agents=agents)


def refused(make: Callable[[], object]) -> tuple[str, str | None]:
    with pytest.raises(InvalidRequest) as caught:
        make()
    return caught.value.code, caught.value.field


def test_the_shortest_request() -> None:
    ask = message({"id": ID, "input": None})
    request = ask.request
    assert (request.principal, request.id, request.session_id, request.agent) == ("local", ID, None, "support")
    assert (request.kind, request.on_active, request.timeout_seconds) == (Kind.MESSAGE, OnActive.QUEUE, None)
    assert (request.input, request.config, request.metadata) == ("null", "{}", {})
    assert (ask.stream, ask.background) == (False, False)


def test_every_field() -> None:
    ask = message(
        {
            "id": ID.upper(), "session_id": "a/b ü", "input": [1], "stream": True, "background": True,
            "agent": "sales", "config": {"model": "m"}, "on_active": "cancel", "timeout": 2, "metadata": {"a": "b"},
        },
        agents=("support", "sales"),
    )  # fmt: skip
    request = ask.request
    assert (request.id, request.session_id, request.agent) == (ID, "a/b ü", "sales")
    assert (request.input, request.config, request.metadata) == ("[1]", '{"model":"m"}', {"a": "b"})
    assert (request.on_active, request.timeout_seconds) == (OnActive.CANCEL, 2.0)
    assert (ask.stream, ask.background) == (True, True)


def test_null_is_the_same_as_leaving_an_optional_field_out() -> None:
    optional = ("session_id", "agent", "config", "on_active", "timeout", "metadata")
    plain = message({"id": ID, "input": 1})
    assert message({"id": ID, "input": 1, **dict.fromkeys(optional)}) == plain


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("stream", 1), ("stream", None), ("background", "true"),
        ("agent", 1), ("config", []), ("config", "x"), ("on_active", "wait"), ("on_active", []),
        ("timeout", 0), ("timeout", -1), ("timeout", True), ("timeout", "5"), ("timeout", float("inf")),
        ("timeout", 10**400), ("metadata", {"a": 1}), ("metadata", []), ("metadata", {"a": "b\0"}), ("metadata", {"\ud800": "b"}),
        ("metadata", {"a": "x" * 65_536}),
    ],
)  # fmt: skip
def test_a_wrong_value_names_its_field(field: str, value: Any) -> None:
    assert refused(lambda: message({"id": ID, "input": 1, field: value})) == ("invalid_field", field)


def test_a_mistyped_field_is_named() -> None:
    """Otherwise a request for a session would silently become one without."""
    assert refused(lambda: message({"id": ID, "input": 1, "sesion_id": "s"})) == ("unknown_field", "sesion_id")
    with pytest.raises(InvalidRequest, match=r"'a\\nb'"):
        message({"id": ID, "input": 1, "a\nb": "s"})


@pytest.mark.parametrize("body", [None, 1, "x", [], True])
def test_a_body_that_is_no_object_is_refused(body: Any) -> None:
    assert refused(lambda: message(body)) == ("invalid_request", None)


def test_input_is_required_and_kind_is_no_field() -> None:
    assert refused(lambda: message({"id": ID})) == ("invalid_field", "input")
    assert refused(lambda: message({"id": ID, "input": 1, "kind": "resume"})) == ("unknown_field", "kind")


# BR-44
@pytest.mark.parametrize("spelling", [ID.replace("-", ""), f"{{{ID}}}", f"urn:uuid:{ID}", "", ID + "\n", 7])
def test_an_id_has_one_spelling_besides_capitals(spelling: Any) -> None:
    assert refused(lambda: message({"id": spelling, "input": 1})) == ("invalid_id", "id")


@pytest.mark.parametrize("key", [ID, ID.upper(), f'"{ID}"', f' "{ID}" '])
def test_the_idempotency_key_names_the_request_too(key: str) -> None:
    assert message({"input": 1}, key).request.id == ID
    assert message({"input": 1, "id": ID}, key).request.id == ID


def test_field_and_header_must_agree() -> None:
    assert refused(lambda: message({"input": 1, "id": OTHER_ID}, ID)) == ("id_mismatch", "id")
    assert refused(lambda: message({"input": 1}, '"')) == ("invalid_id", "id")
    assert refused(lambda: message({"input": 1})) == ("invalid_field", "id")


@pytest.mark.parametrize("session_id", ["", "x" * 513, "a\nb", "\0", "\ud800", 5, ["s"]])
def test_a_bad_session_id_is_refused(session_id: Any) -> None:
    body = {"id": ID, "input": 1, "session_id": session_id}
    assert refused(lambda: message(body)) == ("invalid_session_id", "session_id")


def test_a_server_with_several_agents_wants_one_named() -> None:
    body = {"id": ID, "input": 1}
    assert refused(lambda: message(body, agents=("a", "b"))) == ("agent_required", "agent")
    assert refused(lambda: message({**body, "agent": "c"}, agents=("a", "b"))) == ("unknown_agent", "agent")


def test_a_number_that_json_cannot_hold_is_refused() -> None:
    """`1e999` is read as an infinity."""
    with pytest.raises(NotJSON):
        message(json.loads(f'{{"id": "{ID}", "input": 1e999}}'))


def test_identity_is_input_session_agent_config_and_kind() -> None:
    def fingerprint(**more: Any) -> str:
        return message({"id": ID, "input": {"a": 1, "b": 2}, "session_id": "s", **more}).request.fingerprint

    plain = fingerprint()
    assert plain == fingerprint(stream=True, background=True, timeout=1, metadata={"a": "b"}, on_active="reject")
    assert plain == fingerprint(input={"b": 2, "a": 1})
    assert len({plain, fingerprint(input={"a": 1.0, "b": 2}), fingerprint(input={"a": True, "b": 2}),
                fingerprint(session_id="t"), fingerprint(config={"x": 1})}) == 5  # fmt: skip


def test_a_resume_has_no_input() -> None:
    def resume(body: Any) -> accept.Ask:
        return accept.resume(body, session_id="s", idempotency_key=None, principal="local", agents=["a"])

    request = resume({"id": ID}).request
    assert (request.kind, request.session_id, request.input) == (Kind.RESUME, "s", "null")
    assert refused(lambda: resume({"id": ID, "input": 1})) == ("unknown_field", "input")
    assert refused(lambda: resume({"id": ID, "session_id": "s"})) == ("unknown_field", "session_id")
