"""What the SDK forgets when its run ends, told to its next run through a copy of the user's RunConfig."""

import inspect
from collections.abc import Collection
from dataclasses import replace
from typing import Any

from agents import Agent, ModelSettings, RunConfig
from agents.run_config import CallModelData, ModelInputData

UNFORCED = "auto"
"""What providers do without a `tool_choice`, to which the SDK resets it."""


class Config:
    """The RunConfig of one run of the SDK. `used` names the agents that called a tool earlier in the same turn.

    The SDK forces an agent to use a tool until it did, and takes `tool_choice` back then; its next run would begin anew.
    """

    def __init__(self, given: RunConfig | None, used: Collection[str]) -> None:
        self.run_config = given
        self._used = used
        self._choice = given.model_settings.tool_choice if given is not None and given.model_settings else None
        self._settings: ModelSettings | None = None
        self._user_filter = None if given is None else given.call_model_input_filter
        self._unfiltered: list[Any] | None = None
        if used:
            self._settings = replace((given and given.model_settings) or ModelSettings())
            self.run_config = replace(given or RunConfig(), model_settings=self._settings)
        if self._user_filter is not None:
            self.run_config = replace(self.run_config or RunConfig(), call_model_input_filter=self._filter)

    def begin(self, agent: Agent[Any]) -> None:
        """Set what holds for the first response of an agent; behind that one the SDK knows by itself."""
        if self._settings is None or agent.name not in self._used or agent.reset_tool_choice is not True:
            return
        forced = self._choice if self._choice is not None else agent.model_settings.tool_choice
        if forced is not None:
            self._settings.tool_choice = UNFORCED

    def began(self) -> None:
        """Take it back once the SDK has read it: agents that are tools are given the same RunConfig."""
        if self._settings is not None:
            self._settings.tool_choice = self._choice

    def model_input(self, sent: list[Any]) -> list[Any]:
        """Return what a model is sent before the user's filter of its input, which runs on it each time."""
        return sent if self._unfiltered is None else self._unfiltered

    async def _filter(self, data: CallModelData[Any]) -> ModelInputData:
        assert self._user_filter is not None
        self._unfiltered = list(data.model_data.input)
        found = self._user_filter(data)
        return await found if inspect.isawaitable(found) else found
