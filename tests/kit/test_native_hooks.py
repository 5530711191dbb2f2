"""A user's own code around the runs of the native agent."""

import json
from pathlib import Path
from typing import Any

import pytest

from outlast import Agent, AgentResumeError, Hooks, InvocationContext, JsonlRecorder, Reply, RunFailed, Tool
from outlast.adapters import LocalStore
from outlast.testing.scripted import Say, ScriptedCall, ScriptedModel

pytestmark = pytest.mark.anyio


class Heard(Hooks):
    """Notes what it hears."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, Any]] = []

    async def on_message(self, context: InvocationContext) -> None:
        self.heard.append(("message", context.input_message))

    async def before_run(self, context: InvocationContext) -> None:
        self.heard.append(("before", context.input_message))

    async def after_run(self, context: InvocationContext, reply: Reply) -> None:
        self.heard.append(("after", reply.text or (reply.interrupt and reply.interrupt["reason"])))

    async def on_error(self, context: InvocationContext | None, error: Exception) -> None:
        self.heard.append(("error", getattr(error, "code", error)))


async def test_a_run_is_told_before_and_after(local: LocalStore) -> None:
    hooks = Heard()
    await Agent(ScriptedModel("Hello."), hooks=hooks).session("s", store=local).run("Hi")
    assert hooks.heard == [("before", "Hi"), ("message", "Hi"), ("after", "Hello.")]


async def test_a_resume_has_no_message(local: LocalStore) -> None:
    hooks = Heard()
    cut = Agent(ScriptedModel(Say("The three rea", stop_reason="length")))
    await cut.session("s", store=local).run("Why?")
    await Agent(ScriptedModel("sons."), hooks=hooks).session("s", store=local).resume()
    assert hooks.heard == [("before", None), ("after", "sons.")]


async def test_a_failure_and_a_refused_resume_are_told(local: LocalStore) -> None:
    hooks = Heard()
    chat = Agent(ScriptedModel("Hello."), hooks=[hooks]).session("s", store=local)
    with pytest.raises(AgentResumeError):
        await chat.resume()
    with pytest.raises(RunFailed):
        await chat.run({"text": "Hi"})
    assert hooks.heard == [("error", "empty"), ("before", {"text": "Hi"}), ("error", "invalid_input")]


async def test_a_run_that_waits_for_a_person_is_told_too(local: LocalStore) -> None:
    def pay() -> str:
        """Pay."""
        return "paid"

    hooks = Heard()
    model = ScriptedModel(Say("", [ScriptedCall("pay")]), "Done.")
    chat = Agent(model, tools=[Tool(pay, needs_approval=True)], hooks=hooks).session("s", store=local)
    asked = await chat.run("Pay")
    assert asked.interrupt is not None
    await chat.run({"resume": {"decisions": [{"id": asked.interrupt["approvals"][0]["id"], "type": "approve"}]}})
    assert hooks.heard == [
        ("before", "Pay"), ("message", "Pay"), ("after", "approval_required"), ("before", None), ("after", "Done."),
    ]  # fmt: skip


async def test_an_error_goes_on_and_reaches_every_hook_when_one_raises_at_it(
    local: LocalStore, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Hooks):
        async def on_error(self, context: InvocationContext | None, error: Exception) -> None:
            raise ValueError("the pager is down")

    hooks = Heard()
    chat = Agent(ScriptedModel("Hello."), hooks=[Broken(), hooks]).session("s", store=local)
    with pytest.raises(AgentResumeError):
        await chat.resume()
    with pytest.raises(RunFailed) as failed:
        await chat.run({"text": "Hi"})
    assert failed.value.code == "invalid_input"
    assert [what for what, _ in hooks.heard] == ["error", "before", "error"]
    assert caplog.text.count("ValueError: the pager is down") == 2
    assert "Broken" in caplog.text


async def test_hooks_may_be_plain_functions(local: LocalStore) -> None:
    class Plain(Hooks):
        def __init__(self) -> None:
            self.heard: list[str] = []

        def on_message(self, context: InvocationContext) -> None:
            self.heard.append("message")

        def before_run(self, context: InvocationContext) -> None:
            self.heard.append("before")

        def after_run(self, context: InvocationContext, reply: Reply) -> None:
            self.heard.append(reply.text)

        def on_error(self, context: InvocationContext | None, error: Exception) -> None:
            self.heard.append("error")

    hooks = Plain()
    for given in (hooks, [Heard(), hooks]):
        await Agent(ScriptedModel("Hello."), hooks=given).session("s", store=local).run("Hi")
        with pytest.raises(RunFailed):
            await Agent(ScriptedModel("Hello."), hooks=given).session("s", store=local).run({"text": "Hi"})
    assert hooks.heard == ["before", "message", "Hello.", "before", "error"] * 2


async def test_a_hook_that_refuses_a_message_keeps_it_out_of_the_history(local: LocalStore) -> None:
    class Guard(Hooks):
        async def on_message(self, context: InvocationContext) -> None:
            raise RunFailed("not_here", "no such questions")

    chat = Agent(ScriptedModel("Hello."), hooks=Guard()).session("s", store=local)
    with pytest.raises(RunFailed, match="no such questions"):
        await chat.run("Hi")
    assert await chat.messages() == []


async def test_the_messages_of_a_session_are_read_without_a_run(local: LocalStore) -> None:
    chat = Agent(ScriptedModel("Hello.")).session("s", store=local)
    await chat.run("Hi")
    assert [(one["role"], one["content"]) for one in await chat.messages()] == [("user", "Hi"), ("assistant", "Hello.")]


async def test_the_recorder_writes_each_turn_and_a_resumed_one_whole(local: LocalStore, tmp_path: Path) -> None:
    recorder = JsonlRecorder(tmp_path / "turns.jsonl")
    await Agent(ScriptedModel("Hello."), hooks=recorder).session("s", store=local).run("Hi")
    cut = Agent(ScriptedModel(Say("The three rea", stop_reason="length")), hooks=recorder)
    await cut.session("s", store=local).run("Why?")
    await Agent(ScriptedModel("sons."), hooks=recorder).session("s", store=local).resume()
    turns = [json.loads(line) for line in (tmp_path / "turns.jsonl").read_text().splitlines()]
    assert [turn["session_id"] for turn in turns] == ["s"] * 3
    assert [one["role"] for one in turns[0]["messages"]] == ["user", "assistant"]
    assert [one["content"] for one in turns[1]["messages"]] == ["Why?", "The three rea"]
    assert [one["role"] for one in turns[2]["messages"]] == ["user", "assistant", "internal", "assistant"]
    assert turns[2]["stop_reason"] == "stop"
