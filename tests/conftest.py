import json
import signal
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from outlast import AgentClient, DurableAgentServer, cli, open_store
from outlast.adapters import LocalStore
from outlast.core import faults
from outlast.core.records import Request
from outlast.engine import AgentHandlers, Engine, EngineSettings
from outlast.store import Store
from outlast.store.statements import Lost
from outlast.testing.serving import ServerThread

pytest_plugins = ["outlast.testing.pytest_plugin"]

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # As a shell starts what it puts in the background; the processes of tests would inherit it, and not hear Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)  # before the marks are looked at
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Take the tests over HTTP on PostgreSQL for slow: each of the two is among the quick ones without the other."""
    for item in items:
        parameters = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        if (parameters.get("served"), parameters.get("store_url")) == ("over HTTP", "postgresql"):
            item.add_marker("slow")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def store(store_url: str) -> AsyncIterator[Store]:
    """An open store with a registered worker, `w1`."""
    opened = await Store.open(store_url)
    await opened.register(id="w1", host="here", pid=1, lock_file=None)
    opened.worker = "w1"
    yield opened
    await opened.close()


@pytest.fixture
async def local(store_url: str) -> AsyncIterator[LocalStore]:
    """A store for sessions in process."""
    async with open_store(store_url) as opened:
        yield opened


@pytest.fixture(params=["in process", "over HTTP"])
async def served(request: pytest.FixtureRequest, store: Store, store_url: str) -> AsyncIterator[AgentClient | None]:
    """A client of a server on the test's database; None in the half of the tests that asks the stores directly.

    What a store does in process, it does over HTTP: the same tests say so.
    """
    if request.param == "in process":
        yield None
        return
    handlers = AgentHandlers(lambda context: None)
    app = DurableAgentServer(agents=dict.fromkeys(("agent", "support", "a"), handlers), store=store_url)
    with ServerThread(app) as server:
        async with AgentClient(server.url, agent="agent") as client:
            yield client


def _request(session_id: str | None = None, **options: Any) -> Request:
    defaults: dict[str, Any] = {"principal": "local", "id": str(uuid.uuid4()), "agent": "a", "input": {"text": "hi"}}
    return Request.of(session_id=session_id, **{**defaults, **options})


@pytest.fixture
def make_request() -> Callable[..., Request]:
    """Build a request with a new id; every field can be given."""
    return _request


@pytest.fixture
def quick(tmp_path: Path) -> EngineSettings:
    """Settings with short times, for engines that must notice a death soon."""
    return EngineSettings(
        beat=0.05, dead_after=0.5, poll=0.05, cancel_grace=1.0, drain_timeout=5.0, state_dir=tmp_path / "locks"
    )


@pytest.fixture
def running(store_url: str, quick: EngineSettings) -> Callable[..., Any]:
    """Start an engine on the test's database: `async with running(invoke, recover) as engine`."""

    @asynccontextmanager
    async def start(
        invoke: Any = None,
        recover: Any = None,
        *,
        agents: dict[str, AgentHandlers] | None = None,
        settings: EngineSettings = quick,
    ) -> AsyncIterator[Engine]:
        store = await Store.open(store_url)
        engine = Engine(store, agents or {"a": AgentHandlers(invoke, recover)}, settings)
        await engine.start()
        try:
            yield engine
        finally:
            await engine.stop()
            await store.close()

    return start


@pytest.fixture
def fresh_url(store_url: str, tmp_path: Path, request: pytest.FixtureRequest) -> Callable[[], str]:
    """Make further empty databases of the kind `store_url` is."""
    if store_url.startswith("sqlite"):
        return lambda: f"sqlite:///{tmp_path / uuid.uuid4().hex}.db"
    server = request.getfixturevalue("postgres_server")
    created: str = server.create_database()
    return lambda: f"{created}?schema=s{uuid.uuid4().hex[:12]}"


@contextmanager
def _lost_once(point: str) -> Iterator[None]:
    reached: list[str] = []

    def lose(at: str) -> None:
        if at == point and not reached:
            reached.append(at)
            raise Lost("the connection broke")

    faults.install(lose)
    try:
        yield
    finally:
        faults.install(None)
    assert reached == [point]


@pytest.fixture
def lost_once() -> Callable[[str], AbstractContextManager[None]]:
    """Break the connection once at a point: before a commit nothing of it was stored, after it everything."""
    return _lost_once


@dataclass(frozen=True)
class Done:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def objects(self) -> list[Any]:
        """What it printed with `--json`."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def object(self) -> Any:
        (one,) = self.objects
        return one


@pytest.fixture
def outlast(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Done]:
    """Run the command `outlast` in this process, without a terminal: `outlast("sessions", "list", input="…")`."""
    for name in ("OUTLAST_URL", "OUTLAST_STORE", "OUTLAST_TOKEN"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: object, input: str | None = None, code: int = 0) -> Done:
        done = CliRunner().invoke(cli.main, [str(one) for one in arguments], input=input)
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        assert done.exit_code == code, (done.exit_code, done.stdout, done.stderr)
        return Done(done.exit_code, done.stdout, done.stderr)

    return run


@pytest.fixture
def outlast_process() -> Callable[..., Done]:
    """Run the command in a process of its own; what it forks is small then, as it is for its users."""

    def run(*arguments: object, code: int = 0) -> Done:
        command = [sys.executable, "-c", "from outlast.cli import main; main()", *map(str, arguments)]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
        return Done(done.returncode, done.stdout, done.stderr)

    return run
