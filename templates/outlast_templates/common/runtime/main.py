"""The service: `outlast serve`, `python -m runtime.main` and `uvicorn runtime.main:app` all run it."""

import os
import sys
from pathlib import Path

from agent.model import KEY, make_model
from outlast.cli import main
from outlast.server import Config
from runtime.adapter import make_server

config = Config.read(Path(__file__).parents[1])  # agent.toml, with .env and the environment
if not os.environ.get(KEY):
    sys.exit(f"{KEY} is not set: put it into the environment, or into .env (.env.example shows how)")

app = make_server(make_model(), config)

if __name__ == "__main__":
    main(["serve", "runtime.main:app", *sys.argv[1:]])
