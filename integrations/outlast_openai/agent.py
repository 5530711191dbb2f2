"""The wrapper users hold."""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from itertools import islice
from typing import Any

from agents import Agent, RunConfig, RunHooks

from outlast.adapters import approvals
from outlast.adapters.history import History
from outlast.adapters.inputs import Answers, parse
from outlast.adapters.protocol import DurableAgent
from outlast.adapters.recovery import Result
from outlast.adapters.run import Run
from outlast.core.records import Kind
from outlast.core.resume import ResumePoint, require_resume_point
from outlast_openai import seams
from outlast_openai.contexts import Contexts, Functions
from outlast_openai.graph import Graph
from outlast_openai.history import Conversation
from outlast_openai.servers import Servers
from outlast_openai.turn import OpenAITurn, Options

MAX_TURNS = 10
"""As in the SDK."""


class OpenAIAgent(DurableAgent):
    """Makes an agent of the OpenAI Agents SDK durable, with those it hands over to; none of them is changed.

    `run_config`, `hooks` and `max_turns` are the SDK's; `max_turns` counts over all attempts of a run. `context_factory`
    gets the InvocationContext and makes the context object of the tools, anew for each attempt; it may be `async`. What
    tools change in the fields of a dataclass or pydantic model is kept with the session, but for fields with `repr=False`
    and secrets. Any other context is kept by `context_to_json(context)` and `context_from_json(kept, made)`, which is given
    what the factory made and returns the context.

    Tools named in `rerun_safe` may run again when a crash left their outcome unknown; every other call is answered.

    Raises CannotBeDurable for what would break that promise.
    """

    framework = "openai-agents"

    def __init__(
        self,
        agent: Agent[Any],
        *,
        name: str | None = None,
        run_config: RunConfig | None = None,
        hooks: RunHooks[Any] | None = None,
        max_turns: int = MAX_TURNS,
        context_factory: Callable[[Any], Any] | None = None,
        context_to_json: Callable[[Any], Any] | None = None,
        context_from_json: Callable[[Any, Any], Any] | None = None,
        rerun_safe: Collection[str] = frozenset(),
        config_keys: Collection[str] = frozenset(),
    ) -> None:
        super().__init__(name=name or "agent", rerun_safe=rerun_safe, config_keys=config_keys)
        seams.check()
        seams.tap()
        self.agent = agent
        self._graph = Graph(agent)
        self._servers = Servers(self._graph.servers)
        self._options = Options(
            run_config, hooks, max_turns, context_factory,
            Contexts(self.name, _functions(context_to_json, context_from_json)),
        )  # fmt: skip

    async def entered(self, context: Any, enter: Callable[[Any], Awaitable[Result]]) -> Result:
        async with self._servers.used():
            return await enter(context)

    async def leave(self) -> None:
        await self._servers.close()
        await super().leave()

    def turn(self, run: Run) -> OpenAITurn:
        input = None if run.context.kind is Kind.RESUME else parse(run.context.input)
        given = approvals.parse(input.value) if isinstance(input, Answers) else input
        return OpenAITurn(self._graph, run, given, self._options, self._servers)

    async def require_resume_point(self, history: History) -> ResumePoint:
        return require_resume_point((await Conversation.load(history)).messages)

    async def messages(self, history: History, *, after: int = 0) -> AsyncIterator[tuple[int, dict[str, Any]]]:
        found = (await Conversation.load(history)).messages
        for place, message in islice(enumerate(found, 1), after, None):
            yield place, message.as_json()


def _functions(to_json: Callable[[Any], Any] | None, from_json: Callable[[Any, Any], Any] | None) -> Functions | None:
    if (to_json is None) is not (from_json is None):
        raise TypeError("context_to_json and context_from_json come together")
    return Functions(to_json, from_json) if to_json is not None and from_json is not None else None


def recognise(target: object) -> OpenAIAgent | None:
    """Wrap a framework object that a command line was pointed at, or return None for what is not ours."""
    return OpenAIAgent(target) if isinstance(target, Agent) else None
