"""StoreSaver: the official conformance kit, what is stored once, and what is never loaded."""

import asyncio
import pickle
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any

import pytest

pytest.importorskip("langchain")
conformance = pytest.importorskip("langgraph.checkpoint.conformance")

from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.conformance.capabilities import Capability
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import START, MessagesState, StateGraph
from sqlalchemy import text
from typing_extensions import TypedDict

from outlast.adapters import LocalStore, open_store
from outlast.adapters.run import CURRENT_RUN
from outlast.core.errors import InvalidRequest, SessionBusy
from outlast.core.portal import portal
from outlast.store import Store
from outlast.store.threads import ThreadChanges
from outlast_langgraph import LangGraphAgent, StoreSaver
from outlast_langgraph.frames import PickledPayload

pytestmark = pytest.mark.anyio

TABLES = {
    "checkpoints": ("scope", "namespace", "id", "parent", "body", "metadata"),
    "checkpoint_writes": ("scope", "namespace", "checkpoint_id", "task_id", "channel", "body", "task_path"),
    "checkpoint_parts": ("scope", "digest", "content"),
}
CONFIG: RunnableConfig = {"configurable": {"thread_id": "s"}}


@pytest.fixture
async def store(store_url: str) -> AsyncIterator[LocalStore]:
    async with open_store(store_url) as store:
        yield store


class Counted(MessagesState):
    count: int


def talk(state: Counted) -> dict[str, Any]:
    number = len(state["messages"])
    return {"messages": [AIMessage(f"answer {number} " + "a" * 1000, id=f"ai-{number}")], "count": number}


def talker(node: Any = talk, checkpointer: Any = None) -> Any:
    builder = StateGraph(Counted)
    builder.add_node("talk", node)
    builder.add_edge(START, "talk")
    return builder.compile(checkpointer=checkpointer)


def run_sql(store: Store, statement: str, **parameters: Any) -> Any:
    with store._engine.connect() as connection:
        return connection.execute(text(statement.replace("{p}", _prefix(store))), parameters)


def _prefix(store: Store) -> str:
    return f'"{store.url.schema}".' if store.url.schema else ""


def stored_bytes(store: Store) -> int:
    length = "octet_length({})" if store.url.schema else "length(CAST({} AS BLOB))"
    total = 0
    for table, columns in TABLES.items():
        summed = " + ".join(f"coalesce({length.format(column)}, 0)" for column in columns)
        total += int(run_sql(store, f"SELECT coalesce(sum({summed}), 0) FROM {{p}}{table}").scalar_one())
    return total


async def test_every_test_of_the_official_conformance_kit_passes(store: LocalStore) -> None:
    @conformance.checkpointer_test(name="StoreSaver")  # type: ignore[untyped-decorator]
    async def saver() -> AsyncIterator[StoreSaver]:
        yield StoreSaver(store)

    report = await conformance.validate(saver)
    assert {name: result.failures for name, result in report.results.items() if result.failures} == {}
    assert report.passed_all()
    assert {name for name, result in report.results.items() if result.detected} == {one.value for one in Capability}
    assert sum(result.tests_passed for result in report.results.values()) >= 80


async def test_what_runs_do_passes_in_a_run_too(store: LocalStore) -> None:
    """The same saver as a graph in a run has: every write is under the lease, other threads are kept apart."""
    found: dict[str, list[str]] = {}

    async def judge(state: Counted, config: RunnableConfig) -> dict[str, Any]:
        saver = config["configurable"]["__pregel_checkpointer"]
        assert isinstance(saver, StoreSaver)
        assert CURRENT_RUN.get() is not None

        @conformance.checkpointer_test(name="StoreSaver in a run")  # type: ignore[untyped-decorator]
        async def same() -> AsyncIterator[StoreSaver]:
            yield saver

        report = await conformance.validate(same, capabilities={"put", "put_writes", "get_tuple", "list"})
        found.update({name: result.failures for name, result in report.results.items() if result.tests_passed})
        return {"messages": [AIMessage("judged")]}

    await LangGraphAgent(talker(judge)).session("s", store=store).run("go")
    assert found == {"put": [], "put_writes": [], "get_tuple": [], "list": []}


async def test_bytes_grow_with_the_turns_and_not_with_their_square(store: LocalStore) -> None:
    chat = LangGraphAgent(talker()).session("s", store=store)
    sizes = []
    for turn in range(1, 25):
        await chat.run(f"turn {turn} " + "q" * 1000)
        if turn % 8 == 0:
            sizes.append(stored_bytes(await store.store()))
    first, second, third = sizes
    assert third - second < 1.15 * (second - first)
    assert third < 24 * 6000


async def test_a_step_is_one_transaction(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pending writes wait for the checkpoint of their step."""
    written: list[list[str]] = []
    original = Store.write

    def write(self: Store, number: int, epoch: int, **options: Any) -> Any:
        # The parts of checkpoints have no name.
        names = [name for part in options["parts"] for name in part.parameters if name in ("channel", "checkpoint")]
        if names:
            written.append(names)
        return original(self, number, epoch, **options)

    monkeypatch.setattr(Store, "write", write)
    monkeypatch.setattr("outlast.engine.context.SOON_SECONDS", 60)
    await LangGraphAgent(talker()).session("s", store=store).run("go")
    assert [sorted(set(names)) for names in written] == [
        ["checkpoint"],
        ["channel", "checkpoint"],
        ["channel", "checkpoint"],
    ]


async def test_what_a_task_wrote_is_stored_while_others_of_its_step_run(store: LocalStore) -> None:
    first = asyncio.Event()

    async def quick(state: Counted) -> dict[str, Any]:
        return {"messages": [AIMessage("quick")]}

    async def slow(state: Counted) -> dict[str, Any]:
        await first.wait()
        return {"messages": [AIMessage("slow")]}

    builder = StateGraph(Counted)
    for node in (quick, slow):
        builder.add_node(node.__name__, node)
        builder.add_edge(START, node.__name__)
    run = asyncio.create_task(LangGraphAgent(builder.compile()).session("t", store=store).run("go"))
    opened = await store.store()
    while not await _said(opened, "quick"):
        await asyncio.sleep(0)
    first.set()
    await run


async def _said(store: Store, text: str) -> bool:
    found = await store.read.checkpoint("s1", "") if await store.read.session_number("local", "t") else None
    if found is None:
        return False
    digests = [digest for write in found.writes for value in write.values for digest in value if type(digest) is bytes]
    return any(text.encode() in content for content in (await store.read.parts("s1", digests)).values())


async def test_a_graph_may_have_it_without_a_run(store: LocalStore) -> None:
    graph = talker(checkpointer=StoreSaver(store, agent="mine"))
    await graph.ainvoke({"messages": [HumanMessage("one")]}, CONFIG)
    done = await graph.ainvoke({"messages": [HumanMessage("two")]}, CONFIG)
    assert [message.text.split()[0] for message in done["messages"]] == ["one", "answer", "two", "answer"]
    history = [snapshot async for snapshot in graph.aget_state_history(CONFIG)]
    assert [len(snapshot.values.get("messages", [])) for snapshot in history] == [4, 3, 2, 2, 1, 0]
    session = await (await store.store()).read.session("local", "s")
    assert session is not None
    assert session.agent == "mine"
    reply = await LangGraphAgent(talker(), name="mine").session("s", store=store).run("three")
    assert reply.text.startswith("answer 5")


async def test_outside_of_runs_a_step_is_one_transaction_too(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[tuple[int, bool]] = []
    original = ThreadChanges._together

    def together(self: ThreadChanges, thread: Any, checkpoint: Any, known: Any) -> Any:
        written.append((len(self._held.get(thread, [])), checkpoint is not None))
        return original(self, thread, checkpoint, known)

    monkeypatch.setattr(ThreadChanges, "_together", together)
    monkeypatch.setattr("outlast.store.threads.SOON_SECONDS", 60)
    graph = talker(checkpointer=StoreSaver(store))
    await graph.ainvoke({"messages": [HumanMessage("go")]}, CONFIG, durability="sync")
    assert written == [(0, True), (1, True), (1, True)]


@pytest.mark.parametrize("meanwhile", ["nothing", "a turn", "prune", "delete", "another session"])
async def test_what_a_saver_remembers_of_a_thread_is_looked_at_when_it_writes(
    store: LocalStore, meanwhile: str
) -> None:
    """Another process may change the thread between two turns."""
    here, there = (talker(checkpointer=StoreSaver(store)) for _ in range(2))
    for turn in ("one", "two", "three"):
        await here.ainvoke({"messages": [HumanMessage(turn)]}, CONFIG)
    snapshot = await here.aget_state(CONFIG)
    match meanwhile:
        case "a turn":
            await there.ainvoke({"messages": [HumanMessage("meanwhile")]}, CONFIG)
        case "prune":
            await there.checkpointer.aprune(["s"])
        case "delete":
            await there.checkpointer.adelete_thread("s")
        case "another session":
            run_sql(await store.store(), "UPDATE {p}sessions SET id = 'old' WHERE id = 's'")
    await here.aupdate_state(snapshot.config, {"messages": [HumanMessage("four")]}, as_node="talk")
    for graph in (here, there, talker(checkpointer=StoreSaver(store))):
        found = (await graph.aget_state(CONFIG)).values["messages"]
        said = [message.text for message in found if isinstance(message, HumanMessage)]
        assert said == (["four"] if meanwhile in ("delete", "another session") else ["one", "two", "three", "four"])


def test_a_synchronous_graph_may_have_it_too(store_url: str) -> None:
    store = open_store(store_url)
    graph = talker(checkpointer=StoreSaver(store))
    graph.invoke({"messages": [HumanMessage("one")]}, CONFIG)
    assert len(graph.invoke({"messages": [HumanMessage("two")]}, CONFIG)["messages"]) == 4
    assert len([*graph.get_state_history(CONFIG)]) == 6
    portal().call(store.close())


async def test_writes_from_outside_wait_for_the_run_that_has_the_session(store: LocalStore) -> None:
    refused: list[Exception] = []
    outside = talker(checkpointer=StoreSaver(store))

    async def meddle(state: Counted) -> dict[str, Any]:
        token = CURRENT_RUN.set(None)
        saver = StoreSaver(store)
        for work in (saver.adelete_thread("s"), saver.aprune(["s"]), saver.acopy_thread("s", "t")):
            try:
                await work
            except SessionBusy as error:
                refused.append(error)
        CURRENT_RUN.reset(token)
        return {"messages": [AIMessage("done")]}

    await LangGraphAgent(talker(meddle)).session("s", store=store).run("go")
    assert len(refused) == 3
    assert len((await outside.aget_state(CONFIG)).values["messages"]) == 2


async def test_a_thread_that_no_session_can_be_is_refused(store: LocalStore) -> None:
    with pytest.raises(InvalidRequest):
        await talker(checkpointer=StoreSaver(store)).ainvoke(
            {"messages": []}, {"configurable": {"thread_id": "a\x1fb"}}
        )


async def test_a_pickled_value_in_the_database_is_refused(store: LocalStore) -> None:
    graph = talker(checkpointer=StoreSaver(store))
    await graph.ainvoke({"messages": [HumanMessage("one " + "x" * 100)]}, CONFIG)
    evil = b"pickle\0" + pickle.dumps(_Evil())
    run_sql(await store.store(), "UPDATE {p}checkpoint_parts SET content = :evil", evil=evil)
    with pytest.raises(PickledPayload):
        await graph.aget_state(CONFIG)
    assert not _Evil.loaded


def test_a_serialiser_that_pickles_is_refused() -> None:
    with pytest.raises(PickledPayload, match="pickle_fallback=False"):
        StoreSaver(serde=JsonPlusSerializer(pickle_fallback=True))


class _Evil:
    loaded = False

    def __reduce__(self) -> Any:
        return setattr, (_Evil, "loaded", True)


async def test_a_message_changed_in_place_is_stored_as_it_is_then(store: LocalStore) -> None:
    def change(state: Counted) -> dict[str, Any]:
        for message in state["messages"][:-1]:
            message.additional_kwargs.setdefault("seen", []).append(len(state["messages"]))
        return {"messages": [AIMessage("noted")]}

    chat = LangGraphAgent(talker(change)).session("s", store=store)
    for turn in ("one", "two", "three"):
        await chat.run(turn)
    for checkpointer in (StoreSaver(store), StoreSaver(store)):
        state = await talker(change, checkpointer).aget_state(CONFIG)
        kept = [message.additional_kwargs.get("seen") for message in state.values["messages"]]
        assert kept == [[3, 5], [3, 5], [5], [5], None, None]


async def test_what_was_read_may_be_changed_without_harm(store: LocalStore) -> None:
    agent = LangGraphAgent(talker())
    chat = agent.session("s", store=store)
    await chat.run("one")
    saver = StoreSaver(store)
    first = await talker(checkpointer=saver).aget_state(CONFIG)
    first.values["messages"][0].content = "changed"
    again = await talker(checkpointer=saver).aget_state(CONFIG)
    assert again.values["messages"][0].content == "one"


async def test_equal_messages_of_a_state_are_not_one_object(store: LocalStore) -> None:
    def twice(state: Counted) -> dict[str, Any]:
        return {"messages": [AIMessage("same " * 20, id=str(number)) for number in range(2)]}

    graph = talker(twice, StoreSaver(store))
    await graph.ainvoke({"messages": []}, CONFIG)
    await graph.aupdate_state(CONFIG, {"messages": []})
    for _ in range(2):
        one, other = (await graph.aget_state(CONFIG)).values["messages"]
        assert one is not other


async def test_pruning_keeps_what_delta_channels_are_made_of(store: LocalStore) -> None:
    def add(values: list[Any], new: list[list[Any]]) -> list[Any]:
        return [*values, *(item for items in new for item in items)]

    class Delta(TypedDict):
        items: Annotated[list[int], DeltaChannel(add)]

    builder = StateGraph(Delta)
    builder.add_node("add", lambda state: {"items": [len(state["items"])]})
    builder.add_edge(START, "add")
    saver = StoreSaver(store)
    graph: Any = builder.compile(checkpointer=saver)
    for number in range(4):
        await graph.ainvoke({"items": [-number]}, CONFIG)
    before = (await graph.aget_state(CONFIG)).values
    assert len(before["items"]) == 8
    await saver.aprune(["s"])
    assert (await graph.aget_state(CONFIG)).values == before


async def test_pruning_removes_the_parts_that_nothing_needs(store: LocalStore) -> None:
    class Latest(TypedDict):
        note: str

    builder = StateGraph(Latest)
    builder.add_node("note", lambda state: {"note": state["note"] + "!" * 100})
    builder.add_edge(START, "note")
    saver = StoreSaver(store)
    graph: Any = builder.compile(checkpointer=saver)
    for number in range(5):
        await graph.ainvoke({"note": f"{number}" * 200}, CONFIG)
    opened = await store.store()
    before = stored_bytes(opened)
    await saver.aprune(["s"])
    assert stored_bytes(opened) < before / 3
    assert (await graph.aget_state(CONFIG)).values["note"].startswith("444")


@pytest.mark.parametrize(
    "value",
    [
        [], {}, None, b"bytes", "x" * 5000, {"a": {"b": {"c": {"d": [1, "y" * 100]}}}}, [["nested"] * 20] * 3,
        {f"file{number}": "text " * 30 for number in range(40)}, {1: "not a string"}, [{"deep": [1, 2]}] * 70,
        [*range(1000)], ("tuple", 1), {"mixed": [HumanMessage("hi", id="1")], "none": None},
    ],
)  # fmt: skip
async def test_any_state_comes_back_as_it_was(store: LocalStore, value: Any) -> None:
    saver, serde = StoreSaver(store), JsonPlusSerializer()
    checkpoint: Any = {
        "v": 4, "id": "1", "ts": "now", "channel_values": {"channel": value}, "channel_versions": {"channel": 1},
        "versions_seen": {}, "updated_channels": None,
    }  # fmt: skip
    at = await saver.aput(
        {"configurable": {"thread_id": "s", "checkpoint_ns": ""}}, checkpoint, {"source": "loop", "step": 1}, {}
    )
    await saver.aput_writes(at, [("channel", value)], "task")
    found = await saver.aget_tuple(CONFIG)
    assert found is not None
    expected = serde.loads_typed(serde.dumps_typed(value))
    assert found.checkpoint == {**checkpoint, "channel_values": {"channel": expected}}
    assert found.pending_writes == [("task", "channel", expected)]


@pytest.fixture(autouse=True)
def unharmed() -> Iterator[None]:
    yield
    assert not _Evil.loaded
