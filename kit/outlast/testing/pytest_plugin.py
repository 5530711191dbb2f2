"""Fixtures for tests that need a store; load it by `pytest_plugins = ["outlast.testing.pytest_plugin"]`."""

import asyncio
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import make_url

from outlast.testing._tables import make_tables
from outlast.testing.crashtest import Report
from outlast.testing.crashtest import crashtest as run_crashtest
from outlast.testing.postgres import PostgresServer, PostgresUnavailable, find_binaries


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "postgres: needs a PostgreSQL server (deselect with -m 'not postgres')")


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """Give one PostgreSQL to the whole test session, or skip where its wheel is not installed.

    It runs without fsync: tests kill processes, not the machine.
    """
    pytest.importorskip("psycopg")
    try:
        binaries = find_binaries()
    except PostgresUnavailable as error:
        pytest.skip(str(error))
    with PostgresServer(fsync=False, binaries=binaries) as server:
        yield server


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a database to copy."""
    path = tmp_path_factory.mktemp("template") / "state.db"
    asyncio.run(make_tables(f"sqlite:///{path}"))
    return path


@pytest.fixture(scope="session")
def postgres_template(postgres_server: PostgresServer) -> str:
    """The same on the PostgreSQL of this test session; returns the name of the database."""
    url = postgres_server.create_database()
    asyncio.run(make_tables(url))
    return str(make_url(url).database)


@pytest.fixture
def crashtest() -> Callable[..., Report]:
    """Give `outlast.testing.crashtest.crashtest`; the test fails where a run does not come back, or a tool runs twice."""

    def check(target: str, input: Any, **options: Any) -> Report:
        __tracebackhide__ = True
        report = run_crashtest(target, input, **options)
        if not report.ok:
            pytest.fail(str(report))
        return report

    return check


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Give the URL of a fresh, empty store; the test runs once for each kind of database."""
    if request.param == "sqlite":
        path = tmp_path / "state.db"
        shutil.copyfile(request.getfixturevalue("sqlite_template"), path)
        yield f"sqlite:///{path}"
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    server.start()  # a test that failed may have left it stopped
    url = server.create_database(template=request.getfixturevalue("postgres_template"))
    yield url
    server.start()
    server.drop_database(url)
