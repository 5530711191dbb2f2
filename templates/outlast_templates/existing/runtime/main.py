"""The service: `outlast serve`, `python -m runtime.main` and `uvicorn runtime.main:app` all run it."""

import sys
from pathlib import Path

from my_module import my_object as agent
from outlast import DurableAgentServer
from outlast.cli import main
from outlast.server import Config

config = Config.read(Path(__file__).parents[1])  # agent.toml, with .env and the environment
app = DurableAgentServer(agent, config=config)

if __name__ == "__main__":
    main(["serve", "runtime.main:app", *sys.argv[1:]])
