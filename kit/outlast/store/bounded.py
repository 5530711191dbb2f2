"""Reading no more rows than a reader can bear: by bytes, whatever their number."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Select, func, literal_column, select


def rows(connection: Connection, query: Select[Any], *size: str, max_bytes: int) -> list[Row[Any]]:
    """Return the first rows of an ordered query, with not many more bytes than `max_bytes` in them; at least one.

    `size` names the columns whose bytes count. PostgreSQL sends all it was asked for, so it is asked for less.
    """
    if connection.dialect.name == "postgresql":
        query = _asking_for_less(query, size, max_bytes)
    found: list[Row[Any]] = []
    read = 0
    for row in connection.execute(query):
        found.append(row)
        read += sum(len(row._mapping[column] or "") for column in size)
        if read >= max_bytes:
            break
    return found


def _asking_for_less(query: Select[Any], size: Sequence[str], max_bytes: int) -> Select[Any]:
    place: ColumnElement[int] = func.row_number().over(order_by=query._order_by_clauses)
    numbered = query.add_columns(place.label("place")).subquery()
    one, *more = [func.coalesce(func.octet_length(numbered.c[column]), 0) for column in size]
    bytes_: ColumnElement[int] = sum(more, one)
    before = func.sum(bytes_).over(order_by=numbered.c.place) - bytes_
    sized = select(numbered, before.label("before")).subquery()
    columns = [column for column in sized.c if column.name not in ("place", "before")]
    return select(*columns).where(sized.c.before < max_bytes).order_by(literal_column("place"))
