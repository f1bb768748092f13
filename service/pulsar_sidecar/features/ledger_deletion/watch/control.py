"""Operators' control of the watch, shared by all sidecars: holds on ledgers, and the brake.

Invariant: only `WatchControlNode.resume` releases the brake; a vanished node, or an old copy of it, does not.
"""

from collections.abc import Callable
from dataclasses import dataclass

import msgspec
from msgspec.structs import replace

from pulsar_sidecar.features.ledger_deletion.control import decode_instance
from pulsar_sidecar.features.ledger_deletion.nodes import change_node
from pulsar_sidecar.features.ledger_deletion.results import SidecarInstance
from pulsar_sidecar.model.decoding import decodable
from pulsar_sidecar.model.errors import ConflictError, InvalidInputError, NotFoundError
from pulsar_sidecar.model.ids import LedgerId, parse_ledger_id
from pulsar_sidecar.model.metadata import MetadataStore, Node
from pulsar_sidecar.model.names import TopicName, parse_topic_name

WATCH = "/pulsar-sidecar/ledger-deletion/watch"
CONTROL = f"{WATCH}/control"
LEADER = f"{WATCH}/leader"
_NAME_PARTS = (1, 2)


@decodable
class WatchControl(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Content of `CONTROL`.

    Attributes:
        braked: reason why nothing is appended until an operator resumes; None while the watch may append.
        holds: ledger ids, tenants, namespaces and topics whose ledgers are never appended.
        resumed_ms: time at which an operator last resumed, on the store's clock; references vanished before are
            accepted.
    """

    braked: str | None = None
    holds: tuple[str, ...] = ()
    resumed_ms: int = 0

    def holds_ledger(self, ledger_id: LedgerId, topic: TopicName) -> str | None:
        """Return the hold that covers a ledger, or None."""
        names = (topic.tenant, topic.namespace, str(topic.base), str(topic))
        # Digits may be a ledger's id and a tenant's name: the hold covers both.
        return next((hold for hold in self.holds if hold in names or parse_ledger_id(hold) == ledger_id), None)


def find_leader(store: MetadataStore) -> SidecarInstance | None:
    """Return the sidecar that watches, or None."""
    node = store.read(LEADER)
    return None if node is None else decode_instance(node.data)


_UNREADABLE = (
    f"{CONTROL} is not readable; delete it, set the holds again, then: pulsar-sidecar ledger-deletion watch resume"
)


def parse_hold(text: str) -> str:
    """Parse a hold into its stored form: a ledger's id, a tenant, ``tenant/namespace``, or a topic's full name.

    Raises:
        InvalidInputError: it is another string.
    """
    if "://" in text:
        return str(parse_topic_name(text))
    parts = text.split("/")
    if len(parts) in _NAME_PARTS and all(parts) and not any(character.isspace() for character in text):
        return text
    raise InvalidInputError(
        f"{text[:100]!r} cannot be held: give a ledger id, a tenant, a namespace (tenant/namespace) or a topic "
        "(persistent://tenant/namespace/topic)"
    )


@dataclass(frozen=True, slots=True)
class WatchControlNode:
    """Control node, which every sidecar reads and writes by compare-and-set."""

    store: MetadataStore

    def read(self) -> WatchControl:
        """Return the current control; an unreadable node engages the brake, since an operator wrote it."""
        node = self.store.read(CONTROL)
        return _in_force(WatchControl(), node)

    def follow(self, known: WatchControl) -> WatchControl:
        """Return the control in force for a watch that knew ``known``; rewrites what only the watch still knows.

        Raises:
            TemporaryError, ConflictError: the node was not written; ``known`` stays in force.
        """
        node = self.store.read(CONTROL)
        control = _in_force(known, node)
        if node is None and control != WatchControl():
            self.store.create(CONTROL, msgspec.json.encode(control))
        elif node is not None and control.braked is not None and _in_force(WatchControl(), node).braked is None:
            self.store.write(CONTROL, msgspec.json.encode(control), node.version)
        return control

    def brake(self, reason: str) -> WatchControl:
        """Stop appending until `resume`; the first reason stays."""
        return self._change(lambda control: replace(control, braked=control.braked or reason))

    def resume(self) -> WatchControl:
        """Release the brake, and restart its count of vanished references."""
        now_ms = self.store.now_ms()
        return self._change(
            lambda control: replace(control, braked=None, resumed_ms=max(now_ms, control.resumed_ms + 1))
        )

    def hold(self, item: str) -> WatchControl:
        """Never append what ``item`` names; raises as `parse_hold` does."""
        added = parse_hold(item)
        return self._change(lambda control: replace(control, holds=tuple(sorted({*control.holds, added}))))

    def release_hold(self, item: str) -> WatchControl:
        """Release a hold.

        Raises:
            NotFoundError: there is no such hold.
        """
        removed = parse_hold(item)

        def without(control: WatchControl) -> WatchControl:
            if removed not in control.holds:
                raise NotFoundError(
                    f"{removed} is not on the hold list; see pulsar-sidecar ledger-deletion watch hold list"
                )
            return replace(control, holds=tuple(each for each in control.holds if each != removed))

        return self._change(without)

    def _change(self, change: Callable[[WatchControl], WatchControl]) -> WatchControl:
        return change_node(self.store, CONTROL, _decoded, change, msgspec.json.encode)


def _decoded(data: bytes | None) -> WatchControl:
    """Decode the node; raises `ConflictError` for one that this version did not write."""
    try:
        return WatchControl() if data is None else msgspec.json.decode(data, type=WatchControl)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ConflictError(_UNREADABLE) from error


def _in_force(known: WatchControl, node: Node | None) -> WatchControl:
    if node is None:
        return known
    try:
        found = _decoded(node.data)
    except ConflictError as error:
        return replace(known, braked=known.braked or str(error))
    return found if found.resumed_ms > known.resumed_ms else replace(found, braked=found.braked or known.braked)
