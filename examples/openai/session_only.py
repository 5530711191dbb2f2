"""Only the session: the SDK runs the agent, outlast keeps the conversation. No network, no keys.

    python examples/openai/session_only.py

Run it again, and the conversation goes on: it is in `.outlast/state.db`.
"""

import asyncio

from agents import Agent, Runner

from outlast.testing.scripted import Script
from outlast_openai import StoreSession
from outlast_openai.testing import ScriptModel


async def main() -> None:
    agent = Agent(name="Assistant", model=ScriptModel(Script("I remember.")))
    session = StoreSession("customer-42")
    result = await Runner.run(agent, "Remember the number 7.", session=session)
    print(result.final_output)

    # A branch: the same conversation up to its first message, and then another one.
    branch = await session.fork(before_turn=1)
    await Runner.run(agent, "Remember the number 8.", session=branch)
    print(f"{len(await session.get_items())} items here, {len(await branch.get_items())} in the branch")
    await session.close()


if __name__ == "__main__":
    asyncio.run(main())
