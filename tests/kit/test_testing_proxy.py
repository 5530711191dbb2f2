import socket
import threading
from collections.abc import Iterator

import psycopg
import pytest

from outlast.testing.postgres import PostgresServer
from outlast.testing.proxy import Cut, FaultProxy, When

pytestmark = pytest.mark.postgres


@pytest.fixture
def database(postgres_server: PostgresServer) -> Iterator[str]:
    url = postgres_server.create_database()
    with connect(url) as connection:
        connection.execute("CREATE TABLE things (id integer)")
    yield url
    postgres_server.drop_database(url)


@pytest.fixture
def proxy(postgres_server: PostgresServer) -> Iterator[FaultProxy]:
    with FaultProxy(postgres_server.host, postgres_server.port) as proxy:
        yield proxy


def connect(url: str) -> psycopg.Connection:
    return psycopg.connect(url.replace("+psycopg", ""))


def insert(url: str) -> None:
    with connect(url) as connection:
        connection.execute("INSERT INTO things VALUES (1)")


def count(url: str) -> int:
    """Count the rows once no transaction holds the table: a cut leaves the server finishing its last message."""
    with connect(url) as connection:
        connection.execute("LOCK TABLE things")
        row = connection.execute("SELECT count(*) FROM things").fetchone()
    assert row
    return int(row[0])


def is_waiting(thread: threading.Thread, seconds: float = 0.05) -> bool:
    thread.join(seconds)
    return thread.is_alive()


def test_connections_pass_and_are_counted(proxy: FaultProxy, database: str) -> None:
    insert(proxy.url(database))
    assert count(proxy.url(database)) == 1
    first, second = proxy.traffic
    assert min(first.to_server, second.to_server) > 3
    assert min(first.to_client, second.to_client) > 5


def test_equal_work_is_equal_traffic(proxy: FaultProxy, database: str) -> None:
    for _ in range(3):
        insert(proxy.url(database))
    assert len({one.to_server for one in proxy.traffic}) == 1


@pytest.mark.parametrize("when", ["before", "after"])
def test_only_a_cut_after_the_last_message_leaves_something_stored(
    proxy: FaultProxy, database: str, when: When
) -> None:
    insert(proxy.url(database))
    messages = proxy.traffic[0].to_server
    for nth in range(1, messages + 1):
        cut = proxy.cut(Cut("to_server", nth, when))
        with pytest.raises(psycopg.OperationalError):
            insert(proxy.url(database))
        assert cut.fired
    assert count(database) == (2 if when == "after" else 1)


def test_cut_happens_once(proxy: FaultProxy, database: str) -> None:
    cut = proxy.cut(Cut())
    assert not cut.fired
    with pytest.raises(psycopg.OperationalError):
        insert(proxy.url(database))
    assert cut.fired
    insert(proxy.url(database))


def test_cut_before_commit_loses_the_transaction(proxy: FaultProxy, database: str) -> None:
    proxy.cut(Cut(when="before", containing=b"COMMIT"))
    with pytest.raises(psycopg.OperationalError):
        insert(proxy.url(database))
    assert count(database) == 0


def test_cut_after_commit_keeps_the_transaction_and_loses_the_answer(proxy: FaultProxy, database: str) -> None:
    proxy.cut(Cut(when="after", containing=b"COMMIT"))
    with pytest.raises(psycopg.OperationalError):
        insert(proxy.url(database))
    assert count(database) == 1


def test_cut_after_the_answer_lets_the_client_know(proxy: FaultProxy, database: str) -> None:
    with connect(proxy.url(database)) as connection:
        proxy.cut(Cut("to_client", when="after", containing=b"COMMIT"), open_connections=True)
        connection.execute("INSERT INTO things VALUES (1)")
        with pytest.raises(psycopg.OperationalError):
            connection.commit()
    assert count(database) == 1


def test_cut_leaves_connections_alone_that_were_open(proxy: FaultProxy, database: str) -> None:
    with connect(proxy.url(database)) as connection:
        cut = proxy.cut(Cut())
        connection.execute("SELECT 1")
        assert not cut.fired


def test_frozen_connections_wait_and_go_on(proxy: FaultProxy, database: str) -> None:
    with connect(proxy.url(database)) as connection:
        proxy.freeze()
        query = threading.Thread(target=connection.execute, args=("INSERT INTO things VALUES (1)",))
        query.start()
        assert is_waiting(query)
        proxy.thaw()
        query.join(10)
        assert not query.is_alive()
    assert count(database) == 1


def test_refused_connections_fail_at_once_until_accepted(proxy: FaultProxy, database: str) -> None:
    with connect(proxy.url(database)) as open_before:
        proxy.refuse()
        with pytest.raises(psycopg.OperationalError, match="refused"):
            connect(proxy.url(database))
        open_before.execute("SELECT 1")
    proxy.accept()
    insert(proxy.url(database))


def test_dropped_connections_fail(proxy: FaultProxy, database: str) -> None:
    with connect(proxy.url(database)) as connection:
        proxy.drop()
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")


def test_large_messages_arrive_whole(proxy: FaultProxy, database: str) -> None:
    with connect(proxy.url(database)) as connection:
        row = connection.execute("SELECT %s::text", ["x" * 5_000_000]).fetchone()
    assert row == ("x" * 5_000_000,)


def test_outage_of_the_server_closes_the_connections(
    proxy: FaultProxy, database: str, postgres_server: PostgresServer
) -> None:
    with connect(proxy.url(database)) as connection:
        postgres_server.stop(immediate=True)
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    with pytest.raises(psycopg.OperationalError):
        connect(proxy.url(database))
    postgres_server.start()
    insert(proxy.url(database))


def test_port_is_free_when_the_proxy_has_gone(proxy: FaultProxy) -> None:
    with FaultProxy(proxy.host, proxy.port) as other:
        socket.create_connection((other.host, other.port)).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((other.host, other.port))
