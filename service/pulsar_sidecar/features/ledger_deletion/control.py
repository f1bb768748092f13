"""State that a cluster's sidecars share in the metadata store: pause, rate, and the register of live sidecars."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Final, TypeVar

import msgspec

from pulsar_sidecar.features.ledger_deletion.nodes import change_node
from pulsar_sidecar.features.ledger_deletion.results import Control, SidecarInstance
from pulsar_sidecar.model.decoding import decodable
from pulsar_sidecar.model.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidInputError,
)
from pulsar_sidecar.model.metadata import MetadataStore
from pulsar_sidecar.model.results import camel_case

_T = TypeVar("_T", Control, SidecarInstance)

CONTROL = "/pulsar-sidecar/ledger-deletion/control"
INSTANCES = "/pulsar-sidecar/instances"
_NEEDED: Final = {"paused", "pausedReason", "ratePerSecond"}
"""Keys without which a node cannot be read; sidecars of earlier versions write no others."""
_SLOWEST, _FASTEST = 0.001, 1e9
_UNREADABLE = Control(
    paused=True, paused_reason=f"pause and rate cannot be read from {CONTROL}: pause or resume again, and set the rate"
)


@dataclass(frozen=True, slots=True)
class ServiceControl:
    """Pause and rate, stored in one node that every sidecar reads."""

    store: MetadataStore

    def read(self) -> Control:
        """Return pause and rate; an unreadable node means paused, since an operator wrote it to limit deletion."""
        node = self.store.read(CONTROL)
        return _decode_control(None if node is None else node.data)

    def change(self, change: Callable[[Control], Control]) -> Control:
        """Change pause or rate by compare-and-set and return the result."""
        return change_node(self.store, CONTROL, _decode_control, change, encoded)

    def pause(self, reason: str | None, asked_by: str | None = None) -> Control:
        """Pause deletion on all sidecars."""
        since_ms = self.store.now_ms()
        return self.change(
            lambda control: replace(
                control, paused=True, paused_reason=reason, paused_by=asked_by, paused_since_ms=since_ms
            )
        )

    def resume(self) -> Control:
        return self.change(
            lambda control: replace(control, paused=False, paused_reason=None, paused_by=None, paused_since_ms=None)
        )

    def limit_rate(self, ledgers_per_second: float | None) -> Control:
        """Set or lift the limit of each sidecar.

        Raises:
            InvalidInputError: the limit is not a number, or out of range.
        """
        if not _is_rate(ledgers_per_second):
            raise InvalidInputError(
                f"a rate must be {_SLOWEST} to {_FASTEST:.0f} ledgers per second, or none to lift the limit"
            )
        return self.change(lambda control: replace(control, rate_per_second=ledgers_per_second))


@dataclass(slots=True)
class SidecarRegistry:
    """Registry of live sidecars: ephemeral nodes that end with their sessions."""

    store: MetadataStore
    own: SidecarInstance
    _asked_to_keep: bool = field(default=False, init=False)

    def keep(self) -> None:
        """Register this sidecar; call it repeatedly, since a lost session removes the node.

        Raises:
            ConflictError: another live sidecar has the same name.
        """
        self._asked_to_keep = True
        node = self.store.read(self._path)
        if node is not None:
            if decode_instance(node.data) != self.own:
                raise ConflictError(
                    f"another sidecar is registered as {self.own.name!r}; give each its own instanceName, "
                    "or wait until the old one's session has ended"
                )
            return
        try:
            self.store.create(self._path, encoded(self.own), ephemeral=True)
        except AlreadyExistsError:
            return

    def withdraw(self) -> None:
        """Remove this sidecar's own registration, if it has one; redirects no longer name it."""
        node = self.store.read(self._path) if self._asked_to_keep else None
        if node is not None and decode_instance(node.data) == self.own:
            self.store.delete(self._path, node.version, node.modified_order)

    @property
    def _path(self) -> str:
        return f"{INSTANCES}/{self.own.name}"

    def instances(self) -> tuple[SidecarInstance, ...]:
        """Return every live sidecar, by name."""
        names = self.store.children(INSTANCES) or []
        nodes = self.store.read_many([f"{INSTANCES}/{name}" for name in names])
        return tuple(decode_instance(node.data) for node in nodes if node is not None)


def _decode_control(data: bytes | None) -> Control:
    if data is None:
        return Control()
    try:
        document = json.loads(data)
        control = _converted(document, Control)
        is_complete = document.keys() >= _NEEDED
    except (ValueError, OverflowError, RecursionError):
        return _UNREADABLE
    return control if is_complete and _is_rate(control.rate_per_second) else _UNREADABLE


def _is_rate(value: object) -> bool:
    if value is None:
        return True
    return isinstance(value, int | float) and not isinstance(value, bool) and _SLOWEST <= value <= _FASTEST


def decode_instance(data: bytes) -> SidecarInstance:
    """Decode a registered sidecar; one named "unreadable" where the node cannot be decoded."""
    try:
        return _converted(msgspec.json.decode(data), SidecarInstance)
    except (ValueError, RecursionError):
        return SidecarInstance("unreadable", "", None, 0)


def encoded(stored: Control | SidecarInstance) -> bytes:
    """Return the content of a shared node."""
    return msgspec.json.encode({camel_case(each.name): getattr(stored, each.name) for each in fields(stored)})


def _converted(document: object, kind: type[_T]) -> _T:
    """Decode a node's document; raises `msgspec.ValidationError`."""
    found = msgspec.convert(document, dict[str, object])
    spelled = {each.name: camel_case(each.name) for each in fields(kind)}
    return msgspec.convert({name: found[key] for name, key in spelled.items() if key in found}, kind)


for _kind in (Control, SidecarInstance):
    decodable(_kind)
