"""Clients for agents that run behind a URL."""

from outlast.client.client import AgentClient, SyncAgentClient
from outlast.client.session import RemoteSession, SyncRemoteSession
from outlast.client.transport import ServerUnreachable, UnexpectedAnswer

__all__ = [
    "AgentClient",
    "RemoteSession",
    "ServerUnreachable",
    "SyncAgentClient",
    "SyncRemoteSession",
    "UnexpectedAnswer",
]
