"""Who asked for a run, as far as one attempt may know it; held in memory, never stored, never logged."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class RequestAuth:
    """The caller of the request. `credential` is None when the attempt runs after a restart or on another worker."""

    principal: str
    credential: str | None = field(default=None, repr=False)
