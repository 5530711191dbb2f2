"""One run of a graph: start, recover, resume. What to do is decided from the messages, never from `next` alone.

Shapes, by where open calls are answered: a node with a ToolNode in it is entered again, and the journal answers; for a
hand-written node the answers are written in its name and it is not entered; a node that holds the model and the tools
at once cannot be continued, and the run fails with a sentence that says so.
"""

import uuid
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.config import get_config
from langgraph.constants import END, START
from langgraph.types import Command, PregelTask, StateSnapshot

from outlast.adapters.inputs import Answers, Messages
from outlast.adapters.journal import INTERRUPTED, Outcome, ToolCall
from outlast.adapters.outputs import output, total
from outlast.adapters.recovery import Result
from outlast.adapters.run import EFFECT, Place, Run
from outlast.core.errors import AgentResumeError, RunFailed
from outlast.core.jsontext import decode, fingerprint
from outlast.core.records import Call, CallState
from outlast.core.resume import CONTINUE_TEXT, RETRY_TEXT, ResumeKind, ResumePoint
from outlast_langgraph import asking, seams
from outlast_langgraph.answers import ANSWER, cannot_say_again
from outlast_langgraph.graph import Argument, GraphInput, WrappedGraph, deep, namespace_of
from outlast_langgraph.messages import (
    INTERNAL,
    OpenCalls,
    as_json,
    from_input,
    messages_of,
    open_calls,
    stop_reason,
    usage_of,
)
from outlast_langgraph.observer import Observer
from outlast_langgraph.saver import OBSERVER, OBSERVERS, RUN_KEY, Stopped, answers_key, asked_key
from outlast_langgraph.tools import LOOP, TASK, message_of
from outlast_langgraph.watch import Watch

P = ParamSpec("P")
T = TypeVar("T")


def at_the_border(method: Callable[P, Awaitable[T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Give errors of the durable layer back the form in which they began."""

    @wraps(method)
    async def called(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await method(*args, **kwargs)
        except Stopped as stopped:
            raise stopped.cause from stopped

    return called


LIMIT = "recursion_limit"
STREAM_MODES = ["messages", "custom", "tasks"]


class LangGraphTurn:
    """What LangGraph does for one run."""

    def __init__(self, graph: WrappedGraph, run: Run, input: GraphInput | None) -> None:
        self._graph, self._run, self._input = graph, run, input
        self._key = graph.messages_key or "messages"
        self._observer = Observer(run)
        self._observer.answering = isinstance(input, Answers)
        self._heads: Sequence[str] = ()
        run_key = uuid.uuid4().hex
        OBSERVERS[run_key] = self._observer
        OBSERVER.set(self._observer)
        context = run.context
        run.place = self._place
        settings = {key: value for key, value in context.config.items() if key not in graph.context_keys}
        limit = _limit(settings.pop(LIMIT)) if LIMIT in settings else {}
        self._context = graph.context_of(context.config)
        self._config: RunnableConfig = {
            **limit,
            "configurable": {**settings, "thread_id": run.history.thread, RUN_KEY: run_key},
            "callbacks": [Watch(self._observer)],
            "metadata": {"invocation_id": context.invocation_id},
        }

    def _place(self) -> Place:
        return self._observer.place(get_config())

    # What the history says ------------------------------------------------------------------------------------------

    async def has_input(self) -> bool:
        snapshot = await self._state()
        if _invocation(snapshot) == self._id:
            return True
        if isinstance(self._input, Answers):
            return await self._run.journal.was_used(answers_key(self._run))
        return any(message.id == self._id for message in messages_of(snapshot.values, self._key))

    @at_the_border
    async def result(self) -> Result | None:
        snapshot = await self._state()
        return await self._result(snapshot) if await self._is_over(snapshot) else None

    async def _is_over(self, snapshot: StateSnapshot) -> bool:
        """`next` is empty also when the last step is written but not committed, or while calls are being closed."""
        if _invocation(snapshot) != self._id:
            return False
        if snapshot.interrupts:
            return True
        ended = not snapshot.next and not snapshot.tasks and (snapshot.metadata or {}).get("source") == "loop"
        return ended and await self._graph.missing_node(self._config, snapshot) is None

    async def _refuse_missing(self, snapshot: StateSnapshot) -> None:
        """Refuse to go on in a graph that has changed, and lacks the node whose turn it is."""
        if (missing := await self._graph.missing_node(self._config, snapshot)) is not None:
            raise _is_missing(missing)

    # Start ----------------------------------------------------------------------------------------------------------

    @at_the_border
    async def start(self) -> Result:
        match self._input:
            case Answers(value):
                return await self._answer(await self._state(), value)
            case Messages(messages):
                return await self._begin({self._key: from_input(messages, self._id)})
            case Argument(value):
                await asking.close(self._run)
                return await self._go(value)
            case None:
                raise AgentResumeError("empty")
            case _:
                return await self._begin(dict(self._input))

    async def _begin(self, values: dict[str, Any]) -> Result:
        """Add the input, and before it, in the same step, the answers of calls that an earlier run left open."""
        snapshot = await self._state()
        if self._graph.messages_key is not None:
            self._refuse_known_ids(snapshot, values)
        await asking.close(self._run)
        if self._graph.messages_key is not None and snapshot.metadata is not None:
            closing = await self._close(snapshot)
            if closing:
                values = values | {self._key: [*closing, *values.get(self._key, [])]}
        return await self._go(values)

    def _refuse_known_ids(self, snapshot: StateSnapshot, values: Mapping[str, Any]) -> None:
        known = {message.id for message in messages_of(snapshot.values, self._key)}
        for message in values.get(self._key, []):
            id = getattr(message, "id", None)
            if id in known:
                raise RunFailed("invalid_input", f"the history has a message with the id {id!r} already")
            known.update([id] if id is not None else [])

    async def _answer(self, snapshot: StateSnapshot, value: Any) -> Result:
        """Hand the answers of a person to the graph that waits for them."""
        await self._refuse_missing(snapshot)
        interrupts = asking.interrupts_of(snapshot)
        if not interrupts or not (snapshot.interrupts or self._graph.has_breakpoints):
            raise RunFailed("nothing_to_answer", "this session does not wait for an answer")
        # What ran beside the question was told by the run that asked it.
        self._observer.answers.load(await self._run.journal.rows())
        given = await asking.answer(self._run, interrupts, value)
        if snapshot.interrupts:
            return await self._go(Command(resume=given))
        await self._run.context.write(parts=[self._run.journal.used(answers_key(self._run))])
        return await self._go(None)

    # Go on ----------------------------------------------------------------------------------------------------------

    @at_the_border
    async def go_on(self) -> Result:
        await self._refuse_missing(await self._state())
        snapshot = await self._committed(await self._state())
        if snapshot.interrupts and await self._has_asked(snapshot):
            return await self._result(snapshot)
        if self._graph.stops_before(snapshot.next) and not await asking.may_pass(self._run, snapshot):
            return await self._result(snapshot)
        self._heads = await self._run.history.heads()
        pending = {row.key for row in await self._run.journal.rows() if row.state is CallState.PENDING}
        opened = self._open(snapshot, pending)
        self._run.events.resume(ResumeKind.RECOVER_TOOLS if opened else ResumeKind.CALL_MODEL)
        await self._refuse_lost(snapshot)
        for at, calls in opened:
            if not self._may_enter(at):
                await self._answer_for(at, calls)
        return await self._go(None)

    async def _has_asked(self, snapshot: StateSnapshot) -> bool:
        """Say whether the open questions are new, or, in a run of answers, those that it has just answered.

        A question stays in the state until its task is done; only notes tell a task that asked again.
        """
        if not self._observer.answering:
            return True
        asking = [task for at in deep(snapshot) for task in at.tasks if task.interrupts and not _is_cut_off(task)]
        return all([await self._run.journal.was_used(asked_key(self._run, task.id)) for task in asking])

    @at_the_border
    async def resume(self) -> Result:
        await self._refuse_missing(await self._state())
        snapshot = await self._committed(await self._state())
        if await asking.awaited(self._run.history, snapshot.interrupts) is not None:
            raise AgentResumeError("awaiting_approval")
        point = self._point(snapshot)
        match point.kind:
            case ResumeKind.AWAIT_APPROVAL:
                # Everything was answered, and the run that brought the answers failed: its node is entered again.
                self._run.events.resume(ResumeKind.CALL_MODEL)
                self._observer.answers.load(await self._run.journal.rows())
                return await self._go(None)
            case ResumeKind.RETRY_RESPONSE:
                return await self._nudge(point, RETRY_TEXT)
            case ResumeKind.CONTINUE_RESPONSE:
                return await self._nudge(point, CONTINUE_TEXT)
            case ResumeKind.RECOVER_TOOLS:
                return await self.go_on()
            case ResumeKind.CALL_MODEL:
                if not snapshot.next and not snapshot.tasks:
                    await self._graph.guarded.aupdate_state(self._at(snapshot), {}, as_node=START)
                return await self.go_on()

    @at_the_border
    async def close(self, answer: Outcome) -> None:
        snapshot = await self._committed(await self._state())
        for at, calls in self._open(snapshot):
            await self._answer_for(at, calls, answer)
        if not (await self._state()).interrupts:
            await asking.drop(self._run)

    def _point(self, snapshot: StateSnapshot) -> ResumePoint:
        return self._graph.point(snapshot)

    async def _nudge(self, point: ResumePoint, text: str) -> Result:
        self._run.events.resume(point.kind)
        message = HumanMessage(text, id=self._id, additional_kwargs={INTERNAL: True})
        return await self._go({self._key: [message]})

    async def _committed(self, snapshot: StateSnapshot) -> StateSnapshot:
        """Commit a step whose tasks are all done, without running anything.

        Killed between the last task's writes and the step's checkpoint, a history shows open calls and no open task.
        """
        for at in deep(snapshot):
            if at.tasks and not at.next and at.values and self._open_of(at) is not None:
                await self._graph.guarded.aupdate_state(self._at(at), None, as_node=END)
                return await self._state()
        return snapshot

    def _open(self, snapshot: StateSnapshot, pending: Collection[str] = ()) -> list[tuple[StateSnapshot, OpenCalls]]:
        """Find the open calls of the graph and of its subgraphs, and have the journal answer them.

        Where an input is stored but not taken in yet, the answers are in it: to write them would drop the input. About
        `pending` calls, which did not begin, middleware that asks a person does so now.
        """
        found = []
        for at in deep(snapshot):
            if not _has_input_before_it(at) and (calls := self._open_of(at)) is not None:
                if self._is_at_middleware(at) and all(call.key in pending for call in calls.calls):
                    continue
                found.append((at, calls))
                if not isinstance(self._input, Answers):
                    asked = seams.asked_about_in_tools(seams.nodes_at(self._graph.guarded, namespace_of(at)))
                    ask = {call.key for call in calls.calls if call.name in asked}.intersection(pending)
                    self._run.journal.dead.update({call.key for call in calls.calls} - ask)
        return found

    def _is_at_middleware(self, at: StateSnapshot) -> bool:
        nodes = seams.nodes_at(self._graph.guarded, namespace_of(at))
        open_nodes = [nodes.get(task.name) for task in at.tasks if not task.result]
        return bool(open_nodes) and all(map(seams.is_middleware, open_nodes))

    def _open_of(self, at: StateSnapshot) -> OpenCalls | None:
        if self._graph.is_function and not namespace_of(at):
            return None
        return open_calls(messages_of(at.values, self._key)) if at.values else None

    def _may_enter(self, at: StateSnapshot) -> bool:
        """Say whether the node that answers the open calls can be entered again without running a tool.

        One in which other graphs have a state is entered, so that they go on.
        """
        nodes = seams.nodes_at(self._graph.guarded, namespace_of(at))
        open_tasks = [task for task in at.tasks if not task.result]
        return any(seams.answers_calls(nodes.get(task.name)) for task in open_tasks) or any(
            head.startswith(f"{_task_name(at, task)}|") or head == _task_name(at, task)
            for task in open_tasks
            for head in self._heads
        )

    async def _answer_for(self, at: StateSnapshot, opened: OpenCalls, otherwise: Outcome = INTERRUPTED) -> None:
        """Write the answers in the name of the node that would have run the tools."""
        nodes = seams.nodes_at(self._graph.guarded, namespace_of(at))
        name = next((name for name, node in nodes.items() if seams.holds_tool_node(node.bound)), None)
        if name is None:
            open_nodes = [task.name for task in at.tasks if not task.result]
            if len(open_nodes) != 1:
                raise RunFailed("cannot_recover", "it is unknown which node of the graph answers tool calls")
            name = open_nodes[0]
        answers = await self._answers(at, opened, otherwise)
        if any(task.result for task in at.tasks):
            # Keeps what finished tasks wrote and drops the rest. Without such a task one update is one commit.
            await self._graph.guarded.aupdate_state(self._at(at), None, as_node=END)
        await self._graph.guarded.aupdate_state(self._at(at), {self._key: answers}, as_node=name)

    async def _answers(
        self, at: StateSnapshot, opened: OpenCalls, otherwise: Outcome = INTERRUPTED
    ) -> list[ToolMessage]:
        """One result for each open call: the journal's, where it has one; that nobody approved it, where it was asked."""
        undecided, proven, answers = await self._run.history.undecided(), self._is_proven(at), []
        for call in self._as_noted(at, opened.calls, await self._run.journal.rows()):
            self._observer.told.add(call.call_id)
            if (answer := asking.unapproved(undecided, call)) is not None:
                answers.append(message_of(call, await self._run.journal.decided(call, answer)))
                continue
            outcome = await self._run.journal.close(call, proven=proven, otherwise=otherwise)
            answers.append(message_of(call, outcome))
        return answers

    def _as_noted(self, at: StateSnapshot, calls: Sequence[ToolCall], rows: Sequence[Call]) -> Iterator[ToolCall]:
        """Name calls as they are noted where their tools ran: in an open task, by their ids or by what they ask for."""
        here = tuple(f"{TASK}{_task_name(at, task)}:" for task in at.tasks)
        noted = [row for row in rows if row.key.startswith(here)]
        for call in calls:
            alike = [row for row in noted if _is_of(row, call)]
            if alike:
                noted.remove(alike[0])
            yield replace(call, key=alike[0].key) if alike else call

    def _is_proven(self, at: StateSnapshot) -> bool:
        """Say whether the tools of the open calls could run through the journal only."""
        nodes = seams.nodes_at(self._graph.guarded, namespace_of(at))
        bodies = [nodes[task.name].bound for task in at.tasks if not task.result and task.name in nodes]
        return bool(bodies) and all(seams.holds_tool_node(body) for body in bodies)

    async def _refuse_lost(self, snapshot: StateSnapshot) -> None:
        """Refuse where tools would run again and nothing could stop it."""
        rows = await self._run.journal.rows()
        self._observer.answers.load(rows)
        mine = [row for row in rows if row.invocation_number == self._run.context.lease[0]]
        known, entered = set[str](), set[str]()
        for at in deep(snapshot):
            known.update(message.id or "" for message in messages_of(at.values, self._key) if at.values)
            if self._open_of(at) is None or self._may_enter(at):
                nodes = seams.nodes_at(self._graph.guarded, namespace_of(at))
                entered.update(
                    _task_name(at, task)
                    for task in at.tasks
                    if not task.result and not seams.answers_calls_itself(nodes.get(task.name))
                )
        lost = [row for row in mine if row.state in (CallState.STARTED, CallState.DONE) and _is_call(row)]
        for row in lost:
            node = row.key.removeprefix(TASK).partition(":")[0]
            if self._graph.is_function and row.key.startswith(TASK) and node not in self._graph.guarded.nodes:
                raise _is_missing(node)
        for row in rows:
            if row.key.startswith(LOOP) and (again := await self._cut_off_loop(row, entered)) is not None:
                ran = [one.name for one in lost if one.key.startswith(f"{TASK}{again}:")]
                if ran:
                    raise cannot_say_again(ran[-1])
        unknown = [
            row
            for row in lost
            if not row.key.startswith(TASK)
            and _answer_of(row) not in known
            and not self._observer.answers.has(_answer_of(row))
        ]
        if unknown:
            known = await self._said_inside(entered)
        for row in unknown:
            if _answer_of(row) not in known:
                raise RunFailed(
                    "cannot_recover",
                    f"the tool {row.name!r} ran for a model answer that no checkpoint holds (a subgraph with "
                    "checkpointer=False, or one the graph reaches in a way that cannot be seen)",
                )

    async def _cut_off_loop(self, row: Call, entered: Collection[str]) -> str | None:
        """Return the place of a note about a model if what called it there is to begin again."""
        step, _, place = row.key.removeprefix(LOOP).partition(":")
        if not any(place == task or place.startswith(f"{task}|") for task in entered):
            return None
        namespace = place.rpartition("|")[0]
        while namespace and namespace not in self._heads:
            namespace = namespace.rpartition("|")[0]
        if await self._run.history.head(namespace) != step:
            return None
        returned = await self._graph.returned_tasks(self._config, namespace)
        return None if place.rpartition(":")[2] in returned else place

    async def _said_inside(self, entered: Collection[str]) -> set[str]:
        """Return the ids of the messages in graphs that tasks run and that the state of the graph does not show."""
        known = set[str]()
        for head in self._heads:
            if any(head == task or head.startswith(f"{task}|") for task in entered):
                values = await self._graph.values_at(self._config, head)
                known.update(str(message.id) for value in values.values() for message in messages_of({"": value}, ""))
        return known

    # Close ----------------------------------------------------------------------------------------------------------

    async def _close(self, snapshot: StateSnapshot) -> list[AnyMessage]:
        """Return the answers of the calls an earlier run left open, to be put before a new message."""
        return await self._closed(snapshot, root=True)

    async def _closed(self, at: StateSnapshot, *, root: bool) -> list[AnyMessage]:
        """For the graph itself the missing answers; for a subgraph its whole conversation, closed."""
        graph, changed = self._graph.guarded, False
        for task in at.tasks:
            inner = await self._closed(task.state, root=False) if _is_cut_off(task) else []  # type: ignore[arg-type]
            if inner:
                await graph.aupdate_state(self._at(at, closing=True), None, as_node=END)
                await graph.aupdate_state(self._at(at, closing=True), {self._key: inner}, as_node=task.name)
                changed = True
        if changed:
            at = await graph.aget_state(self._at(at, closing=True))
        opened = self._open_of(at)
        answers: list[AnyMessage] = []
        if opened is not None:
            answers = [*await self._answers(at, opened)]
            if any(task.result for task in at.tasks):
                await graph.aupdate_state(self._at(at, closing=True), None, as_node=END)
        if root:
            return answers
        if answers:
            node = next((task.name for task in at.tasks if not task.result), START)
            await graph.aupdate_state(self._at(at, closing=True), {self._key: answers}, as_node=node)
        if answers or changed:
            at = await graph.aget_state(self._at(at, closing=True))
        return messages_of(at.values, self._key)

    # Run ------------------------------------------------------------------------------------------------------------

    async def _go(self, input: Any) -> Result:
        try:
            stream = self._graph.guarded.astream(
                input, self._config, context=self._context, stream_mode=STREAM_MODES, subgraphs=True, durability="sync"
            )  # type: ignore[call-overload]
            async for namespace, mode, payload in stream:
                self._observer.take(namespace, mode, payload)
        finally:
            self._observer.end()
        return await self._result(await self._state())

    async def _state(self) -> StateSnapshot:
        return await self._graph.state(self._config)

    def _at(self, snapshot: StateSnapshot, *, closing: bool = False) -> RunnableConfig:
        """Return where to update a state. What is closed before the input must not look as if the input were in."""
        return cast(
            RunnableConfig,
            {
                **self._config,
                **({"metadata": {}} if closing else {}),
                "configurable": {**self._config["configurable"], "checkpoint_ns": namespace_of(snapshot)},
            },
        )

    @property
    def _id(self) -> str:
        return self._run.context.invocation_id

    # Result ---------------------------------------------------------------------------------------------------------

    async def _result(self, snapshot: StateSnapshot) -> Result:
        if self._graph.is_function:
            return await self._returned(snapshot)
        messages = self._of_this_turn(messages_of(snapshot.values, self._key))
        usage = total(usage_of(message) for message in messages)
        self._run.context.usage = usage or None
        last = self._last_said(snapshot)
        text = last.text if last is not None else ""
        told = [as_json(message) for message in messages]
        if interrupts := asking.interrupts_of(snapshot):
            return await asking.ask(self._run, interrupts, text, told)
        return output(
            text=text,
            messages=told,
            usage=usage,
            stop_reason=stop_reason(last).value if last is not None else "stop",
            state=self._graph.other_state(snapshot.values),
        )

    async def _returned(self, snapshot: StateSnapshot) -> Result:
        if interrupts := asking.interrupts_of(snapshot):
            last = self._last_said(snapshot)
            return await asking.ask(self._run, interrupts, last.text if last is not None else "", ())
        messages, text, value = self._graph.returned(snapshot.values)
        said = messages[-1] if messages else None
        usage = total(usage_of(message) for message in messages)
        return output(
            text=text,
            messages=[as_json(message) for message in messages],
            usage=usage,
            stop_reason=stop_reason(said).value if isinstance(said, AIMessage) else "stop",
            final_output=value,
        )

    def _last_said(self, snapshot: StateSnapshot) -> AIMessage | None:
        """Return the last that a model said in this turn, also in a subgraph that came to a halt."""
        found = [self._of_this_turn(messages_of(at.values, self._key)) for at in deep(snapshot) if at.values]
        said = [message for messages in found for message in messages if isinstance(message, AIMessage)]
        return said[-1] if said else None

    def _of_this_turn(self, messages: Sequence[AnyMessage]) -> list[AnyMessage]:
        """Return what was said after the input of this run; after a resume, after the last message of a user."""
        own = [index for index, message in enumerate(messages) if message.id == self._id]
        human = [index for index, message in enumerate(messages) if isinstance(message, HumanMessage)]
        start = (own or human or [-1])[-1]
        return list(messages[start + 1 :])


def _is_missing(node: str) -> RunFailed:
    return RunFailed(
        "cannot_recover",
        f"the run goes on at {node!r}, and the graph has no node of this name any more: give it one, or send a new message",
    )


def _invocation(snapshot: StateSnapshot) -> object:
    return (snapshot.metadata or {}).get("invocation_id")


def _limit(value: Any) -> RunnableConfig:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise RunFailed("invalid_config", f"{LIMIT} is a number from 1, not {value!r}")
    return {"recursion_limit": value}


def _task_name(at: StateSnapshot, task: PregelTask) -> str:
    """Name a task as its code does, which sees it in its config."""
    above = namespace_of(at)
    return f"{above}|{task.name}:{task.id}" if above else f"{task.name}:{task.id}"


def _is_call(row: Call) -> bool:
    return not row.key.startswith((ANSWER, EFFECT, LOOP))


def _answer_of(row: Call) -> str:
    """Return the id of the model answer that asked for a call."""
    return row.key.rpartition(":")[0]


def _is_of(row: Call, call: ToolCall) -> bool:
    """Say whether a row is of a call. Tools that are called without an id are known by what they are asked."""
    if row.call_id is not None:
        return row.call_id == call.call_id
    return (
        row.name == call.name
        and row.arguments is not None
        and fingerprint(decode(row.arguments)) == fingerprint(call.arguments)
    )


def _is_cut_off(task: PregelTask) -> bool:
    return isinstance(task.state, StateSnapshot) and not task.result


def _has_input_before_it(snapshot: StateSnapshot) -> bool:
    return any(task.name == START and not task.result for task in snapshot.tasks)
