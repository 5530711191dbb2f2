"""Runs inside the transaction that `outlast.store.migrate` opened; there is no offline mode and no ini file."""

from alembic import context

from outlast.store.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table="schema_version",
    version_table_schema=context.config.attributes["schema"],
    transactional_ddl=True,
)
context.run_migrations()
