"""Numbered, append-only changes of the schema, run by alembic."""
