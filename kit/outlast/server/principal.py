"""Who is calling. This is the one place that decides it; every row belongs to a principal."""

from starlette.requests import HTTPConnection

from outlast.engine import RequestAuth

LOCAL = "local"
"""The principal of everybody while no authentication is set up."""


def caller(connection: HTTPConnection) -> RequestAuth:
    """Return who sends a request, with the bearer credential it carries (kept in memory only)."""
    scheme, _, credential = connection.headers.get("authorization", "").partition(" ")
    bearer = credential.strip() if scheme.lower() == "bearer" else ""
    return RequestAuth(LOCAL, bearer or None)
