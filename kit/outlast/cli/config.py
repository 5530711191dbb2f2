"""`outlast config`: what holds, and where each value came from."""

from outlast.cli import agent_toml
from outlast.cli.errors import USAGE, fail
from outlast.cli.options import Json
from outlast.cli.output import table, write_json
from outlast.core.errors import OutlastError
from outlast.server.config import settings
from outlast.store.url import masked


def config(json: Json = False) -> None:
    """Show what agent.toml, `.env` beside it and the environment say, and where each value came from.

    Passwords are not shown. Exit code 2: the file is not there, or wrong.
    """
    try:
        found = agent_toml.read()
    except OutlastError as error:
        fail(str(error), USAGE)
    values = found.file.model_dump(mode="json")
    rows = []
    for setting in settings():
        section, _, name = setting.key.partition(".")
        value = masked(found.store_url) if setting.key == "store.url" else values[section][name]
        rows.append({"key": setting.key, "value": value, "source": found.sources.get(setting.key, "default")})
    rows += [{"key": f"tools.{one.name}", "value": one.place, "source": found.path.name} for one in found.file.tools]
    if json:
        for row in rows:
            write_json(row)
    else:
        table(("key", "value", "source"), [(row["key"], _shown(row["value"]), row["source"]) for row in rows])


def _shown(value: object) -> object:
    return ", ".join(value) if isinstance(value, list) else value
