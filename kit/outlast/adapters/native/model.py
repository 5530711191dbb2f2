"""What the native agent needs of a model: a stream of neutral deltas, and errors that say whether to try again."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from outlast.core.errors import RunFailed
from outlast.core.transcript import Message, StopReason


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as a model is told of it; `parameters` is a JSON schema."""

    name: str
    description: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TextDelta:
    """A piece of the answer's text."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """A piece of what a model thought before it answered."""

    text: str


@dataclass(frozen=True, slots=True)
class CallDelta:
    """A piece of a tool call. `index` says of which one; the first piece of each has its id and name."""

    index: int
    arguments: str = ""
    id: str | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Stopped:
    """The end of the answer. A stream that ends without it was cut."""

    reason: StopReason
    usage: Mapping[str, int] = field(default_factory=dict)


Delta = TextDelta | ReasoningDelta | CallDelta | Stopped


class Model(Protocol):
    """A model. Implement it for a provider; `outlast.testing.scripted.ScriptedModel` is one without a network."""

    @property
    def name(self) -> str:
        """For people and for events."""
        ...

    def stream(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> AsyncGenerator[Delta, None]:
        """Answer a conversation. `internal` messages go to the provider as those of a user.

        Raises ProviderError and its kinds; whatever else it raises is a bug of the model and fails the run as such.
        """
        ...


class ProviderError(RunFailed):
    """The provider failed. The run fails with `code`, and can be resumed; with `retryable` it is called again first."""

    code = "provider_error"
    retryable = False

    def __init__(self, message: str) -> None:
        super().__init__(type(self).code, message)


class ProviderUnavailable(ProviderError):
    """The provider, or the way to it, is down."""

    code = "provider_unavailable"
    retryable = True


class ProviderTimeout(ProviderUnavailable):
    """The provider did not answer in time."""

    code = "provider_timeout"


class ProviderRateLimited(ProviderUnavailable):
    """The provider asks for fewer requests."""

    code = "provider_rate_limited"


class ProviderRefused(ProviderError):
    """The provider refuses the request itself: its key, its model, or its content."""

    code = "provider_refused"
