"""Store URLs: `sqlite:///file.db`, `postgresql://…`, or `memory`; and what is refused before anything is opened."""

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from outlast.core.errors import StoreSetupError
from outlast.store.statements import DialectName

DEFAULT_URL = "sqlite:///./.outlast/state.db"
DEFAULT_SCHEMA = "outlast"
"""Name of the PostgreSQL schema that holds the tables; `?schema=` chooses another."""

_REMOTE_FILE_SYSTEMS = ("nfs", "cifs", "smb", "fuse", "9p", "afs", "ceph", "gluster", "lustre", "sshfs")


@dataclass(frozen=True, slots=True)
class StoreURL:
    """A checked store URL. `path` is set for SQLite, `schema` for PostgreSQL."""

    sqlalchemy: URL
    path: Path | None = None
    schema: str | None = None
    durable: bool = True

    @property
    def is_sqlite(self) -> bool:
        return self.path is not None

    @property
    def dialect(self) -> DialectName:
        return "sqlite" if self.is_sqlite else "postgresql"

    def __str__(self) -> str:
        return self.sqlalchemy.render_as_string(hide_password=True)


def parse(text: str, *, create: bool = True) -> StoreURL:
    """Check a store URL and prepare its folder. Raise StoreSetupError with the reason and the way out.

    Without `create` nothing is made, and a store that is not there is refused.
    """
    if text == "memory":
        if not create:
            raise StoreSetupError("the store `memory` is empty, and ends with its process; name a file or a database")
        path = Path(tempfile.mkdtemp(prefix="outlast-")) / "state.db"
        return StoreURL(make_url(f"sqlite:///{path}"), path=path, durable=False)
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        raise StoreSetupError(
            "the store URL cannot be read; use sqlite:///path/file.db, postgresql://user@host/database or memory"
        ) from None
    if url.get_backend_name() == "sqlite":
        return _sqlite(url, create)
    if url.get_backend_name() == "postgresql":
        return _postgresql(url)
    raise StoreSetupError(f"no store for {url.get_backend_name()!r} URLs; use sqlite:///… or postgresql://…")


def _sqlite(url: URL, create: bool) -> StoreURL:
    path = _file(url)
    if path is None:
        raise StoreSetupError("an SQLite store needs a file: sqlite:///path/file.db (or --store memory for tests)")
    unsafe = url.query.get("unsafe") == "1"
    if create:
        path.parent.mkdir(parents=True, exist_ok=True)
    elif not path.is_file():
        raise StoreSetupError(f"there is no store at {path}; `outlast store migrate` makes one")
    kind = file_system(path.parent)
    if is_remote(kind) and not unsafe:
        raise StoreSetupError(
            f"{path} lies on a {kind} file system, where SQLite's locks are not reliable; "
            "use a local disk or PostgreSQL (or add ?unsafe=1 if you know better)"
        )
    return StoreURL(url.set(drivername="sqlite", database=str(path), query={}), path=path)


def _postgresql(url: URL) -> StoreURL:
    query = dict(url.query)
    schema = query.pop("schema", DEFAULT_SCHEMA)
    if not isinstance(schema, str) or not schema or len(schema) > 63 or '"' in schema or "\0" in schema:
        raise StoreSetupError("?schema= must name one PostgreSQL schema of at most 63 characters without quotes")
    return StoreURL(url.set(drivername="postgresql+psycopg", query=query), schema=schema)


def is_remote(file_system: str) -> bool:
    """Say whether a file system is one on which SQLite's locks are not reliable."""
    return file_system.startswith(_REMOTE_FILE_SYSTEMS)


def file_of(text: str) -> Path | None:
    """Return the file that an SQLite URL names, whether it is there or not; None for any other text."""
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        return None
    return _file(url) if url.get_backend_name() == "sqlite" else None


def masked(text: str) -> str:
    """Return a store URL as it may be shown: without its password, wherever that stands."""
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        return text if text == "memory" else "***"
    secret = dict.fromkeys((name for name in url.query if "password" in name), "***")
    return url.update_query_dict(secret).render_as_string(hide_password=True)


def below(text: str, folder: Path) -> str:
    """Return a store URL whose SQLite file, where its path is relative, lies below a folder; any other as it is."""
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        return text
    if url.get_backend_name() != "sqlite" or _file(url) is None:
        return text
    return url.set(database=str(folder.absolute() / str(url.database))).render_as_string(hide_password=False)


def _file(url: URL) -> Path | None:
    if not url.database or url.database == ":memory:" or "\0" in url.database:
        return None
    return Path(url.database).absolute()


def file_system(folder: Path) -> str:
    """Return the type of the mount that holds `folder`, or "" where the system does not say."""
    try:
        mounts = Path("/proc/self/mounts").read_text().splitlines()
    except OSError:
        return ""
    target = os.path.realpath(folder)
    best, kind = "", ""
    for line in mounts:
        _, mount, type_, *_ = line.split(" ")
        mount = mount.encode().decode("unicode_escape")
        inside = target == mount or target.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(best):
            best, kind = mount, type_
    return kind
