"""Imported by the process from which cases are forked: has the client of OpenAI learn its types, which takes it a while."""

import asyncio
from typing import Any

from agents import Agent, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from outlast.testing.scripted import Say, Script, ScriptedCall
from outlast_openai.provider import Provider

set_tracing_disabled(True)


@function_tool
async def look(at: str) -> str:
    """Look."""
    return at


async def talk(url: str) -> None:
    http = DefaultAsyncHttpxClient(verify=False)
    async with AsyncOpenAI(api_key="none", base_url=url, http_client=http) as client:
        for model in (OpenAIResponsesModel, OpenAIChatCompletionsModel):
            agent = Agent[Any](name="a", model=model("m", openai_client=client), tools=[look])
            async for _ in Runner.run_streamed(agent, "look").stream_events():
                pass
            await Runner.run(agent, "look")


with Provider({"m": Script(Say("Wait.", [ScriptedCall("look", {"at": "sky"})]), "Blue.")}) as provider:
    asyncio.run(talk(provider.url))
