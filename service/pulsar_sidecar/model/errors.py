"""Errors that answer "what now?".

One root and three branches, distinguished by class and never by text. An adapter translates every exception of its
client into one of them; a door maps them to status codes in one table.
"""


class SidecarError(Exception):
    """Root of every error this project raises on purpose; the text names the next step."""


class PermanentError(SidecarError):
    """Trying again changes nothing: acknowledge, record the reason, answer the caller."""


class InvalidInputError(PermanentError):
    """The caller's input cannot be used; nothing was changed."""


class NotFoundError(PermanentError):
    """The thing named does not exist, and that was read, not assumed."""


class ConflictError(PermanentError):
    """The request does not fit the present state (still in use, already running, changed in between)."""


class AlreadyExistsError(ConflictError):
    """Something was to be created and is there already."""


class DataLossError(ConflictError):
    """The request would destroy data that another topic is made of; nothing was changed."""


class DisabledError(PermanentError):
    """The feature is switched off by a setting; the text names the setting."""


class NotAuthenticatedError(PermanentError):
    """No credential, or one that does not verify."""


class NotAuthorizedError(PermanentError):
    """A valid credential that may not do this."""


class ForeignRedirectError(PermanentError):
    """A broker redirected to an address that does not belong to this cluster; nothing was sent there."""


class BrokerRefusedError(PermanentError):
    """A broker answered a request with a definite refusal (4xx).

    Attributes:
        status: the broker's HTTP status code.
        reason: the broker's own ``reason`` text.
    """

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(f"the broker refused with {status}: {reason}")
        self.status = status
        self.reason = reason


class RefusedBeforehandError(BrokerRefusedError):
    """What a broker would refuse so, and was not asked: other steps come before it."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(status, reason)
        self.args = (f"brokers refuse it with {status}: {reason}",)


class TemporaryError(SidecarError):
    """It may work later: nothing is known to have changed, reconsume later."""


class UnreachableError(TemporaryError):
    """No answer came: the other side, which the text names, does not run or cannot be reached."""


class ProducerBusyError(TemporaryError):
    """A broker has another producer of this name, which may be a dead one's rest, or has as many as it admits."""


class UndecodableError(TemporaryError):
    """Bytes that this version cannot read; what they reference is unknown, so nothing may be concluded."""


class UnknownFieldError(UndecodableError):
    """Bytes that are whole and hold more than this version knows; a newer broker may have written them."""


class OutcomeUnknownError(SidecarError):
    """The request may or may not have taken effect: read again, then decide."""


class PassedChangeUnansweredError(OutcomeUnknownError):
    """A broker may have carried out a change that was passed to it; to repeat it may not be safe."""
