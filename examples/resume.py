"""Five ways a conversation is interrupted, and how it goes on. Run it: python examples/resume.py (no network, no keys).

The agent books a trip with two tools that note in a file what they did. Each scene interrupts it somewhere else, asks where
the conversation stands, goes on from there, and looks into the file: no tool ran twice.
"""

import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from pathlib import Path

from outlast import Agent, RunFailed, open_store
from outlast.adapters import ChatSession, LocalStore
from outlast.adapters.native import Delta, ProviderUnavailable, ToolSpec
from outlast.core.transcript import Message
from outlast.testing.scripted import Say, Script, ScriptedCall, ScriptedModel

FLIGHT, HOTEL = ScriptedCall("book", {"what": "flight"}), ScriptedCall("book", {"what": "hotel"})
STEPS = (Say("First the flight.", [FLIGHT]), Say("Now the hotel.", [HOTEL]))
ANSWER = "Your trip to Lisbon is booked."
TRIP = Script(*STEPS, ANSWER)


class Failing(ScriptedModel):
    """Begins to speak about what one tool returned, and fails."""

    def __init__(self, after: str, failure: Callable[[], object]) -> None:
        super().__init__(TRIP)
        self._after, self._failure = f"The {after} is booked.", failure

    async def stream(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> AsyncGenerator[Delta, None]:
        async for delta in super().stream(messages, tools):
            yield delta
            if messages[-1].content == self._after:
                self._failure()
                return


def drop() -> None:
    raise ProviderUnavailable("the connection dropped")


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def say_no_more() -> None:
    """The stream of the answer ends, without the end of the answer."""


class Trip:
    """A folder with the state of the agent and the file its tools write to."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.booked = folder, folder / "booked"

    def chat(self, model: ScriptedModel, store: LocalStore) -> ChatSession:
        async def book(what: str) -> str:
            """Book a flight or a hotel."""
            with self.booked.open("a") as file:
                file.write(f"{what}\n")
            return f"The {what} is booked."

        return Agent(model, tools=[book]).session("trip", store=store)

    def store(self) -> LocalStore:
        return open_store(f"sqlite:///{self.folder / 'state.db'}")

    async def go_on(self, chat: ChatSession, kind: str) -> str:
        """Ask where the conversation stands, go on from there, and see that each tool ran once."""
        point = await chat.resume_point()
        assert point is not None
        assert point.kind == kind, point
        print(f"  interrupted: {point.description} ({point.cause or 'it was the answer itself'})")
        if point.partial_text:
            print(f"  it had said: {point.partial_text!r}")
        reply = await chat.resume()
        assert await chat.resume_point() is None
        print(f"  resumed:     {reply.text!r}")
        assert self.booked.read_text() == "flight\nhotel\n"
        return reply.text


async def the_connection_drops(trip: Trip) -> None:
    """The provider is lost after a tool ran: the tool's result is in the history, and the model is asked again."""
    async with trip.store() as store:
        with suppress(RunFailed):
            await trip.chat(Failing("flight", drop), store).run("Book my trip.")
        assert await trip.go_on(trip.chat(ScriptedModel(TRIP), store), "call_model") == ANSWER


async def the_process_is_killed(trip: Trip) -> None:
    """SIGKILL between two tools: the run goes on where the dead process left it."""
    child = await asyncio.create_subprocess_exec(sys.executable, __file__, "--killed-in", str(trip.folder))
    assert await child.wait() == -signal.SIGKILL
    assert trip.booked.read_text() == "flight\n"
    async with trip.store() as store:
        assert await trip.go_on(trip.chat(ScriptedModel(TRIP), store), "call_model") == ANSWER


async def the_stream_is_cut(trip: Trip) -> None:
    """The answer breaks off: what was streamed of it is shown, is in no history, and is asked for anew."""
    async with trip.store() as store:
        with suppress(RunFailed):
            await trip.chat(Failing("hotel", say_no_more), store).run("Book my trip.")
        assert await trip.go_on(trip.chat(ScriptedModel(TRIP), store), "call_model") == ANSWER


async def the_answer_is_too_long(trip: Trip) -> None:
    """The output limit cuts the answer: it is kept, and the model goes on where it stopped."""
    cut = ScriptedModel(Script(*STEPS, Say(ANSWER[:16], stop_reason="length")))
    async with trip.store() as store:
        reply = await trip.chat(cut, store).run("Book my trip.")
        rest = await trip.go_on(trip.chat(ScriptedModel(ANSWER[16:]), store), "continue_response")
    assert reply.text + rest == ANSWER


async def somebody_presses_stop(trip: Trip) -> None:
    """A run is stopped while the model speaks: what was said is shown, and is asked for anew."""
    async with trip.store() as store:
        chat = trip.chat(ScriptedModel(Script(*TRIP.answers, delay_seconds=0.05)), store)
        async for event in chat.stream("Book my trip."):
            if event["type"] == "agent.part.delta" and "Your" in event["delta"]:
                await chat.cancel()
        assert await trip.go_on(chat, "call_model") == ANSWER


SCENES = (
    the_connection_drops, the_process_is_killed, the_stream_is_cut, the_answer_is_too_long, somebody_presses_stop,
)  # fmt: skip


async def main() -> None:
    if sys.argv[1:2] == ["--killed-in"]:
        trip = Trip(Path(sys.argv[2]))
        async with trip.store() as store:
            await trip.chat(Failing("flight", kill), store).run("Book my trip.")
        return
    for scene in SCENES:
        print(scene.__name__.replace("_", " ").capitalize() + ".")
        with tempfile.TemporaryDirectory() as folder:
            await scene(Trip(Path(folder)))
    print("No tool ran twice.")


if __name__ == "__main__":
    asyncio.run(main())
