"""The service, as a part of your own app: `python -m runtime.main` and `uvicorn runtime.main:app` run it."""

import sys
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from my_module import my_object as agent
from outlast import DurableAgentServer
from outlast.server import Config

config = Config.read(Path(__file__).parents[1])  # agent.toml, with .env and the environment
app = FastAPI(title="my-agent")
DurableAgentServer(agent, config=config).install(app)

if __name__ == "__main__":
    uvicorn.main(["runtime.main:app", *sys.argv[1:]])
