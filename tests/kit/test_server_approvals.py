"""Approvals over HTTP: the inbox, decisions, and who waits behind them."""

import threading
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient

from outlast import Agent, DurableAgentServer, Tool
from outlast.testing.scripted import Say, ScriptedCall, ScriptedModel


class Shop:
    """A server whose agent pays when somebody agrees, and may be held while it looks."""

    def __init__(self, store_url: str) -> None:
        self.paid: list[int] = []
        self.looks, self.go_on = threading.Event(), threading.Event()

        def pay(amount: int) -> str:
            """Pay."""
            self.paid.append(amount)
            return "paid"

        def look() -> str:
            """Look."""
            self.looks.set()
            self.go_on.wait(20)
            return "5 left"

        first = Say("Let me see.", [ScriptedCall("look")])
        then = Say("I will.", [ScriptedCall("pay", {"amount": 5})])
        model = ScriptedModel(first, then, "Done.")
        self.server = DurableAgentServer(Agent(model, tools=[look, Tool(pay, needs_approval=True)]), store=store_url)


@pytest.fixture
def shop(store_url: str) -> Shop:
    return Shop(store_url)


@pytest.fixture
def client(shop: Shop) -> Iterator[TestClient]:
    with TestClient(shop.server) as client:
        yield client


def run(client: TestClient, input: Any, session: str = "a/b", **fields: Any) -> Any:
    body = {"id": str(uuid.uuid4()), "session_id": session, "input": input, **fields}
    return client.post("/api/invocations", json=body).json()


def final(client: TestClient, id: str) -> Any:
    client.get(f"/api/invocations/{id}/events")
    return client.get(f"/api/invocations/{id}").json()


def test_the_inbox_shows_what_waits_until_it_is_decided(shop: Shop, client: TestClient) -> None:
    shop.go_on.set()
    asked = run(client, "buy")
    assert asked["status"] == "interrupted"
    (approval,) = asked["interrupt"]["approvals"]
    (waiting,) = client.get("/api/approvals?status=open").json()["items"]
    assert {**waiting, **approval} == waiting
    assert (waiting["session_id"], waiting["invocation_id"]) == ("a/b", asked["id"])
    point = client.get("/api/sessions/a%2Fb/resume-point").json()["point"]
    assert (point["kind"], point["approvals"]) == ("await_approval", [approval])
    decided = run(client, {"resume": {"decisions": [{"id": approval["id"], "type": "approve"}]}})
    assert decided["output"]["text"] == "Done."
    assert shop.paid == [5]
    assert client.get("/api/approvals?status=open").json()["items"] == []
    (seen,) = client.get("/api/approvals?session_id=a%2Fb").json()["items"]
    assert (seen["status"], seen["decision"]) == ("decided", {"type": "approve"})


def test_the_inbox_is_read_in_pages(shop: Shop, client: TestClient) -> None:
    shop.go_on.set()
    for name in "abc":
        run(client, "buy", name)
    page = client.get("/api/approvals?limit=2").json()
    assert [one["session_id"] for one in page["items"]] == ["c", "b"]
    rest = client.get(f"/api/approvals?limit=2&cursor={page['next_cursor']}").json()
    assert ([one["session_id"] for one in rest["items"]], rest["next_cursor"]) == (["a"], None)


@pytest.mark.parametrize("query", ["status=waiting", "limit=0", "cursor=x", "state=open"])
def test_a_mistyped_filter_is_refused(client: TestClient, query: str) -> None:
    answer = client.get(f"/api/approvals?{query}")
    assert answer.status_code in (400, 422)
    assert answer.headers["content-type"] == "application/problem+json"


def test_a_run_that_waited_when_an_approval_was_asked_for_does_not_close_it(shop: Shop, client: TestClient) -> None:
    asked = run(client, "buy", background=True)
    assert shop.looks.wait(20)
    behind = run(client, "and this", background=True)
    shop.go_on.set()
    assert final(client, behind["id"])["error"]["code"] == "approval_open"
    (approval,) = final(client, asked["id"])["interrupt"]["approvals"]
    run(client, {"resume": {"decisions": [{"id": approval["id"], "type": "approve"}]}})
    assert shop.paid == [5]


def test_a_session_takes_its_approvals_along_when_it_is_deleted(shop: Shop, client: TestClient) -> None:
    shop.go_on.set()
    run(client, "buy")
    assert client.delete("/api/sessions/a%2Fb").status_code == 204
    assert client.get("/api/approvals").json()["items"] == []
