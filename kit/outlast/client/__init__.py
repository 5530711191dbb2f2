"""Clients for agents that run behind a URL."""

from outlast.client.client import AgentClient, SyncAgentClient
from outlast.client.memory_store import RemoteMemoryStore, SyncRemoteMemoryStore
from outlast.client.session import RemoteSession, SyncRemoteSession
from outlast.client.session_store import RemoteSessionStore, SyncRemoteSessionStore
from outlast.client.transport import AnswerLost, ServerUnreachable, UnexpectedAnswer
from outlast.core.conversations import ApprovalRequest

__all__ = [
    "AgentClient",
    "AnswerLost",
    "ApprovalRequest",
    "RemoteMemoryStore",
    "RemoteSession",
    "RemoteSessionStore",
    "ServerUnreachable",
    "SyncAgentClient",
    "SyncRemoteMemoryStore",
    "SyncRemoteSession",
    "SyncRemoteSessionStore",
    "UnexpectedAnswer",
]
