"""Every error outlast raises on purpose. Callers branch on the class or on `code`, never on the text."""


class OutlastError(Exception):
    """Root of all errors of this distribution."""

    code = "error"

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code


class InvalidRequest(OutlastError):
    """The request itself is wrong; nothing was written. `field` names the offending part where there is one."""

    code = "invalid_request"

    def __init__(self, message: str, *, code: str | None = None, field: str | None = None) -> None:
        super().__init__(message, code=code)
        self.field = field


class NotJSON(OutlastError, ValueError):
    """A value that JSON cannot hold; `path` says where in it, e.g. `$.items[3].score`."""

    code = "not_json"

    def __init__(self, message: str, *, path: str = "$") -> None:
        super().__init__(f"{message} (at {path})")
        self.path = path


class NotFound(OutlastError):
    """There is no such thing for this principal."""

    code = "not_found"


class SessionNotFound(NotFound):
    """There is no such session for this principal."""

    code = "session_not_found"


class Gone(OutlastError):
    """It was there and was deleted; its id is not reusable yet."""

    code = "gone"


class Conflict(OutlastError):
    """The request contradicts what is stored; `code` says how (`idempotency_conflict`, `session_active`, …)."""

    code = "conflict"


class SessionBusy(Conflict):
    """Another run of this session is not final yet."""

    code = "session_active"


class LeaseLost(OutlastError):
    """This attempt no longer owns its invocation; whatever it still does is not stored."""

    code = "lease_lost"


class StoreError(OutlastError):
    """The database refused a statement for a reason that retrying cannot mend; details are in the log."""

    code = "store_error"


class StoreUnavailable(OutlastError):
    """The database does not answer in time; the outcome of a write may be unknown, so repeat it with the same id."""

    code = "store_unavailable"


class StoreSetupError(OutlastError):
    """The store cannot be used as configured (URL, permissions, file system, schema version)."""

    code = "store_setup"


class OutcomeUnknown(OutlastError):
    """A side effect started in an earlier attempt and its outcome was never stored: it may or may not have happened."""

    code = "outcome_unknown"

    def __init__(self, key: str) -> None:
        super().__init__(
            f"the side effect {key!r} started in an earlier attempt that died before its outcome was stored; "
            "look at the world before you decide to repeat it"
        )
        self.key = key


class RunFailed(OutlastError):
    """Raised by handlers and adapters to end the run `failed` with a code and a message of their own."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message, code=code)


class InvalidHistory(RunFailed):
    """What is stored of a session is no conversation of its agent; the message names the item."""

    code = "invalid_history"

    def __init__(self, message: str) -> None:
        super().__init__(self.code, message)


RESUME_REASONS = {
    "completed": "it is completed, and nothing is left to do",
    "refused": "the model, or a filter of its provider, refused to answer",
    "awaiting_approval": "a person has to decide about a tool call first",
    "context_full": "the conversation is too long for the model",
    "unknown_stop": "the provider stopped for a reason that is not known here",
    "empty": "it has no messages yet",
    "malformed": "its tool calls and their results do not belong together",
}
"""Why nothing can be resumed, and how people are told."""


class AgentResumeError(OutlastError):
    """Nothing can be resumed; `reason` is a key of `RESUME_REASONS`."""

    def __init__(self, reason: str, message: str | None = None) -> None:
        sentence = RESUME_REASONS.get(reason, reason)
        super().__init__(message or f"this session cannot be resumed: {sentence}", code=reason)
        self.reason = reason


class EffectFailed(OutlastError):
    """A side effect raised in an earlier attempt; `error_type` and the message are those of the exception."""

    code = "effect_failed"

    def __init__(self, key: str, error_type: str, message: str) -> None:
        super().__init__(f"the side effect {key!r} failed in an earlier attempt: {error_type}: {message}")
        self.key = key
        self.error_type = error_type
