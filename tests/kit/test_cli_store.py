"""`outlast store`, `workers` and `doctor`, on real stores."""

import asyncio
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from outlast import AgentHandlers, DurableAgentServer, SyncAgentClient
from outlast.sessions import SessionStore
from outlast.store import Store
from outlast.store.migrate import HEAD
from outlast.testing.serving import ServerThread


@pytest.fixture
def url(store_url: str) -> Iterator[str]:
    with ServerThread(DurableAgentServer(AgentHandlers(lambda context: {"text": "done"}), store=store_url)) as server:
        with SyncAgentClient(server.url) as client:
            for _ in range(3):
                client.session("s").run("a")
        yield server.url


def test_a_store_is_made_by_migrate_alone(
    outlast: Callable[..., Any], fresh_url: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = fresh_url()
    assert "outlast store migrate" in outlast("store", "status", "--store", url, code=1).err
    made = outlast("store", "migrate", "--store", url, "--json").object
    assert (made["before"], made["after"]) == (None, HEAD)
    monkeypatch.setenv("OUTLAST_STORE", url)
    assert f"is up to date (schema {HEAD})" in outlast("store", "migrate").out
    seen = outlast("store", "status", "--json").object
    assert (seen["sessions"], seen["schema"], seen["oldest_unfinished"]) == (0, HEAD, None)
    assert "ends with its process" in outlast("store", "migrate", "--store", "memory", code=2).err


def test_what_a_store_holds_is_counted_and_its_workers_are_listed(
    outlast: Callable[..., Any], url: str, store_url: str
) -> None:
    seen = outlast("store", "status", "--store", store_url, "--json").object
    assert (seen["invocations"]["completed"], seen["sessions"], seen["workers"]) == (3, 1, 1)
    assert "3 completed" in outlast("store", "status", "--store", store_url).out
    worker = outlast("workers", "--store", store_url, "--json").object
    assert (worker["state"], worker["running"], worker["agents"], worker["pid"]) == ("alive", 0, ["agent"], os.getpid())
    assert "\talive\t0\tagent\t" in outlast("workers", "--store", store_url).out


def test_old_runs_are_pruned_when_that_is_confirmed(outlast: Callable[..., Any], url: str, store_url: str) -> None:
    prune = ("store", "prune", "--store", store_url, "--older-than")
    assert outlast(*prune, "0s", "--dry-run").out == "3 runs would be deleted\n"
    assert outlast(*prune, "1h").out == "0 runs are deleted\n"
    assert outlast(*prune, "0s", "--status", "failed").out == "0 runs are deleted\n"
    assert "Delete 3 runs and their logs? Nobody can be asked here; add --yes" in outlast(*prune, "0s", code=2).err
    assert outlast(*prune, "0s", "--yes", "--json").object == {"found": 3, "deleted": 3}
    assert outlast("invocations", "list", "--store", store_url, "--json").objects == []
    assert outlast("sessions", "list", "--store", store_url, "--json").object["id"] == "s"
    assert "is no age such as 12h" in outlast(*prune, "soon", code=2).err
    assert "is not final" in outlast(*prune, "1d", "--status", "running", code=2).err


def test_a_backup_is_a_store(outlast: Callable[..., Any], url: str, store_url: str, tmp_path: Path) -> None:
    file = tmp_path / "copy.db"
    if store_url.startswith("postgresql"):
        refused = outlast("store", "backup", file, "--store", store_url, code=1)
        assert "pg_dump --format=custom --schema=outlast" in refused.err
        return
    assert outlast("store", "backup", file, "--store", store_url, "--json").object["bytes"] == file.stat().st_size
    assert "exists already" in outlast("store", "backup", file, "--store", store_url, code=1).err
    assert len(outlast("invocations", "list", "--store", f"sqlite:///{file}", "--json").objects) == 3


def found(outlast: Callable[..., Any], *options: str, code: int = 0) -> dict[str, list[dict[str, Any]]]:
    findings: dict[str, list[dict[str, Any]]] = {}
    for one in outlast("doctor", "--json", *options, code=code).objects:
        findings.setdefault(one["check"], []).append(one)
    return findings


def test_the_doctor_finds_nothing_wrong_where_all_is_well(
    outlast: Callable[..., Any], url: str, store_url: str
) -> None:
    seen = found(outlast, "--store", store_url, "--url", url)
    assert {one["state"] for findings in seen.values() for one in findings} <= {"ok", "note"}
    assert {"python", "packages", "store", "migrations", "clock", "workers", "server", "lock files"} <= seen.keys()
    assert seen["server"][0]["message"].endswith("answers, with agent")
    assert "✓ migrations" in outlast("doctor", "--store", store_url, "--url", url).out


def test_the_doctor_has_a_fix_for_what_is_wrong(
    outlast: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        seen = found(outlast, "--port", port, "--target", "missing.py:app", code=1)
    assert seen["store"][0]["state"] == "note"
    assert seen["port"][0]["state"] == "warning" and "--port" in seen["port"][0]["fix"]
    assert seen["agent"][0]["message"].startswith("there is no file")
    assert not list(tmp_path.iterdir())  # looking changes nothing

    (tmp_path / "app.py").write_text("from outlast import AgentHandlers\nagent = AgentHandlers(lambda context: 1)\n")
    (tmp_path / "empty.db").touch()
    seen = found(outlast, "--store", "sqlite:///empty.db", "--target", "app.py:agent", "--port", "1")
    assert "outlast store migrate" in seen["migrations"][0]["fix"]
    assert "@app.recover" in seen["agent"][0]["fix"]
    assert found(outlast, "--store", "mysql://a/b", code=1)["store"][0]["state"] == "error"
    assert found(outlast, "--store", "postgresql://u@127.0.0.1:1/d", code=1)["store"][0]["state"] == "error"


def test_the_doctor_notices_runs_that_nobody_takes(
    outlast: Callable[..., Any], store_url: str, make_request: Callable[..., Any]
) -> None:
    async def leave_a_run() -> None:
        store = await Store.open(store_url)
        await store.accept(make_request("s"), lease=False)
        assert (await SessionStore(store).get("s")).active is not None
        await store.close()

    asyncio.run(leave_a_run())
    seen = found(outlast, "--store", store_url)
    assert "no worker lives" in seen["workers"][0]["message"]
    assert "outlast serve" in seen["workers"][0]["fix"]
