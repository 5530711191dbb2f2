"""The service, as a part of your own app: `python -m runtime.main` and `uvicorn runtime.main:app` run it."""

import os
import sys
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from agent.model import KEY, make_model
from outlast.server import Config
from runtime.adapter import make_server

config = Config.read(Path(__file__).parents[1])  # agent.toml, with .env and the environment
if not os.environ.get(KEY):
    sys.exit(f"{KEY} is not set: put it into the environment, or into .env (.env.example shows how)")

app = FastAPI(title="my-agent")
make_server(make_model(), config).install(app)


@app.get("/")
async def home() -> dict[str, str]:
    """A route of your own."""
    return {"agent": "/api/agent", "invocations": "/api/invocations"}


if __name__ == "__main__":
    uvicorn.main(["runtime.main:app", *sys.argv[1:]])
