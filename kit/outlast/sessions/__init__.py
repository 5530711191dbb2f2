"""Conversations: the session store."""

from outlast.sessions.session import Session, SessionItem, SessionPage, SessionStore

__all__ = ["Session", "SessionItem", "SessionPage", "SessionStore"]
