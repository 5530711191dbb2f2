"""Where integrations are found."""

INTEGRATIONS = "outlast.integrations"
"""Entry-point group. Each entry point names a module that has `recognise(obj) -> AgentLike | None`."""
