"""Shells and patches: tools of which the SDK says when they run, and not for which call."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

pytest.importorskip("agents")

from agents import (
    Agent,
    ApplyPatchTool,
    LocalShellTool,
    ShellCommandOutput,
    ShellResult,
    ShellTool,
    set_tracing_disabled,
)
from agents.editor import ApplyPatchOperation, ApplyPatchResult
from agents.items import ModelResponse
from agents.models.interface import Model
from agents.testing import assistant_message
from openai.types.responses import (
    Response,
    ResponseApplyPatchToolCall,
    ResponseCompletedEvent,
    ResponseFunctionShellToolCall,
)
from openai.types.responses.response_output_item import LocalShellCall

from outlast import current_tool_call, open_store
from outlast.core.resume import INTERRUPTED_RESULT, NOT_RUN_RESULT
from outlast.testing.effects import EffectsLog
from outlast.testing.kill import KillAt, KillHarness
from outlast_openai import OpenAIAgent, StoreSession

set_tracing_disabled(True)

ID = "5f0d8f3c-0d0b-4a53-9d7f-5f5f3a9c1b11"
KINDS = ["shell", "local_shell", "apply_patch"]


CALLS = ["call_number_one_1", "call_number_two_2"]
DID = [f"did {id}" for id in CALLS]


class Native(Model):
    """Asks for two calls of a kind, and says that it is done when it is told their results."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    async def get_response(self, *more: Any, **options: Any) -> ModelResponse:
        raise NotImplementedError

    async def stream_response(self, system_instructions: Any, input: Any, *more: Any, **options: Any) -> Any:
        answers = [item["call_id"] for item in input if str(item.get("type")).endswith("_output")]
        assert answers in ([], CALLS)
        output = [assistant_message("Done.", item_id="msg_1")] if answers else [self._call(id) for id in CALLS]
        response = Response(
            id="resp_1", created_at=0, model="m", object="response", output=output, parallel_tool_calls=True,
            tool_choice="auto", tools=[],
        )  # fmt: skip
        yield ResponseCompletedEvent(type="response.completed", sequence_number=0, response=response)

    def _call(self, id: str) -> Any:
        about: dict[str, Any] = {"id": f"sh_{id}", "call_id": id, "status": "completed", "type": f"{self._kind}_call"}
        match self._kind:
            case "shell":
                return ResponseFunctionShellToolCall.model_validate({**about, "action": {"commands": [id]}})
            case "local_shell":
                action = {"type": "exec", "command": [id], "env": {}}
                return LocalShellCall.model_validate({**about, "action": action})
            case _:
                operation = {"type": "create_file", "path": id, "diff": "+ new"}
                return ResponseApplyPatchToolCall.model_validate({**about, "operation": operation})


def agent(folder: str, kind: str) -> OpenAIAgent:
    effects = EffectsLog(Path(folder) / "effects")

    def done(what: str) -> str:
        effects.append(f"{what} as {current_tool_call().call_id}")
        return f"did {what}"

    def shell(request: Any) -> ShellResult:
        return ShellResult([ShellCommandOutput(done(*request.data.action.commands))])

    class Editor:
        def create_file(self, operation: ApplyPatchOperation) -> ApplyPatchResult:
            return ApplyPatchResult(output=done(operation.path))

    tools: dict[str, Any] = {
        "shell": ShellTool(shell),
        "local_shell": LocalShellTool(lambda request: done(*request.data.action.command)),
        "apply_patch": ApplyPatchTool(cast(Any, Editor())),
    }
    return OpenAIAgent(Agent[Any](name="a", model=Native(kind), tools=[tools[kind]]))


async def run(url: str, folder: str, kind: str) -> Any:
    async with open_store(url) as store:
        reply = await agent(folder, kind).session("s", store=store).run("go", id=ID)
        items: list[Any] = list(await StoreSession("s", store).get_items())
        tools = [message["content"] for message in reply.messages if message["role"] == "tool"]
        return [reply.text, tools, [item for item in items if str(item.get("type")).endswith("_output")]]


@pytest.fixture(scope="module")
def harness() -> Iterator[KillHarness]:
    with KillHarness(preload=[__file__], timeout_seconds=20) as harness:
        yield harness


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("place", "told", "ran"),
    [
        (None, DID, 2),
        (KillAt("items.after_commit", 2), [NOT_RUN_RESULT, NOT_RUN_RESULT], 0),
        (KillAt("tool.before_body"), [INTERRUPTED_RESULT, NOT_RUN_RESULT], 0),
        (KillAt("tool.after_body"), [INTERRUPTED_RESULT, NOT_RUN_RESULT], 1),
        (KillAt("tool.after_body", 2), [DID[0], INTERRUPTED_RESULT], 2),
        (KillAt("items.before_commit", 3), DID, 2),
    ],
    ids=str,
)
def test_call_of_a_shell_or_a_patch_runs_once_and_is_answered(
    harness: KillHarness, tmp_path: Path, store_url: str, kind: str, place: KillAt | None, told: list[str], ran: int
) -> None:
    where = {"url": store_url, "folder": str(tmp_path), "kind": kind}
    if place is not None:
        assert harness.run(run, where, kill=place).killed
    ended = harness.run(run, where)
    assert ended.error is None, ended.error
    text, messages, outputs = ended.result
    assert (text, messages) == ("Done.", told)
    assert {item["type"] for item in outputs} == {f"{kind}_call_output"}
    assert EffectsLog(tmp_path / "effects").read() == [f"{id} as {id}" for id in CALLS[:ran]]
