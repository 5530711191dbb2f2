"""The agent: its model, its instructions and its tools. Nothing here knows how it is served."""
