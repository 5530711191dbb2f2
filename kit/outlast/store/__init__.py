"""Every line of SQL. Callers see verbs and records, never rows or connections."""

from outlast.store.grouped import Accepted, Finished, Part
from outlast.store.store import Store
from outlast.store.url import DEFAULT_URL

__all__ = ["DEFAULT_URL", "Accepted", "Finished", "Part", "Store"]
