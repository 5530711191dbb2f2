"""Recovery by turn, not by replay: the history decides what a later attempt still has to do."""

from typing import Any, Protocol

from outlast.adapters.journal import Outcome
from outlast.core.records import Interrupt

Output = dict[str, Any]
Result = Output | Interrupt


class Turn(Protocol):
    """One run of one framework, as far as its history tells."""

    async def has_input(self) -> bool:
        """Say whether the history holds the input of this run."""
        ...

    async def result(self) -> Result | None:
        """Return the result of this run when its history says it is over; call nothing."""
        ...

    async def start(self) -> Result:
        """Add the input to the history and run; calls left open by an earlier run are closed first."""
        ...

    async def go_on(self) -> Result:
        """Run on after the worker died, without running any started tool again."""
        ...

    async def resume(self) -> Result:
        """Run on from the resume point of the history. Raises AgentResumeError when there is none."""
        ...

    async def close(self, answer: Outcome) -> None:
        """Answer every open call of the history with what its journal knows, else with `answer`; run nothing."""
        ...


async def recover_message(turn: Turn) -> Result:
    """Bring the run of a message to its end whose worker died, wherever that was."""
    if not await turn.has_input():
        return await turn.start()
    finished = await turn.result()
    return finished if finished is not None else await turn.go_on()


async def recover_resume(turn: Turn) -> Result:
    """Bring a resume to its end whose worker died: its result is in the history, or it is done again."""
    finished = await turn.result()
    return finished if finished is not None else await turn.resume()
