"""What an attempt needs of the worker that runs it."""

from collections.abc import Sequence
from typing import Protocol

from outlast.core.records import Invocation
from outlast.engine.auth import RequestAuth
from outlast.engine.context import Event
from outlast.engine.settings import EngineSettings
from outlast.store.store import Store


class Worker(Protocol):
    """The engine as its attempts see it."""

    store: Store
    settings: EngineSettings

    async def assured(self) -> None: ...
    def committed(self, number: int, events: Sequence[Event]) -> None: ...
    def progressed(self, number: int) -> None: ...
    def auth(self, invocation: Invocation) -> RequestAuth: ...
    def released(self, numbers: Sequence[int]) -> None: ...
