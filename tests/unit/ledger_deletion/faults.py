"""Ports whose n-th call fails once: refused, or its response is lost, after it took effect or instead of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from pulsar_sidecar.features.ledger_deletion.ports import PublishResult
from pulsar_sidecar.model.errors import OutcomeUnknownError, TemporaryError
from pulsar_sidecar.model.metadata import DeletionResult

_CHANGES = {
    "create",
    "create_together",
    "write",
    "delete_together",
    "delete_topic",
    "load_topics",
    "delete_offloaded",
    "acknowledge",
    "postpone",
    "publish",
    "delete",
    "delete_many",
}
_LOOKS = {
    "read",
    "read_many",
    "children",
    "children_many",
    "now_ms",
    "read_tail",
    "readable",
    "publisher",
    "pending",
    "receive",
    "views",
    "owner_url",
    "clients_of",
    "shadows_of",
}


class Failure(Enum):
    """Failure of a call that changes something; one that only reads fails in one way."""

    REFUSED = "refused"
    LOST = "its answer is lost, and it did not take effect"
    LOST_APPLIED = "its answer is lost, and it took effect"


@dataclass(slots=True)
class OneFault:
    """Fails call number ``at`` of all the ports' calls, counted from 0."""

    at: int | None
    failure: Failure
    calls: list[str] = field(default_factory=list)

    def wrap(self, port: object) -> "Wrapped":
        return Wrapped(port, self._around)

    def _around(self, name: str, call: Callable[[], object], arguments: Sequence[object]) -> object:
        if name not in _LOOKS | _CHANGES or not self._is_due(name):
            return call()
        if name in _LOOKS:
            raise TemporaryError(f"{name} failed")
        refused = self.failure is Failure.REFUSED
        if refused and name != "publish":
            raise TemporaryError(f"{name} was refused")
        if self.failure is Failure.LOST_APPLIED:
            call()
        match name:
            case "publish":
                return [PublishResult.NOT_STORED if refused else PublishResult.UNKNOWN] * len(arguments[0])
            case "delete":
                return DeletionResult.UNKNOWN
            case "delete_many":
                return [DeletionResult.UNKNOWN] * len(arguments[0])
        raise OutcomeUnknownError(f"the answer to {name} was lost")

    def _is_due(self, call: str) -> bool:
        self.calls.append(call)
        return len(self.calls) - 1 == self.at


class Wrapped:
    """A port whose calls go through ``around``, with their name and their positional arguments."""

    def __init__(self, port: object, around: Callable[[str, Callable[[], object], Sequence[object]], object]) -> None:
        self._port = port
        self._around = around

    def __getattr__(self, name: str) -> object:
        method = getattr(self._port, name)
        if not callable(method):
            return method

        def call(*arguments: object, **named: object) -> object:
            answer = self._around(name, lambda: method(*arguments, **named), arguments)
            return Wrapped(answer, self._around) if name in ("publisher", "pending") else answer

        return call
