"""`Agent`: your own loop, already written."""

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any

from outlast.adapters import approvals
from outlast.adapters.history import History
from outlast.adapters.inputs import Answers, parse
from outlast.adapters.native import tools as given
from outlast.adapters.native.hooks import AllHooks, Hooks
from outlast.adapters.native.model import Model
from outlast.adapters.native.tools import Tool, ToolSetupError
from outlast.adapters.native.turn import Limits, NativeTurn
from outlast.adapters.protocol import DurableAgent
from outlast.adapters.recovery import Result
from outlast.adapters.run import Run
from outlast.core import jsontext
from outlast.core.errors import AgentResumeError, LeaseLost
from outlast.core.records import Interrupt, Kind
from outlast.core.reply import Reply
from outlast.core.resume import ResumePoint, require_resume_point
from outlast.engine.context import InvocationContext


class Agent(DurableAgent):
    """A model with tools, whose runs survive their process: no tool runs twice by itself.

    `tools` are typed functions, `async def` or `def`; their docstrings tell the model what they are for. `instructions`
    go to the model before every conversation and are not stored, and neither are the model and the tools: a later agent
    of the same name goes on with the sessions of an earlier one. `rerun_safe` names tools that may run again when nobody
    knows whether they ran. `hooks` are called around every run. Raises ToolSetupError for a function that cannot be a tool
    and for a name of none.
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
        hooks: Hooks | Sequence[Hooks] = (),
    ) -> None:
        super().__init__(name=name, rerun_safe=rerun_safe)
        if isinstance(model, type) or not hasattr(model, "stream"):
            raise TypeError(f"a model is an object such as OpenAIChatModel('name'); {model!r} is none")
        self._model = model
        self._tools = given.tools(tools)
        if unknown := sorted(self.rerun_safe - self._tools.keys()):
            raise ToolSetupError(f"`rerun_safe` names {unknown[0]!r}, which is no tool of this agent")
        self._instructions = instructions
        self._limits = limits or Limits()
        self._hooks = AllHooks([hooks] if isinstance(hooks, Hooks) else hooks)

    def turn(self, run: Run) -> NativeTurn:
        input = None if run.context.kind is Kind.RESUME else parse(run.context.input)
        return NativeTurn(
            run, approvals.parse(input.value) if isinstance(input, Answers) else input, model=self._model,
            tools=self._tools, instructions=self._instructions, limits=self._limits, hooks=self._hooks,
        )  # fmt: skip

    async def entered(
        self, context: InvocationContext, enter: Callable[[InvocationContext], Awaitable[Result]]
    ) -> Result:
        try:
            await self._hooks.before_run(context)
            result = await enter(context)
            await self._hooks.after_run(context, _reply(context, result))
        except LeaseLost:
            raise
        except Exception as error:
            await self._hooks.on_error(context, error)
            raise
        return result

    async def resume_refused(self, error: AgentResumeError) -> None:
        await self._hooks.on_error(None, error)

    async def require_resume_point(self, history: History) -> ResumePoint:
        return require_resume_point((await history.items()).messages)


def _reply(context: InvocationContext, result: Result) -> Reply:
    id, usage = context.invocation_id, context.usage
    if isinstance(result, Interrupt):
        return Reply.of(id, interrupt=jsontext.decode(result.as_json()), usage=usage)
    return Reply.of(id, output=result, usage=usage)
