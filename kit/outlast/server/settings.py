"""How the HTTP side behaves. Read here and in `cli`, passed down as values."""

import os
from dataclasses import dataclass, field

from outlast.engine import EngineSettings
from outlast.store import DEFAULT_URL


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Times are seconds."""

    engine: EngineSettings = field(default_factory=EngineSettings)
    sync_wait: float | None = None
    """Longest wait of a request that is neither streaming nor in the background; then it is answered 202."""
    max_body_bytes: int = 10 << 20
    keep_alive: float = 15.0
    """A stream without events gets a comment so often, so that no proxy takes it for dead."""


def store_url(chosen: str | None) -> str:
    """Return the store's URL: what the program says, else OUTLAST_STORE, else a file below the current folder."""
    return chosen or os.environ.get("OUTLAST_STORE") or DEFAULT_URL
