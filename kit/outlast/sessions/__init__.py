"""Conversations and what is remembered: the session store and the memory store."""

from outlast.sessions.memory import Memory, MemorySearchResult, MemoryStore
from outlast.sessions.session import Session, SessionItem, SessionPage, SessionStore

__all__ = ["Memory", "MemorySearchResult", "MemoryStore", "Session", "SessionItem", "SessionPage", "SessionStore"]
