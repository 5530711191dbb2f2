"""BR-53: hosted databases often give no other address than that of a pooler."""

import asyncio
import logging
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from outlast.core.records import Request, Status
from outlast.engine import AgentHandlers, Engine, EngineSettings, InvocationContext
from outlast.store import Store
from outlast.testing._ports import free_port
from outlast.testing.postgres import PostgresServer

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.postgres,
    pytest.mark.skipif(shutil.which("pgbouncer") is None, reason="needs pgbouncer"),
]

CONFIGURATION = """
[databases]
* = host={server.host} port={server.port} user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 4
ignore_startup_parameters = extra_float_digits
"""


@pytest.fixture
def pooled_url(postgres_server: PostgresServer, tmp_path: Path) -> Iterator[str]:
    direct = postgres_server.create_database()
    port = free_port()
    path = tmp_path / "pgbouncer.ini"
    path.write_text(CONFIGURATION.format(server=postgres_server, port=port))
    with subprocess.Popen(["pgbouncer", "-u", "nobody", path], stderr=subprocess.PIPE, text=True) as pooler:
        assert pooler.stderr is not None
        assert any("process up" in line for line in pooler.stderr)
        yield direct.replace(f":{postgres_server.port}/", f":{port}/")
        pooler.kill()
    postgres_server.drop_database(direct)


async def test_runs_behind_a_pooler_that_gives_each_transaction_another_connection(
    pooled_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    effects: list[str] = []

    async def handler(context: InvocationContext) -> int:
        for number in range(5):
            await context.emit(number)
        await context.once("effect", effects.append, context.invocation_id)
        return context.attempt

    caplog.set_level(logging.WARNING)
    stores = [await Store.open(pooled_url) for _ in range(2)]
    engines = [
        Engine(store, {"a": AgentHandlers(handler, handler)}, EngineSettings(poll=0.05, state_dir=tmp_path))
        for store in stores
    ]
    for engine in engines:
        await engine.start()
    requests = [
        Request.of(principal="local", id=str(uuid.uuid4()), session_id=f"s{n % 10}", agent="a", input=n)
        for n in range(50)
    ]
    accepted = await asyncio.gather(*(engines[n % 2].accept(request) for n, request in enumerate(requests)))
    finals = await asyncio.gather(*(engines[n % 2].wait(run) for n, run in enumerate(accepted)))
    for engine, store in zip(engines, stores, strict=True):
        await engine.stop()
        await store.close()

    assert {(final.status, final.attempt, final.last_position) for final in finals} == {(Status.COMPLETED, 1, 5)}
    assert sorted(effects) == sorted(request.id for request in requests)
    assert [record.message for record in caplog.records if "pooler" not in record.message] == []
    assert any("there is a pooler before the database" in record.message for record in caplog.records)
