"""Five ways a conversation is interrupted, and how it goes on. Run it: python examples/resume.py (no network, no keys).

The agent books a trip with two tools that note in a file what they did. Each scene interrupts it somewhere else, asks where
the conversation stands, goes on, and looks into the file: no tool ran twice.
"""

import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from pathlib import Path

from outlast import Agent, Reply, RunFailed, open_store
from outlast.adapters import ChatSession, LocalStore
from outlast.adapters.native import Delta, ProviderUnavailable, ToolSpec
from outlast.core.transcript import Message, Role
from outlast.testing.scripted import Say, Script, ScriptedCall, ScriptedModel

FLIGHT, HOTEL = ScriptedCall("book", {"what": "flight"}), ScriptedCall("book", {"what": "hotel"})
TRIP = Script(Say("First the flight.", [FLIGHT]), Say("Now the hotel.", [HOTEL]), "Your trip to Lisbon is booked.")


class Unreliable(ScriptedModel):
    """Loses its connection in the middle of the answer after the first tool."""

    async def stream(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> AsyncGenerator[Delta, None]:
        async for delta in super().stream(messages, tools):
            yield delta
            if messages[-1].role is Role.TOOL:
                raise ProviderUnavailable("the connection dropped")


class Trip:
    """A folder with the state of the agent and the file its tools write to."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.booked = folder, folder / "booked"

    def agent(self, model: ScriptedModel, *, kill_before: str | None = None) -> Agent:
        async def book(what: str) -> str:
            """Book a flight or a hotel."""
            if what == kill_before:
                os.kill(os.getpid(), signal.SIGKILL)
            with self.booked.open("a") as file:
                file.write(f"{what}\n")
            return f"The {what} is booked."

        return Agent(model, tools=[book])

    def store(self) -> LocalStore:
        return open_store(f"sqlite:///{self.folder / 'state.db'}")

    def times(self, what: str) -> int:
        return self.booked.read_text().split().count(what) if self.booked.exists() else 0


async def go_on(chat: ChatSession, kind: str) -> Reply:
    """Ask where the conversation stands, and resume it."""
    point = await chat.resume_point()
    assert point is not None
    assert point.kind == kind, point
    print(f"  interrupted: {point.description} ({point.cause or 'it was the answer itself'})")
    if point.partial_text:
        print(f"  it had said: {point.partial_text!r}")
    reply = await chat.resume()
    assert await chat.resume_point() is None
    print(f"  resumed:     {reply.text!r}")
    return reply


async def the_connection_drops(trip: Trip) -> None:
    """The provider is lost after a tool ran: the tool's result is in the history, and the model is asked again."""
    async with trip.store() as store:
        with suppress(RunFailed):
            await trip.agent(Unreliable(TRIP)).session("trip", store=store).run("Book my trip.")
        await go_on(trip.agent(ScriptedModel(TRIP)).session("trip", store=store), "call_model")
    assert (trip.times("flight"), trip.times("hotel")) == (1, 1)


async def the_process_is_killed(trip: Trip) -> None:
    """SIGKILL inside the second tool: its outcome is unknown, so the model is told so, and it is not run again."""
    child = await asyncio.create_subprocess_exec(sys.executable, __file__, "--killed-in", str(trip.folder))
    assert await child.wait() == -signal.SIGKILL
    async with trip.store() as store:
        reply = await trip.agent(ScriptedModel(TRIP)).session("trip", store=store).resume()
    print(f"  resumed:     {reply.text!r}")
    told = [message["content"] for message in reply.messages if message["role"] == "tool"]
    print(f"  of the hotel the model was told: {told[-1][:60]!r} …")
    assert (trip.times("flight"), trip.times("hotel")) == (1, 0)


async def the_listener_leaves(trip: Trip) -> None:
    """Who leaves a stream stops nothing: the run goes on, and the same id gives the whole of it."""
    id = "2f1d2c34-5b6a-4c7d-8e9f-0a1b2c3d4e5f"
    async with trip.store() as store:
        chat = trip.agent(ScriptedModel(TRIP)).session("trip", store=store)
        stream = chat.stream("Book my trip.", id=id)
        seen = await anext(stream)
        await stream.aclose()  # type: ignore[attr-defined]  # it is a generator
        whole = [event async for event in chat.stream("Book my trip.", id=id)]
    print(f"  heard again: {len(whole)} events, to the end")
    assert whole[0] == seen
    assert whole[-1]["reply"].text == "Your trip to Lisbon is booked."
    assert (trip.times("flight"), trip.times("hotel")) == (1, 1)


async def the_answer_is_too_long(trip: Trip) -> None:
    """The output limit cuts the answer: it is kept, and the model goes on where it stopped."""
    cut = ScriptedModel(Say("Lisbon has three sights: the tower, the mona", stop_reason="length"))
    async with trip.store() as store:
        reply = await trip.agent(cut).session("trip", store=store).run("What is there to see?")
        assert reply.stop_reason == "length"
        rest = await go_on(
            trip.agent(ScriptedModel("stery and the castle.")).session("trip", store=store), "continue_response"
        )
    assert reply.text + rest.text == "Lisbon has three sights: the tower, the monastery and the castle."


async def somebody_presses_stop(trip: Trip) -> None:
    """A run is stopped while the model speaks: what was said is shown, and resuming asks for it anew."""
    slow = Script(Say("First the flight.", [FLIGHT]), "Your flight is booked, have a nice trip.", delay_seconds=0.05)
    async with trip.store() as store:
        chat = trip.agent(ScriptedModel(slow)).session("trip", store=store)
        async for event in chat.stream("Book a flight."):
            if event["type"] == "agent.part.delta" and "Your" in event["delta"]:
                await chat.cancel()
        await go_on(chat, "call_model")
    assert trip.times("flight") == 1


SCENES = (
    the_connection_drops, the_process_is_killed, the_listener_leaves, the_answer_is_too_long, somebody_presses_stop,
)  # fmt: skip


async def main() -> None:
    if sys.argv[1:2] == ["--killed-in"]:
        trip = Trip(Path(sys.argv[2]))
        async with trip.store() as store:
            chat = trip.agent(ScriptedModel(TRIP), kill_before="hotel").session("trip", store=store)
            await chat.run("Book my trip.")
        return
    for scene in SCENES:
        print(scene.__name__.replace("_", " ").capitalize() + ".")
        with tempfile.TemporaryDirectory() as folder:
            await scene(Trip(Path(folder)))
    print("No tool ran twice.")


if __name__ == "__main__":
    asyncio.run(main())
