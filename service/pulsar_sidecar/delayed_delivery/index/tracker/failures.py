"""What goes wrong in a tracker, apart from its storage."""

from pulsar_sidecar.model.errors import ConflictError, TemporaryError


class TrackerFailedError(ConflictError):
    """A broker of 4.0.8 throws here and forgets the message (`Behaviour.AS_BROKER` only).

    Attributes:
        row: of a batch, the row that failed: the rows before it were added.
    """

    def __init__(self, what: str, row: int | None = None) -> None:
        super().__init__(f"{what}; a broker of 4.0.8 throws here, and the subscription stops being dispatched")
        self.what = what
        self.row = row


class RecoveryFailedError(TemporaryError):
    """A bucket could not be read: a broker falls back to its in-memory tracker; nothing was deleted."""
