"""Errors, each with a next step.

One root and three branches, distinguished by class and never by text. An adapter translates every exception of its
client into one of them; the server maps them to status codes in one table.
"""


class SidecarError(Exception):
    """Base class of every error that this project raises on purpose; the message names the next step."""


class PermanentError(SidecarError):
    """Raised when a retry cannot help: acknowledge, record the reason, tell the caller."""


class InvalidInputError(PermanentError):
    """Raised when the caller's input cannot be used; nothing was changed."""


class NotFoundError(PermanentError):
    """Raised when the named thing does not exist, which was read, not assumed."""


class ConflictError(PermanentError):
    """Raised when the request does not fit the present state (still in use, already running, changed meanwhile)."""


class AlreadyExistsError(ConflictError):
    """Raised when something to be created exists already."""


class DataLossError(ConflictError):
    """Raised when the request would destroy data that another topic needs; nothing was changed."""


class DisabledError(PermanentError):
    """Raised when a setting, which the message names, switches the feature off."""


class NotAuthenticatedError(PermanentError):
    """Raised when the credential is missing or cannot be verified."""


class NotAuthorizedError(PermanentError):
    """Raised when a valid credential lacks the right."""


class ForeignRedirectError(PermanentError):
    """Raised when a broker redirects to an address that does not belong to this cluster; nothing was sent there.

    Attributes:
        sidecar_url: address of that cluster's sidecar, to which the caller is redirected; None if it is not known.
    """

    def __init__(self, message: str, sidecar_url: str | None = None) -> None:
        super().__init__(message)
        self.sidecar_url = sidecar_url


class BrokerRefusedError(PermanentError):
    """Raised when a broker definitely refuses a request (4xx).

    Attributes:
        status: the broker's HTTP status code.
        reason: the broker's own ``reason`` text.
    """

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(f"the broker refused with {status}: {reason}")
        self.status = status
        self.reason = reason


class RefusedBeforehandError(BrokerRefusedError):
    """Raised for a request that a broker would refuse so, before it is sent, because other steps come first."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(status, reason)
        self.args = (f"brokers refuse it with {status}: {reason}",)


class TemporaryError(SidecarError):
    """Raised when a retry may succeed: nothing is known to have changed, reconsume later."""


class UnreachableError(TemporaryError):
    """Raised when the other side, which the message names, does not respond: it is down or cannot be reached."""


class ProducerBusyError(TemporaryError):
    """Raised when a broker has another producer of this name, perhaps of a dead client, or admits no more producers."""


class UndecodableError(TemporaryError):
    """Raised for bytes that this version cannot read; their references are unknown, so nothing may be concluded."""


class UnknownFieldError(UndecodableError):
    """Raised for whole bytes with fields that this version does not know; a newer broker may have written them."""


class OutcomeUnknownError(SidecarError):
    """Raised when a request may or may not have taken effect: read again, then decide."""


class PassedChangeUnansweredError(OutcomeUnknownError):
    """Raised when a broker may have carried out a change that was passed to it; a retry may not be safe."""
