"""Fixtures for tests that need a store; load it by `pytest_plugins = ["outlast.testing.pytest_plugin"]`."""

from collections.abc import Iterator
from pathlib import Path

import pytest

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


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Give the URL of a fresh, empty database; the test runs once for each kind."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'state.db'}"
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    server.start()  # a test that failed may have left it stopped
    url = server.create_database()
    yield url
    server.start()
    server.drop_database(url)
