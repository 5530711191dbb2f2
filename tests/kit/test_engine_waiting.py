"""What a worker does for runs that only wait."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.engine import Engine as Pool

from outlast import InvocationContext
from outlast.core import faults
from outlast.core.records import Request, Status

pytestmark = pytest.mark.anyio

WAITING = 200
WINDOW_SECONDS = 1.0
"""Of measuring; a worker looks around about twenty times in it."""


@contextmanager
def counted() -> Iterator[Callable[[], int]]:
    """Count the reading statements of this process and its write transactions."""
    seen: list[str] = []

    def read(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        seen.append(statement)

    def write(point: str) -> None:
        if point.endswith(".begin"):
            seen.append(point)

    event.listen(Pool, "before_cursor_execute", read)
    faults.install(write)
    try:
        yield lambda: len(seen)
    finally:
        faults.install(None)
        event.remove(Pool, "before_cursor_execute", read)


async def test_many_waiting_runs_cost_no_more_than_none(
    running: Callable[..., Any], make_request: Callable[..., Request]
) -> None:
    # BR-26
    let_go = asyncio.Event()

    async def invoke(context: InvocationContext) -> Any:
        if context.input == 0:
            await let_go.wait()

    async def spent() -> tuple[int, float]:
        with counted() as count:
            cpu = time.process_time()
            await asyncio.sleep(WINDOW_SECONDS)
            return count(), time.process_time() - cpu

    async with running(invoke) as engine:
        first = await engine.accept(make_request("s", input=0))
        statements, cpu = await spent()
        rest = [await engine.accept(make_request("s", input=n)) for n in range(1, WAITING + 1)]
        statements_of_many, cpu_of_many = await spent()
        assert statements > 0
        assert statements_of_many <= 2 * statements + 10
        assert cpu_of_many <= 2 * cpu + 0.1
        let_go.set()
        assert {(await engine.wait(run)).status for run in (first, *rest)} == {Status.COMPLETED}
