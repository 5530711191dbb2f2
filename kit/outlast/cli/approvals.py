"""`outlast approvals`: what waits for a person, and the decision."""

import sys
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from outlast.adapters import DurableAgent
from outlast.adapters.approvals import DecisionType
from outlast.cli.access import Access, opened
from outlast.cli.errors import USAGE, command, fail
from outlast.cli.options import Json, Limit, StoreUrl, Url, json_object, json_value
from outlast.cli.output import at, brief, fields, key, listed
from outlast.cli.running import PATIENCE_SECONDS, Patience, Stream, Target, agent_of, hosted, show
from outlast.client import ApprovalRequest
from outlast.core.conversations import approval_as_json
from outlast.core.errors import NotFound
from outlast.core.records import ApprovalKind, ApprovalStatus

main = typer.Typer(no_args_is_help=True, add_completion=False)

_COLUMNS = {
    "ID": key("id"),
    "SESSION": key("session_id"),
    "STATUS": key("status"),
    "WHAT": lambda one: one.get("name") or "question",
    "ARGUMENTS": lambda one: brief(one.get("arguments", one.get("value"))),
    "ASKED": at("created_at"),
}
_NOT_GIVEN = object()


@main.callback()
def group() -> None:
    """See what waits for a person, and decide."""


@main.command("list")
@command
async def list_(
    status: Annotated[ApprovalStatus, typer.Option(help="Which of them.")] = ApprovalStatus.OPEN,
    session: Annotated[str | None, typer.Option(help="Those of this session only.")] = None,
    limit: Limit = 50,
    url: Url = None,
    store: StoreUrl = None,
    json: Json = False,
) -> None:
    """List what waits for a person, over all sessions, the newest first; or what was decided."""
    async with opened(url, store) as asked:
        found = asked.approvals(status=status, session_id=session)
        await listed((approval_as_json(one) async for one in found), _COLUMNS, json=json, limit=limit)


@main.command()
def decide(
    id: Annotated[str, typer.Argument(metavar="ID", help="What is decided, as the list shows it.")],
    decision: Annotated[DecisionType | None, typer.Argument(help="On a terminal it is asked for.")] = None,
    arguments: Annotated[str | None, typer.Option(help="With edit: a JSON object to run the call with.")] = None,
    message: Annotated[
        str | None, typer.Option("--message", "-m", help="With reject: why. With respond: the result of the call.")
    ] = None,
    answer: Annotated[str | None, typer.Option(help="The answer to a question: any JSON.")] = None,
    session: Annotated[str | None, typer.Option(help="Its session, where several have the same id.")] = None,
    stream: Stream = None,
    patience: Patience = PATIENCE_SECONDS,
    url: Url = None,
    target: Target = None,
    store: StoreUrl = None,
    json: Json = False,
) -> None:
    """Decide about a call or answer a question, and have the session go on, on its server or in this process.

    A decision is bound to the arguments that the list shows: a call that changed meanwhile is not approved.
    """
    edited = json_object(arguments, "--arguments")
    said = _NOT_GIVEN if answer is None else json_value(answer, "--answer")
    if (edited is not None) is not (decision is DecisionType.EDIT):
        fail("edit and --arguments belong together", USAGE)
    if decision is DecisionType.RESPOND and message is None:
        fail("respond needs a --message: it is the result of the call", USAGE)
    if answer is not None and (decision is not None or message is not None):
        fail("--answer is for a question, which is not decided", USAGE)
    given: dict[str, Any] = {} if message is None else {"message": message}
    given |= {} if edited is None else {"arguments": edited}
    _decide(id, decision, given, said, session, stream, patience, url, agent_of(target, None), store, json)


@command
async def _decide(
    id: str,
    decision: DecisionType | None,
    given: Mapping[str, Any],
    answer: Any,
    session: str | None,
    stream: bool | None,
    patience: float,
    url: str | None,
    local: tuple[DurableAgent, str] | None,
    store: str | None,
    json: bool,
) -> None:
    async with hosted(url, store, local, patience=patience) as host:
        one = await _find(host.access, id, session)
        if one.kind is ApprovalKind.QUESTION:
            input: dict[str, Any] = {"answers": {id: _answer(one, answer)}}
        else:
            if answer is not _NOT_GIVEN:
                fail(f"{id} is a call of {one.name}: approve or reject it", USAGE)
            type_ = decision or _asked_for(one)
            given = {"arguments": one.arguments, **given} if type_ is DecisionType.APPROVE else given
            input = {"decisions": [{"id": id, "type": type_, **given}]}
        options: dict[str, Any] = {"agent": one.agent} if host.remote else {}
        events = host.session(one.session_id).stream({"resume": input}, **options)
        await show(events, host, json=json, stream=stream)


async def _find(asked: Access, id: str, session: str | None) -> ApprovalRequest:
    found = [one async for one in asked.approvals(status=ApprovalStatus.OPEN, session_id=session) if one.id == id]
    if not found:
        raise NotFound(f"nothing open has the id {id!r}; `outlast approvals list` shows what waits")
    if len(found) > 1:
        fail(
            f"{id!r} waits in several sessions; --session names one of {', '.join(one.session_id for one in found)}",
            USAGE,
        )
    return found[0]


def _answer(one: ApprovalRequest, answer: Any) -> Any:
    if answer is not _NOT_GIVEN:
        return answer
    _require_terminal(f"{one.id} is a question: give --answer JSON")
    _show(one)
    return json_value(typer.prompt("Answer (JSON)", err=True), "the answer")


def _asked_for(one: ApprovalRequest) -> DecisionType:
    # What needs more than a word is said by an option.
    possible = [
        type_ for type_ in (DecisionType.APPROVE, DecisionType.REJECT) if type_ in (one.allowed or DecisionType)
    ]
    _require_terminal(f"say what is decided: one of {', '.join(one.allowed or DecisionType)}")
    _show(one)
    while (said := str(typer.prompt(f"Decision ({', '.join(possible)})", err=True))) not in possible:
        pass
    return DecisionType(said)


def _show(one: ApprovalRequest) -> None:
    fields({"session": one.session_id, "call": one.name, "asks": brief(one.arguments, 100_000),
            **{name: brief(text, 10_000) for name, text in one.details.items()}})  # fmt: skip


def _require_terminal(otherwise: str) -> None:
    if not sys.stdin.isatty():
        fail(otherwise, USAGE)
