"""Where the code of a graph runs, by names that every attempt gives to the same place.

LangGraph names a task by the namespaces of the graphs it is in. Its id is the same in every attempt where those graphs
keep their state; below one that keeps none, the place is the last task above it that has such an id.
"""

import hashlib
from collections.abc import Collection

from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import ensure_config

from outlast.adapters.journal import ToolCall


def within(config: RunnableConfig | None) -> RunnableConfig:
    """Return a config with what LangGraph says of the task around it, which LangChain drops where a caller gives its own."""
    given, around = ensure_config(config), ensure_config()
    metadata = {**around.get("metadata", {}), **given.get("metadata", {})}
    configurable = {**around.get("configurable", {}), **given.get("configurable", {})}
    return {**given, "metadata": metadata, "configurable": configurable}


def namespace(config: RunnableConfig) -> str:
    """Return the name of the task that code runs in, as LangGraph has it.

    The steps of a pipe that was given metadata of its own have it among the other settings only.
    """
    found = (config.get("metadata") or {}).get("langgraph_checkpoint_ns")
    return str(found or (config.get("configurable") or {}).get("checkpoint_ns") or "")


def checkpoint(config: RunnableConfig, task: str) -> str:
    """Return the id of the checkpoint of the graph whose task, or a graph without checkpoints in it, the code runs in."""
    above = task.rpartition("|")[0]
    return str((config["configurable"].get("checkpoint_map") or {}).get(above, ""))


def is_called(config: RunnableConfig) -> bool:
    """Say whether code runs in a `@task`, whose id is that of its place in the code that called it."""
    path = tuple((config.get("metadata") or {}).get("langgraph_path") or ())
    return len(path) == 4 and path[-1] is True


def task(steady: Collection[str], namespace: str) -> str:
    """Return the innermost task around a namespace whose id is the same in every attempt."""
    parts = namespace.split("|")
    for end in range(1, len(parts)):
        if not parts[end].isdigit() and "|".join(parts[:end]) not in steady:
            return "|".join(parts[: end - 1 if parts[end - 1].isdigit() else end])
    return namespace


def inner(config: RunnableConfig, call: ToolCall) -> str | None:
    """Return the namespace of the first graph that the tool of a call runs."""
    namespace = config["configurable"].get("checkpoint_ns")
    return f"{namespace}|{first_graph(call)}" if namespace else None


def first_graph(call: ToolCall) -> int:
    """Return the number of the first graph that the tool of a call runs.

    LangGraph numbers the graphs that run in one task in their order. After a crash some calls are answered and run
    none, so that each call has numbers of its own.
    """
    return int.from_bytes(hashlib.sha256(call.key.encode()).digest()[:6], "big") + 1
