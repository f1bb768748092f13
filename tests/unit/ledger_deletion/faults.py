"""Ports whose n-th call fails once: refused, or its response is lost, after it took effect or instead of it."""

from collections.abc import Callable
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

    def wrap(self, port: object) -> "Faulty":
        return Faulty(port, self)

    def due(self, call: str) -> bool:
        self.calls.append(call)
        return len(self.calls) - 1 == self.at


class Faulty:
    """A port with faults."""

    def __init__(self, port: object, faults: OneFault) -> None:
        self._port = port
        self._faults = faults

    def __getattr__(self, name: str) -> object:
        method = getattr(self._port, name)
        if name in _LOOKS:
            return self._look(name, method)
        if name in _CHANGES:
            return self._change(name, method)
        if name == "publish":
            refused = self._faults.failure is Failure.REFUSED
            result = PublishResult.NOT_STORED if refused else PublishResult.UNKNOWN
            return self._answer(name, method, lambda messages: [result] * len(messages))
        if name == "delete" and self._faults.failure is not Failure.REFUSED:
            return self._answer(name, method, lambda *_: DeletionResult.UNKNOWN)
        if name == "delete_many" and self._faults.failure is not Failure.REFUSED:
            return self._answer(name, method, lambda deletions, *_: [DeletionResult.UNKNOWN] * len(deletions))
        return self._change(name, method) if name in ("delete", "delete_many") else method

    def _look(self, name: str, method: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object, **named: object) -> object:
            if self._faults.due(name):
                raise TemporaryError(f"{name} failed")
            answer = method(*arguments, **named)
            return Faulty(answer, self._faults) if name in ("publisher", "pending") else answer

        return call

    def _change(self, name: str, method: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object, **named: object) -> object:
            if not self._faults.due(name):
                return method(*arguments, **named)
            if self._faults.failure is Failure.REFUSED:
                raise TemporaryError(f"{name} was refused")
            if self._faults.failure is Failure.LOST_APPLIED:
                method(*arguments, **named)
            raise OutcomeUnknownError(f"the answer to {name} was lost")

        return call

    def _answer(self, name: str, method: Callable[..., object], lost: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object, **named: object) -> object:
            if not self._faults.due(name):
                return method(*arguments, **named)
            if self._faults.failure is Failure.LOST_APPLIED:
                method(*arguments, **named)
            return lost(*arguments)

        return call
