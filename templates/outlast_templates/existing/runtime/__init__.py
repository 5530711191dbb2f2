"""How the agent is served."""
