"""Databases that have tables and nothing in them: to copy one is much quicker than to make the next."""

from outlast.store import Store


async def make_tables(url: str) -> None:
    """Make the tables of a store."""
    await (await Store.open(url)).close()
