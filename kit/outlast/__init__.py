"""Durable agents: turn the agent you have into a service that survives its own death."""
