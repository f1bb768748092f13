"""How far the case against each unreferenced ledger has come: the audit's judgement, pure and total.

Invariant: `OrphanStatus.DELETABLE` is said only of a ledger that nothing in two complete dumps references, that did
not change between them, that is old enough by the store's clock, and whose every possible reference was read.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pulsar_sidecar.audit.engine.candidates import Claimed, Extent, Unattributed
from pulsar_sidecar.audit.engine.causes import OwnerNode, cause_of, evidence_of
from pulsar_sidecar.audit.engine.protections import Protection
from pulsar_sidecar.audit.requests import HOUR_MS, Policy
from pulsar_sidecar.audit.results.tables import OrphanStatus


@dataclass(frozen=True, slots=True)
class EarlierLook:
    """An orphan as the earlier audit had it; ``first_seen_ms`` is None if that audit proved nothing about it."""

    version: int | None
    czxid: int | None
    mzxid: int | None
    first_seen_ms: int | None


@dataclass(frozen=True, slots=True)
class Judge:
    """Judges unreferenced ledgers, one at a time.

    Attributes:
        as_of_ms: the dump's time by the store's clock.
        protection: what could not be read.
    """

    as_of_ms: int
    policy: Policy
    protection: Protection

    def unattributed(self, row: Mapping[str, Any], found: Unattributed) -> dict[str, Any]:
        """A row of `audit.tables.UNATTRIBUTED_LEDGERS`."""
        return {**self._shared(row, found.extent), "reason": found.reason}

    def orphan(
        self,
        row: Mapping[str, Any],
        claimed: Claimed,
        nodes: Mapping[str, OwnerNode],
        earlier: EarlierLook | None,
    ) -> dict[str, Any]:
        """A row of `audit.tables.ORPHAN_LEDGERS`, as if every guard had passed, not yet numbered."""
        owner = nodes.get(claimed.owner_path)
        topic = None if claimed.topic_path is None else nodes.get(claimed.topic_path)
        shared = self._shared(row, claimed.extent)
        status, reason, first_seen_ms = self._status(row, shared["age_ms"], claimed, earlier)
        return {
            **shared,
            "standing": status.value,
            "reason": reason,
            "row": None,
            "kind": claimed.kind.value,
            "cause": cause_of(row["ledger_id"], claimed, owner, topic).value,
            "tenant": claimed.owner.tenant,
            "namespace": claimed.owner.namespace,
            "topic": claimed.owner.topic,
            "managed_ledger": claimed.managed_ledger,
            "cursor_name": claimed.cursor_name,
            "schema_id": claimed.schema_id,
            "first_seen_ms": first_seen_ms,
            "czxid": row["czxid"],
            "mzxid": row["mzxid"],
            "evidence": evidence_of(row["ledger_id"], claimed, owner, topic),
        }

    def _shared(self, row: Mapping[str, Any], extent: Extent | None) -> dict[str, Any]:
        ctime_ms = row["ctime_ms"]
        return {
            "ledger_id": row["ledger_id"],
            "state": None if extent is None else extent.state.name,
            "length_bytes": None if extent is None else extent.length_bytes,
            "age_ms": None if ctime_ms is None else max(0, self.as_of_ms - ctime_ms),
            "ctime_ms": ctime_ms,
            "version": row["version"],
            "metadata": row["metadata"],
        }

    def _status(
        self, row: Mapping[str, Any], age_ms: int | None, claimed: Claimed, earlier: EarlierLook | None
    ) -> tuple[OrphanStatus, str, int | None]:
        protected = self.protection.reason(claimed.kind, claimed.owner_path)
        if protected is not None:
            return OrphanStatus.UNPROVEN, protected, None
        if age_ms is None or row["version"] is None:
            return OrphanStatus.UNPROVEN, "its age or its version is not known", None
        changed = earlier is not None and not _same(row, earlier)
        carried = None if earlier is None or changed else earlier.first_seen_ms
        first_seen_ms = self.as_of_ms if carried is None else carried
        if age_ms < self.policy.min_age_ms:
            reason = f"it is {_hours(age_ms)} old, and must be {_hours(self.policy.min_age_ms)} old"
            return OrphanStatus.TOO_YOUNG, reason, first_seen_ms
        if changed:
            return OrphanStatus.CHANGED, "it was written to or made again since the earlier audit", first_seen_ms
        seen_for_ms = self.as_of_ms - first_seen_ms
        if carried is None or seen_for_ms < self.policy.look_window_ms:
            return OrphanStatus.FIRST_LOOK, self._first_look(carried, seen_for_ms), first_seen_ms
        reason = f"unreferenced and unchanged in dumps that are {_hours(seen_for_ms)} apart, and {_hours(age_ms)} old"
        return OrphanStatus.DELETABLE, reason, first_seen_ms

    def _first_look(self, carried: int | None, seen_for_ms: int) -> str:
        wanted = f"a second look {_hours(self.policy.look_window_ms)} after the first is needed"
        if carried is None:
            return f"no earlier audit saw it unreferenced; {wanted}"
        return f"it was first seen unreferenced {_hours(seen_for_ms)} before; {wanted}"


def _same(row: Mapping[str, Any], earlier: EarlierLook) -> bool:
    return (row["version"], row["czxid"], row["mzxid"]) == (earlier.version, earlier.czxid, earlier.mzxid)


def _hours(milliseconds: int) -> str:
    return f"{milliseconds / HOUR_MS:.1f} hours"
