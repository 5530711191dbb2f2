"""Conversations and what is remembered: the session store and the memory store."""

from outlast.core.conversations import Memory, MemorySearchResult, Session, SessionItem, SessionPage
from outlast.sessions.memory import MemoryStore
from outlast.sessions.session import SessionStore

__all__ = ["Memory", "MemorySearchResult", "MemoryStore", "Session", "SessionItem", "SessionPage", "SessionStore"]
