"""`@journaled`: `context.once` for plain functions, wherever a framework calls them."""

import inspect
from collections.abc import Callable
from functools import partial, wraps
from typing import Any, ParamSpec, TypeVar, cast

from outlast.adapters.run import CURRENT_RUN, Run
from outlast.core import jsontext

P = ParamSpec("P")
R = TypeVar("R")


def journaled(function: Callable[P, R]) -> Callable[P, R]:
    """Make a function whose side effect happens at most once for each call that a durable run makes of it.

    A later attempt, and a node that starts over after its question was answered, gets the stored outcome. Arguments and
    result must be JSON. A call is known by where it happens, the function, its arguments, and its place among equal ones.
    Raises, like `InvocationContext.once`: OutcomeUnknown when a worker died during the call, EffectFailed when it had
    raised in an earlier attempt. Outside of a run the function is called as it is.
    """
    if inspect.iscoroutinefunction(function):

        @wraps(function)
        async def asynchronous(*args: P.args, **kwargs: P.kwargs) -> Any:
            run = CURRENT_RUN.get()
            return await (function(*args, **kwargs) if run is None else _once(run, function, args, kwargs))

        return cast(Callable[P, R], asynchronous)

    @wraps(function)
    def synchronous(*args: P.args, **kwargs: P.kwargs) -> R:
        run = CURRENT_RUN.get()
        return function(*args, **kwargs) if run is None else run.blocking(_once(run, function, args, kwargs))

    return synchronous


def _once(run: Run, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    # The place is that of the caller; the coroutine may run elsewhere.
    name = f"{function.__module__}.{function.__qualname__}"
    key = run.effect_key(name, jsontext.encode([list(args), kwargs]))
    return run.context.once_in(run.history.scope, key, partial(function, *args, **kwargs))
