"""Named points where a test may stop or kill the process; in production each is one comparison with None."""

from collections.abc import Callable

Hook = Callable[[str], None]
Entered = Callable[[str, str, bool], None]
"""Is told the key of a tool call, the name of its tool, and whether the call may be entered by another attempt too."""

TRANSACTIONS = (
    "migrate",
    "register",
    "accept",
    "claim",
    "events",
    "journal.pending",
    "journal.started",
    "journal.waiting",
    "journal.done",
    "journal.failed",
    "journal.answered",
    "head",
    "checkpoint",
    "items",
    "approval.asked",
    "approval.decided",
    "approval.closed",
    "finish",
    "cancel",
    "hand_back",
    "takeover",
    "expire",
    "delete",
    "session.create",
    "session.label",
    "session.append",
    "session.pop",
    "session.clear",
    "session.fork",
    "session.delete",
    "memory",
    "thread",
    "document",
)
"""Kinds of write transactions; each has the points `<kind>.begin`, `<kind>.before_commit` and `<kind>.after_commit`."""

POINTS = (
    *(f"{kind}.{moment}" for kind in TRANSACTIONS for moment in ("begin", "before_commit", "after_commit")),
    "attempt.before_handler",
    "attempt.after_handler",
    "tool.before_body",
    "tool.after_body",
    "checkpoint.before_put",
    "checkpoint.after_put",
    "drain.begin",
    "drain.before_hand_back",
)
"""Every point, in no particular order."""

_hook: Hook | None = None
_entered: Entered | None = None


def active() -> bool:
    """Say whether a hook is installed."""
    return _hook is not None


def reach(point: str) -> None:
    """Tell an installed hook that `point` is reached; do nothing without one."""
    if _hook is not None:
        _hook(point)


def enter(key: str, name: str, *, repeatable: bool) -> None:
    """Reach `tool.before_body`, and tell that the body of a call is entered now."""
    reach("tool.before_body")
    if _entered is not None:
        _entered(key, name, repeatable)


def install(hook: Hook | None, entered: Entered | None = None) -> None:
    """Set the hooks of this process, or remove them with None. Only `outlast.testing` calls this."""
    global _hook, _entered
    _hook, _entered = hook, entered
