"""Errors of a tracker, apart from those of its storage."""

from pulsar_sidecar.model.errors import ConflictError, TemporaryError


class TrackerFailedError(ConflictError):
    """Raised when a 4.0.8 broker would throw and forget the message (`Behaviour.AS_BROKER` only).

    Attributes:
        row: row of a batch that failed; the rows before it were added.
    """

    def __init__(self, what: str, row: int | None = None) -> None:
        super().__init__(f"{what}; a broker of 4.0.8 throws here, and the subscription stops being dispatched")
        self.what = what
        self.row = row


class RecoveryFailedError(TemporaryError):
    """Raised when a bucket cannot be read: a broker falls back to its in-memory tracker; nothing was deleted."""
