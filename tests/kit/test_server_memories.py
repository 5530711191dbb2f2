"""`/api/memories`, over a real socket."""

import json
import logging
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from outlast import AgentHandlers, DurableAgentServer
from outlast.testing.serving import ServerThread

API = "/api/memories"


@pytest.fixture
def client(store_url: str) -> Iterator[httpx.Client]:
    app = DurableAgentServer(AgentHandlers(lambda context: 1, lambda context: 1), store=store_url)
    with ServerThread(app) as server, httpx.Client(base_url=server.url, timeout=30) as client:
        yield client


def test_a_memory_is_added_changed_found_and_removed(client: httpx.Client) -> None:
    name = {"path": "notes/food", "actor_id": "ann"}
    added = client.post(API, json={**name, "content": "likes tea"})
    assert (added.status_code, added.json()["content"]) == (201, "likes tea")
    assert client.post(API, json={**name, "content": "x"}).json()["code"] == "memory_exists"
    for _ in range(2):
        client.put(f"{API}/entry", params=name, json={"content": ", green", "append": True, "key": "k"})
    refused = client.put(f"{API}/entry", params=name, json={"content": ", black", "append": True, "key": "k"})
    assert (refused.status_code, refused.json()["code"]) == (409, "idempotency_conflict")
    assert client.get(f"{API}/entry", params=name).json()["content"] == "likes tea, green"
    (found,) = client.get(f"{API}/search", params={"q": "liking green", "actor_id": "ann"}).json()["items"]
    assert (found["memory"]["path"], found["score"] > 0) == ("notes/food", True)
    assert [one["path"] for one in client.get(API, params={"actor_id": "ann"}).json()["items"]] == ["notes/food"]
    assert client.get(API).json()["items"] == []
    assert client.patch(f"{API}/entry", params=name, json={"content": "coffee"}).json()["content"] == "coffee"
    assert client.delete(f"{API}/entry", params=name).status_code == 204
    assert client.get(f"{API}/entry", params=name).status_code == 404


# BR-66
def test_any_text_is_a_query(client: httpx.Client) -> None:
    client.post(API, json={"path": "it", "content": "it's in gateway/run.py, ask user@host: e=mc2 #tag 50% (C++)"})
    for query in ("it's", "gateway/run.py", "user@host", "e=mc2", "#tag", "50%", "C++", '"unclosed tag', "tag " * 2500):
        items = client.get(f"{API}/search", params={"q": query}).json()["items"]
        assert [one["memory"]["path"] for one in items] == ["it"], query
    for query in ("a AND", "NEAR(", "/", "*", "col:x", ""):
        assert client.get(f"{API}/search", params={"q": query}).json()["items"] == []


def test_memories_are_listed_page_by_page(client: httpx.Client) -> None:
    names = [("a\u00e9", None), ("a\u00e9", "s/1"), ("b", None), ("\u6771", "s")]
    for path, session_id in names:
        client.post(API, json={"path": path, "session_id": session_id, "content": "x"})
    listed: list[Any] = []
    query: dict[str, Any] = {"limit": 1}
    while len(listed) < 9:
        page = client.get(API, params=query).json()
        listed += [(one["path"], one["session_id"]) for one in page["items"]]
        if page["next_cursor"] is None:
            break
        query["cursor"] = page["next_cursor"]
    assert listed == names


@pytest.mark.parametrize("cursor", ["7", "YQ", "YQ==", "Cg==", "YQoBAQ==", "/w==", "\u6771"])
def test_a_cursor_that_no_page_gave_is_refused(client: httpx.Client, cursor: str) -> None:
    answer = client.get(API, params={"cursor": cursor})
    assert (answer.status_code, answer.json()["code"], answer.json()["field"]) == (400, "invalid_cursor", "cursor")


def test_a_change_with_a_key_is_made_once(client: httpx.Client) -> None:
    for _ in range(2):
        added = client.post(API, json={"path": "a", "content": "one", "key": "first"})
        assert (added.status_code, added.json()["content"]) == (201, "one")
    changes = [{"content": "two", "key": "second"}, {"content": "three"}, {"content": "two", "key": "second"}]
    for change in changes:
        client.patch(f"{API}/entry", params={"path": "a"}, json=change)
    assert client.get(f"{API}/entry", params={"path": "a"}).json()["content"] == "three"


def test_memories_are_listed_by_path_and_by_its_beginning(client: httpx.Client) -> None:
    for path, session_id in (("a", None), ("a", "s"), ("a/b", None)):
        client.post(API, json={"path": path, "content": "x", "session_id": session_id})
    listed = [client.get(API, params=query).json()["items"] for query in ({"path": "a"}, {"path_prefix": "a/"})]
    assert [[(one["path"], one["session_id"]) for one in page] for page in listed] == [
        [("a", None), ("a", "s")],
        [("a/b", None)],
    ]


def test_a_text_too_long_for_a_url_is_searched_for(client: httpx.Client) -> None:
    client.post(API, json={"path": "a", "content": "likes tea"})
    text = json.dumps({"text": "tea " + "x" * 65_000 + "\x00\ud800"})
    answer = client.post(f"{API}/search", content=text)
    assert [one["memory"]["path"] for one in answer.json()["items"]] == ["a"]


@pytest.mark.parametrize(
    ("method", "path", "body", "field"),
    [
        ("POST", "", {"content": "x"}, "path"),
        ("POST", "", {"path": "a"}, "content"),
        ("POST", "", {"path": "a", "content": 7}, "content"),
        ("POST", "", {"path": "a", "content": "x", "colour": 1}, "colour"),
        ("POST", "", {"path": "a", "content": "x", "actor_id": 7}, "actor_id"),
        ("PUT", "/entry", {"content": "x"}, "path"),
        ("PUT", "/entry?path=a", {"content": "x", "append": 1}, "append"),
        ("PUT", "/entry?path=a", {"content": "x", "key": ""}, "key"),
        ("GET", "/entry?pth=a", None, "pth"),
        ("GET", "/search", None, "q"),
        ("GET", "/search?q=a&limit=101", None, "limit"),
        ("POST", "/search", {}, "text"),
        ("POST", "/search", {"text": "a", "limit": "5"}, "limit"),
        ("POST", "/search", {"q": "a"}, "q"),
        ("GET", "?limit=0", None, "limit"),
        ("GET", "?limit=1001", None, "limit"),
        ("GET", "?path=%00", None, "path"),
        ("GET", "?actor_id=%00", None, "actor_id"),
    ],
)
def test_a_bad_request_is_refused_and_named(
    client: httpx.Client, caplog: pytest.LogCaptureFixture, method: str, path: str, body: Any, field: str
) -> None:
    answer = client.request(method, f"{API}{path}", json=body)
    assert (answer.status_code, answer.json().get("field")) == (422, field)
    assert client.get(API).json()["items"] == []
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
