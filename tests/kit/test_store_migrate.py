from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import make_url

from outlast.core.errors import StoreSetupError
from outlast.store import Store
from outlast.store.migrate import HEAD, current
from outlast.store.tables import metadata
from outlast.store.url import parse
from outlast.testing.postgres import PostgresServer

pytestmark = pytest.mark.anyio


async def test_the_migrations_make_the_schema_the_tables_describe(store: Store) -> None:
    with store._engine.connect() as connection:
        if store.url.schema is not None:
            connection.exec_driver_sql(f'SET search_path TO "{store.url.schema}"')
        context = MigrationContext.configure(
            connection,
            opts={
                "version_table": "schema_version",
                "compare_server_default": False,
                # What each database has for full text is not in the tables.
                "include_name": lambda name, kind, _: (
                    kind != "table" or not name.startswith(("memory_words", "document_words"))
                ),
            },
        )
        assert compare_metadata(context, metadata) == []
    assert current(store._engine, store.url.schema) == HEAD


async def test_a_database_of_a_newer_version_is_left_alone(store: Store, store_url: str) -> None:
    table = f'"{store.url.schema}".schema_version' if store.url.schema else "schema_version"
    with store._engine.connect() as connection:
        connection.exec_driver_sql(f"UPDATE {table} SET version_num = '9999'")
    with pytest.raises(StoreSetupError, match="newer version of outlast"):
        await Store.open(store_url)


@pytest.mark.postgres
async def test_every_missing_permission_is_named_at_once(postgres_server: PostgresServer) -> None:
    url = postgres_server.create_database()
    admin = await Store.open(f"{url}?schema=other")
    with admin._engine.connect() as connection:
        connection.exec_driver_sql("CREATE ROLE guest LOGIN")
    await admin.close()
    guest = make_url(url).set(username="guest").render_as_string(hide_password=False)
    with pytest.raises(StoreSetupError, match=r"'guest' lacks permissions: CREATE on the database"):
        await Store.open(guest)
    with pytest.raises(StoreSetupError, match=r"USAGE on the schema 'other'; CREATE on the schema 'other'"):
        await Store.open(f"{guest}?schema=other")


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("mysql://x/y", "no store for 'mysql'"),
        ("sqlite://", "needs a file"),
        ("sqlite:///:memory:", "needs a file"),
        ("sqlite:////tmp/a%00b.db", "needs a file"),
        ("nonsense", "cannot be read"),
        ("postgresql://x:port/y", "cannot be read"),
        ("postgresql://x/y?schema=a%22b", "schema"),
    ],
)
def test_an_unusable_url_is_refused_with_the_way_out(url: str, reason: str) -> None:
    with pytest.raises(StoreSetupError, match=reason):
        parse(url)


async def test_a_file_that_cannot_be_opened_is_refused_with_the_reason(tmp_path: Path) -> None:
    broken = tmp_path / "broken.db"
    broken.write_bytes(b"x" * 5000)
    with pytest.raises(StoreSetupError, match="not a database"):
        await Store.open(f"sqlite:///{broken}")
    with pytest.raises(StoreSetupError, match="File exists"):
        await Store.open(f"sqlite:///{broken}/state.db")


@pytest.mark.postgres
async def test_a_database_that_cannot_be_opened_is_refused_with_the_reason(postgres_server: PostgresServer) -> None:
    with pytest.raises(StoreSetupError, match='"no_such_option"'):
        await Store.open(f"{postgres_server.url('postgres')}?no_such_option=1")
    with pytest.raises(StoreSetupError, match='"nowhere" does not exist'):
        await Store.open(postgres_server.url("nowhere"))


def test_a_password_is_never_shown(tmp_path: Path) -> None:
    assert "secret" not in str(parse("postgresql://user:secret@host/db"))


async def test_the_memory_store_leaves_nothing_behind() -> None:
    store = await Store.open("memory")
    assert store.url.path is not None and store.url.path.exists()
    await store.close()
    assert not store.url.path.parent.exists()


@pytest.mark.postgres
async def test_a_database_that_may_forget_commits_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    with PostgresServer(fsync=False, settings={"synchronous_commit": "off"}) as server:
        await (await Store.open(server.create_database())).close()
    assert "synchronous_commit is 'off'" in caplog.text
