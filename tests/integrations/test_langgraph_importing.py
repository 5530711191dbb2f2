"""`outlast langgraph import-checkpoints`: threads of the official checkpointers become sessions and go on here."""

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("langchain")
pytest.importorskip("langgraph.checkpoint.sqlite")

from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import tool
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt
from pydantic import BaseModel
from typer.testing import CliRunner

from outlast import cli
from outlast.adapters import LocalStore, open_store
from outlast.core.errors import AgentResumeError
from outlast.core.portal import portal
from outlast.testing.scripted import Say, Script, ScriptedCall
from outlast_langgraph import LangGraphAgent, StoreSaver
from outlast_langgraph.testing import ScriptedChatModel

Opened = Callable[[], AbstractContextManager[BaseCheckpointSaver[Any]]]


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def official(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Opened]:
    """The address of an official checkpointer's database, and the checkpointer."""
    if request.param == "sqlite":
        path = str(tmp_path / "official.db")
        return path, lambda: SqliteSaver.from_conn_string(path)
    postgres = pytest.importorskip("langgraph.checkpoint.postgres")
    url = request.getfixturevalue("postgres_server").create_database().replace("+psycopg", "")

    @contextmanager
    def opened() -> Iterator[BaseCheckpointSaver[Any]]:
        with postgres.PostgresSaver.from_conn_string(url) as saver:
            saver.setup()
            yield saver

    return url, opened


def imported(source: str, store: str, *options: str, agent: str = "mine") -> tuple[int, list[str], str]:
    done = CliRunner().invoke(
        cli.main, ["langgraph", "import-checkpoints", source, "--agent", agent, "--store", store, *options]
    )
    return done.exit_code, done.stdout.splitlines(), done.stderr


def talker(*answers: str, checkpointer: Any = None) -> Any:
    return create_agent(ScriptedChatModel(script=Script(*answers)), [], checkpointer=checkpointer)


def talk(saver: Any, thread: str, *texts: str) -> None:
    for text in texts:
        graph = talker(f"answer to {text}", checkpointer=saver)
        graph.invoke({"messages": [HumanMessage(text)]}, {"configurable": {"thread_id": thread}})


def with_store(url: str, work: Callable[[LocalStore], Any]) -> Any:
    async def opened() -> Any:
        async with open_store(url) as store:
            return await work(store)

    return asyncio.run(opened())


def texts_of(url: str, thread: str) -> list[str]:
    async def read(store: LocalStore) -> list[str]:
        found = await StoreSaver(store).aget_tuple({"configurable": {"thread_id": thread}})
        return [] if found is None else [m.text for m in found.checkpoint["channel_values"]["messages"]]

    return with_store(url, read)  # type: ignore[no-any-return]


def test_threads_become_sessions_that_go_on(official: tuple[str, Opened], store_url: str) -> None:
    source, opened = official
    with opened() as saver:
        talk(saver, "one", "a", "b")
        talk(saver, "two", "c")
        before = [*saver.list({"configurable": {"thread_id": "one"}})]
    code, said, errors = imported(source, store_url)
    assert (code, errors) == (0, "")
    assert said == ["sessions     2 new, 0 known", "checkpoints  9 new, 0 known"]
    assert texts_of(store_url, "one") == ["a", "answer to a", "b", "answer to b"]

    async def go_on(store: LocalStore) -> Any:
        after = [found async for found in StoreSaver(store).alist({"configurable": {"thread_id": "one"}})]
        reply = await LangGraphAgent(talker("third"), name="mine").session("one", store=store).run("d")
        return after, reply.text

    after, text = with_store(store_url, go_on)
    assert text == "third"
    assert [found.checkpoint["channel_values"] for found in after] == [
        found.checkpoint["channel_values"] for found in before
    ]
    assert [(found.metadata, found.parent_config) for found in after] == [
        (found.metadata, found.parent_config and _plain(found.parent_config)) for found in before
    ]
    assert [found.pending_writes for found in after] == [found.pending_writes for found in before]
    assert texts_of(store_url, "one") == ["a", "answer to a", "b", "answer to b", "d", "third"]


def _plain(config: Any) -> Any:
    wanted = ("thread_id", "checkpoint_ns", "checkpoint_id")
    return {"configurable": {key: config["configurable"][key] for key in wanted}}


def test_a_repeated_import_adds_what_is_new_and_leaves_what_went_on_here(
    official: tuple[str, Opened], store_url: str
) -> None:
    source, opened = official
    with opened() as saver:
        talk(saver, "one", "a")
        talk(saver, "two", "b")
    imported(source, store_url)
    assert imported(source, store_url)[1] == ["sessions     0 new, 2 known", "checkpoints  0 new, 6 known"]

    async def go_on(store: LocalStore) -> None:
        await LangGraphAgent(talker("here"), name="mine").session("one", store=store).run("x")

    with_store(store_url, go_on)
    with opened() as saver:
        talk(saver, "one", "elsewhere")
        talk(saver, "two", "more")
    assert imported(source, store_url)[1] == ["sessions     0 new, 2 known", "checkpoints  6 new, 6 known"]
    assert texts_of(store_url, "one") == ["a", "answer to a", "x", "here"]
    assert texts_of(store_url, "two") == ["b", "answer to b", "more", "answer to more"]


def test_a_question_that_was_open_is_answered_here(official: tuple[str, Opened], store_url: str) -> None:
    source, opened = official

    def ask(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage(f"you said {interrupt('which one?')}")]}

    builder = StateGraph(MessagesState)
    builder.add_node("ask", ask)
    builder.add_edge(START, "ask")
    with opened() as saver:
        builder.compile(checkpointer=saver).invoke(
            {"messages": [HumanMessage("hi")]}, {"configurable": {"thread_id": "q"}}
        )
    assert imported(source, store_url)[0] == 0

    async def answer(store: LocalStore) -> Any:
        chat = LangGraphAgent(builder.compile(), name="mine").session("q", store=store)
        point = await chat.resume_point()
        assert point is not None
        (question,) = point.approvals
        with pytest.raises(AgentResumeError, match="a person has to decide"):
            await chat.resume()
        reply = await chat.run({"resume": {"answers": {question["id"]: "this"}}})
        return point.kind, question["value"], reply.text, await chat.resume_point()

    assert with_store(store_url, answer) == ("await_approval", "which one?", "you said this", None)


def test_calls_that_waited_for_approval_are_decided_here(official: tuple[str, Opened], store_url: str) -> None:
    source, opened = official
    paid: list[int] = []

    @tool
    def pay(amount: int) -> str:
        """Pay."""
        paid.append(amount)
        return f"paid {amount}"

    def payer(*answers: Any, checkpointer: Any = None) -> Any:
        middleware = HumanInTheLoopMiddleware(interrupt_on={"pay": True})
        model = ScriptedChatModel(script=Script(*answers))
        return create_agent(model, [pay], middleware=[middleware], checkpointer=checkpointer)

    with opened() as saver:
        graph = payer(Say("I will.", [ScriptedCall("pay", {"amount": 5})]), checkpointer=saver)
        graph.invoke({"messages": [HumanMessage("pay")]}, {"configurable": {"thread_id": "q"}})
    assert imported(source, store_url)[0] == 0

    async def decide(store: LocalStore) -> Any:
        chat = LangGraphAgent(payer("Done."), name="mine").session("q", store=store)
        point = await chat.resume_point()
        assert point is not None
        (asked,) = point.approvals
        reply = await chat.run({"resume": {"decisions": [{"id": asked["id"], "type": "approve"}]}})
        return asked["name"], asked["arguments"], reply.text, paid

    assert with_store(store_url, decide) == ("pay", {"amount": 5}, "Done.", [5])


class Note(BaseModel):
    text: str


class Noting(MessagesState):
    note: Note
    notes: list[Note]


def test_objects_are_kept_although_their_classes_are_not_there(
    tmp_path: Path, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = str(tmp_path / "official.db")
    builder = StateGraph(Noting)
    builder.add_node("note", lambda state: {"note": Note(text="kept"), "notes": [Note(text="x" * 100)]})
    builder.add_edge(START, "note")
    with SqliteSaver.from_conn_string(source) as saver:
        graph: Any = builder.compile(checkpointer=saver)
        graph.invoke({"messages": [HumanMessage("hi")]}, {"configurable": {"thread_id": "n"}})
    with monkeypatch.context() as patch:
        patch.delattr(f"{__name__}.Note")
        assert imported(source, store_url)[0] == 0

    async def read(store: LocalStore) -> Any:
        state = await builder.compile(checkpointer=StoreSaver(store)).aget_state({"configurable": {"thread_id": "n"}})
        return state.values

    values = with_store(store_url, read)
    assert (values["note"], values["notes"]) == (Note(text="kept"), [Note(text="x" * 100)])


def test_threads_that_cannot_be_sessions_are_named(tmp_path: Path, store_url: str) -> None:
    source = str(tmp_path / "official.db")
    with SqliteSaver.from_conn_string(source) as saver:
        for thread in ("fine", "bad\nname", "pickled", "taken"):
            talk(saver, thread, "a")
        saver.conn.execute("UPDATE checkpoints SET type = 'pickle' WHERE thread_id = 'pickled'")
        saver.conn.commit()

    async def take(store: LocalStore) -> None:
        await LangGraphAgent(talker("x"), name="other").session("taken", store=store).run("x")

    with_store(store_url, take)
    code, said, errors = imported(source, store_url)
    assert code == 1
    assert said[0] == "sessions     1 new, 0 known"
    assert [line.split(":")[0] for line in errors.splitlines()] == [
        "left out     'bad\\nname'", "left out     'pickled'", "left out     'taken'",
    ]  # fmt: skip
    assert "Unknown serialization type: pickle" in errors
    assert "belongs to the agent 'other'" in errors
    assert texts_of(store_url, "taken") == ["x", "x"]


def test_one_thread_may_be_named(tmp_path: Path, store_url: str) -> None:
    source = str(tmp_path / "official.db")
    with SqliteSaver.from_conn_string(source) as saver:
        talk(saver, "one", "a")
        talk(saver, "two", "b")
    assert imported(source, store_url, "--thread", "two")[1][0] == "sessions     1 new, 0 known"
    assert texts_of(store_url, "one") == []
    code, _, errors = imported(source, store_url, "--thread", "none")
    assert (code, errors) == (1, "left out     'none': there is no such thread\n")


@pytest.mark.parametrize("kind", ["missing", "text", "empty"])
def test_a_database_without_checkpoints_is_named_in_one_line(tmp_path: Path, kind: str) -> None:
    source = tmp_path / "source.db"
    if kind == "text":
        source.write_text("no database")
    if kind == "empty":
        sqlite3.connect(source).close()
    code, said, errors = imported(str(source), f"sqlite:///{tmp_path / 'state.db'}")
    assert (code, said) == (1, [])
    assert errors.startswith("outlast: ")
    assert str(source) in errors
    assert errors.count("\n") == 1


def test_the_source_is_only_read(tmp_path: Path, store_url: str) -> None:
    source = tmp_path / "official.db"
    with SqliteSaver.from_conn_string(str(source)) as saver:
        talk(saver, "one", "a")
    before = source.read_bytes()
    source.chmod(0o400)
    assert imported(str(source), store_url)[0] == 0
    assert source.read_bytes() == before


def test_help_names_the_commands_of_integrations_without_importing_them() -> None:
    assert "langgraph" in CliRunner().invoke(cli.main, ["--help"]).stdout
    assert "import-checkpoints" in CliRunner().invoke(cli.main, ["langgraph", "--help"]).stdout
    assert CliRunner().invoke(cli.main, ["langgraph", "nothing"]).exit_code == 2


@pytest.fixture(autouse=True, scope="module")
def started() -> None:
    portal()
