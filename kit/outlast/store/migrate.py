"""Bring the schema up to date: one transaction under one lock, safe when many processes start at once."""

from pathlib import Path

from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError, OperationalError, ProgrammingError

from outlast.core import faults
from outlast.core.errors import StoreSetupError

HEAD = "0001"
"""The newest revision in `migrations/versions`."""

_LOCK = 0x6F75746C617374  # "outlast"
_MIGRATIONS = Path(__file__).parent / "migrations"


def migrate(engine: Engine, schema: str | None) -> bool:
    """Create or upgrade the tables. Return False when they were up to date.

    Raises StoreSetupError with one message that lists every missing permission, or when the database was made by a
    newer version.
    """
    if current(engine, schema) == HEAD:
        return False
    faults.reach("migrate.begin")
    try:
        with engine.connect() as connection:
            _begin(connection, schema)
            changed = _upgrade(connection, schema)
            faults.reach("migrate.before_commit")
            connection.exec_driver_sql("COMMIT")
    except ProgrammingError as error:
        raise StoreSetupError(_missing_permissions(engine, schema, error)) from error
    faults.reach("migrate.after_commit")
    return changed


def current(engine: Engine, schema: str | None) -> str | None:
    """Return the revision of the database, or None when it has no tables of ours."""
    table = f'"{schema}".schema_version' if schema else "schema_version"
    try:
        with engine.connect() as connection:
            return connection.exec_driver_sql(f"SELECT version_num FROM {table}").scalar_one_or_none()
    except ProgrammingError:
        return None
    except OperationalError as error:
        if "no such table" in str(error):
            return None
        raise StoreSetupError(f"the database cannot be reached: {error.orig}") from error


def require_current(engine: Engine, schema: str | None) -> None:
    """Raise StoreSetupError when the schema is not the one this version knows."""
    found = current(engine, schema)
    if found is None:
        raise StoreSetupError("this database has no tables of outlast; `outlast store migrate` makes them")
    if found != HEAD:
        raise StoreSetupError(
            f"the schema of this store is {found}, and this version of outlast knows {HEAD}; run `outlast store migrate`, "
            "or upgrade outlast if the store is the newer one"
        )


def _begin(connection: Connection, schema: str | None) -> None:
    if schema is None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")
        return
    connection.exec_driver_sql("BEGIN")
    connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
    exists = connection.execute(text("SELECT to_regnamespace(:name)"), {"name": f'"{schema}"'}).scalar()
    if exists is None:
        connection.exec_driver_sql(f'CREATE SCHEMA "{schema}"')


def _upgrade(connection: Connection, schema: str | None) -> bool:
    # Alembic takes longer to import than everything else together, and is needed once a release.
    from alembic import command
    from alembic.config import Config
    from alembic.runtime.migration import MigrationContext
    from alembic.script import ScriptDirectory

    options = {"version_table": "schema_version", "version_table_schema": schema}
    found = MigrationContext.configure(connection, opts=options).get_current_revision()
    if found == HEAD:
        return False
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS))
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    if found is not None and found not in known:
        raise StoreSetupError(
            f"this database was made by a newer version of outlast (schema {found}, this version knows {HEAD}); "
            "upgrade outlast"
        )
    config.attributes.update(connection=connection, schema=schema)
    if schema is not None:
        connection.exec_driver_sql(f'SET LOCAL search_path TO "{schema}"')
    command.upgrade(config, "head")
    return True


def _missing_permissions(engine: Engine, schema: str | None, error: DBAPIError) -> str:
    """Ask the database for every permission at once, so that nobody finds them one failed start at a time."""
    if schema is None:
        return f"the database refused the migration: {error.orig}"
    checks = {
        f"CREATE on the database (to create the schema {schema!r})": (
            "to_regnamespace(:schema) IS NOT NULL OR has_database_privilege(current_database(), 'CREATE')"
        ),
        f"USAGE on the schema {schema!r}": (
            "to_regnamespace(:schema) IS NULL OR has_schema_privilege(to_regnamespace(:schema), 'USAGE')"
        ),
        f"CREATE on the schema {schema!r}": (
            "to_regnamespace(:schema) IS NULL OR has_schema_privilege(to_regnamespace(:schema), 'CREATE')"
        ),
    }
    with engine.connect() as connection:
        user = connection.exec_driver_sql("SELECT current_user").scalar()
        missing = [
            name
            for name, check in checks.items()
            if not connection.execute(text(f"SELECT {check}"), {"schema": f'"{schema}"'}).scalar()
        ]
    if not missing:
        return f"the database refused the migration: {error.orig}"
    return f"the database user {user!r} lacks permissions: {'; '.join(missing)}"
