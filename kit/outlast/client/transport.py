"""Requests that are repeated until they are answered, and problems as typed errors."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx

from outlast.core import jsontext
from outlast.core.errors import (
    AgentResumeError,
    Conflict,
    Gone,
    InvalidHistory,
    InvalidRequest,
    NotFound,
    OutlastError,
    SessionBusy,
    SessionNotFound,
    StoreUnavailable,
)

NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
"""Failures before anything of a request has left."""
NOT_DONE = ("draining", "not_started")
"""Codes of a server that has not begun to do what was asked."""

FIRST_WAIT_SECONDS = 0.2
LONGEST_WAIT_SECONDS = 5.0


class ServerUnreachable(OutlastError):
    """The server did not answer for as long as the client was told to try. Repeat the request with the same id."""

    code = "server_unreachable"


class AnswerLost(OutlastError):
    """A change was sent and no answer came: it may or may not have been made. Look before you make it again."""

    code = "answer_lost"


class UnexpectedAnswer(OutlastError):
    """The server answered what a server of ours does not answer; `status` is the HTTP status."""

    code = "unexpected_answer"

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class Patience:
    """How long a request is tried again: `seconds` since it last got anywhere."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.advanced()

    def advanced(self) -> None:
        """Note that there was an answer: from now on the whole time is left again."""
        self._tries, self._since = 0, asyncio.get_running_loop().time()

    async def wait(self, error: Exception, retry_after: float = 0) -> None:
        """Wait before the next try, longer each time. Raise ServerUnreachable when the time is over."""
        pause = min(FIRST_WAIT_SECONDS * 2**self._tries, LONGEST_WAIT_SECONDS) * random.uniform(0.5, 1)
        pause = max(pause, retry_after)
        self._tries += 1
        if asyncio.get_running_loop().time() - self._since + pause > self._seconds:
            raise ServerUnreachable(f"the server did not answer for {self._seconds:g} s: {error}") from error
        await asyncio.sleep(pause)


def _raise(error: Exception) -> None:
    raise AnswerLost(f"no answer came, and the change may or may not have been made: {error}") from error


class Transport:
    """Sends requests, and repeats those that are safe to repeat: ids and keys make a repetition harmless."""

    def __init__(self, http: httpx.AsyncClient, patience_seconds: float) -> None:
        self.http = http
        self._patience_seconds = patience_seconds
        self._loop: asyncio.AbstractEventLoop | None = None

    def patience(self) -> Patience:
        """Return how long the request that begins here is tried again. Raises as `require_loop` does."""
        self.require_loop()
        return Patience(self._patience_seconds)

    def require_loop(self) -> None:
        """Raise RuntimeError in another event loop than the first: connections belong to the one they were made in."""
        loop = asyncio.get_running_loop()
        self._loop = self._loop or loop
        if self._loop is not loop:
            raise RuntimeError("one AgentClient per event loop: make another there, or use SyncAgentClient")

    async def json(
        self, method: str, path: str, *, on_lost: Callable[[Exception], None] = lambda error: None, **request: Any
    ) -> Any:
        """Repeat a request until it is answered. Return the JSON of the answer, None for one without a body.

        `on_lost` is called when a try may have done what was asked without an answer that says so. Raises what the
        problem means, and ServerUnreachable.
        """
        patience, sent = self.patience(), _written(request)
        while True:
            try:
                answer = await self.http.request(method, path, **sent)
            except httpx.TransportError as error:
                if not isinstance(error, NOT_SENT):
                    on_lost(error)
                await patience.wait(error)
                continue
            except UnicodeEncodeError:
                raise InvalidRequest("a URL cannot hold lone surrogates") from None
            if (busy := _busy(answer)) is not None:
                if answer.status_code != httpx.codes.TOO_MANY_REQUESTS and _problem(answer).get("code") not in NOT_DONE:
                    on_lost(busy)
                await patience.wait(busy, _retry_after(answer))
                continue
            _refuse(answer)
            return answer.json() if answer.content else None

    async def listed(
        self, path: str, query: Mapping[str, Any], *, cursor: str = "cursor"
    ) -> AsyncIterator[dict[str, Any]]:
        """Give the items of a list page by page, reading on as they are taken. `cursor` names where a page begins.

        Raises as `json` does.
        """
        asked = dict(query)
        while True:
            page = await self.json("GET", path, params=asked)
            for one in page["items"]:
                yield one
            if page["next_cursor"] is None:
                return
            asked[cursor] = page["next_cursor"]

    async def once(self, method: str, path: str, **request: Any) -> Any:
        """Send what is not safe to repeat, and repeat it only when it was certainly not done.

        Raises as `json` does, and AnswerLost.
        """
        return await self.json(method, path, on_lost=_raise, **request)

    async def delete(self, path: str, **request: Any) -> None:
        """Remove something. When a try was not answered and the next finds nothing, it is removed: that was asked."""
        lost: list[Exception] = []
        try:
            await self.json("DELETE", path, on_lost=lost.append, **request)
        except NotFound:
            if not lost:
                raise

    @asynccontextmanager
    async def stream(self, method: str, path: str, **request: Any) -> AsyncIterator[httpx.Response]:
        """Open one answer that is read as it comes. Raises what the problem means; nothing is repeated."""
        async with self.http.stream(method, path, **_written(request)) as answer:
            if answer.is_error:
                await answer.aread()
                if (busy := _busy(answer)) is not None:
                    raise busy
                _refuse(answer)
            yield answer


def _written(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a request with its JSON as text of ours: httpx cannot write a lone surrogate."""
    if "json" not in request:
        return dict(request)
    headers = {"Content-Type": "application/json", **request.get("headers", {})}
    sent = {name: value for name, value in request.items() if name != "json"}
    return {**sent, "content": jsontext.encode(request["json"]), "headers": headers}


def _busy(answer: httpx.Response) -> StoreUnavailable | None:
    """Return the error of an answer that means: not now."""
    if answer.status_code not in (429, 502, 503, 504):
        return None
    return StoreUnavailable(f"the server answered {answer.status_code}: {_problem(answer).get('detail', 'not now')}")


def _retry_after(answer: httpx.Response) -> float:
    text = answer.headers.get("retry-after", "")
    return float(text) if text.isdecimal() else 0.0


def _problem(answer: httpx.Response) -> Mapping[str, Any]:
    try:
        body = answer.json()
    except ValueError:
        return {}
    return body if isinstance(body, Mapping) else {}


def _refuse(answer: httpx.Response) -> None:
    """Raise the error that an answer is."""
    if answer.is_success:
        return
    problem = _problem(answer)
    code, detail = str(problem.get("code", "")), str(problem.get("detail", ""))
    if not code:
        raise UnexpectedAnswer(
            f"{answer.request.method} {answer.request.url.path} was answered {answer.status_code}; "
            "is the base URL that of an outlast server?",
            answer.status_code,
        )
    match answer.status_code:
        case 404 if code == SessionNotFound.code:
            raise SessionNotFound(detail)
        case 404:
            raise NotFound(detail, code=code)
        case 410:
            raise Gone(detail, code=code)
        case 409 if code.startswith("resume_"):
            raise AgentResumeError(code.removeprefix("resume_"), detail)
        case 409 if code == SessionBusy.code:
            raise SessionBusy(detail)
        case 409 if code == InvalidHistory.code:
            raise InvalidHistory(detail)
        case 409:
            raise Conflict(detail, code=code)
        case 400 | 413 | 422:
            raise InvalidRequest(detail, code=code, field=problem.get("field"))
        case _:
            raise UnexpectedAnswer(f"the server answered {answer.status_code}: {detail}", answer.status_code)
