"""`Agent`: your own loop, already written."""

from collections.abc import Callable, Collection, Sequence
from typing import Any

from outlast.adapters.history import History
from outlast.adapters.inputs import Answers, parse
from outlast.adapters.native import tools as given
from outlast.adapters.native.model import Model
from outlast.adapters.native.tools import Tool
from outlast.adapters.native.turn import Limits, NativeTurn
from outlast.adapters.protocol import DurableAgent
from outlast.adapters.run import Run
from outlast.core.errors import RunFailed
from outlast.core.records import Kind
from outlast.core.resume import ResumePoint, require_resume_point


class Agent(DurableAgent):
    """A model with tools, whose runs survive their process: no tool runs twice by itself.

    `tools` are typed functions, `async def` or `def`; their docstrings tell the model what they are for. `instructions`
    go to the model before every conversation and are not stored, and neither are the model and the tools: a later agent
    of the same name goes on with the sessions of an earlier one. `rerun_safe` names tools that may run again when nobody
    knows whether they ran. Raises ToolSetupError for a function that cannot be a tool.
    """

    framework = "outlast"

    def __init__(
        self,
        model: Model,
        *,
        tools: Sequence[Callable[..., Any] | Tool] = (),
        instructions: str | None = None,
        name: str = "agent",
        rerun_safe: Collection[str] = (),
        limits: Limits | None = None,
    ) -> None:
        super().__init__(name=name, rerun_safe=rerun_safe)
        self._model = model
        self._tools = given.tools(tools)
        self._instructions = instructions
        self._limits = limits or Limits()

    def turn(self, run: Run) -> NativeTurn:
        input = None if run.context.kind is Kind.RESUME else parse(run.context.input)
        if isinstance(input, Answers):
            raise RunFailed("nothing_to_answer", "this session does not wait for an answer")
        return NativeTurn(
            run, input, model=self._model, tools=self._tools, instructions=self._instructions, limits=self._limits
        )

    async def require_resume_point(self, history: History) -> ResumePoint:
        return require_resume_point((await history.items()).messages)
