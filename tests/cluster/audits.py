"""A chain of audits of a cluster, each with a listing, a dump and the previous audit."""

import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from pulsar_sidecar.adapters.metadata_stores import open_store
from pulsar_sidecar.bootstrap.audit_review import apply_audit
from pulsar_sidecar.bootstrap.audit_run import perform_audit
from pulsar_sidecar.bootstrap.audit_sources import export_listing, export_offload_listing, take_dump
from pulsar_sidecar.features.audit.requests import (
    AppliedPlan,
    ApplyRequest,
    AuditPolicy,
    AuditRequest,
    DumpRequest,
    ListingRequest,
    OffloadListingRequest,
)
from pulsar_sidecar.features.audit.results.tables import OrphanStatus
from pulsar_sidecar.local_cluster.state import ClusterAddresses
from pulsar_sidecar.model.clocks import SystemClock

from tests.made_audits import MadeAudit

IMPATIENT = AuditPolicy(
    min_age_ms=3_000,
    look_window_ms=2_000,
    max_share=1.0,
    max_shrink=1.0,
    allow_young=True,
    bookkeeper_exclusive=True,
)
"""Policy with seconds instead of days and hours, that accepts leaks as a large share of a small cluster."""

_TICK = "/tick-of-tests"


class Look(MadeAudit):
    """An audit of a chain."""

    @property
    def deletable(self) -> frozenset[int]:
        return frozenset(
            ledger_id for ledger_id, standing in self.standings.items() if standing == OrphanStatus.DELETABLE.value
        )


@dataclass
class Audits:
    """A chain of audits in a directory."""

    addresses: ClusterAddresses
    directory: Path
    policy: AuditPolicy = IMPATIENT
    offload_locations: tuple[str, ...] = ()
    looks: list[Look] = field(default_factory=list)

    def look(self) -> Look:
        """Run another audit, with the listing first as documented."""
        here = self.directory / f"look-{len(self.looks)}"
        here.mkdir(parents=True)
        listing, dump, audit = here / "listing", here / "dump", here / "audit"
        store = self.addresses.metadata_store_url
        _let_time_pass(store)
        export_listing(ListingRequest(listing, store, with_metadata=True), _quiet)
        offloaded = here / "offloaded" if self.offload_locations else None
        if offloaded is not None:
            export_offload_listing(
                OffloadListingRequest(offloaded, self.offload_locations, metadata_store_url=store), _quiet
            )
        take_dump(DumpRequest(store, dump), _quiet)
        previous = self.looks[-1].directory if self.looks else None
        request = AuditRequest(dump, listing, audit, previous, self.policy, offloaded=offloaded)
        made = perform_audit(request, _quiet)
        look = Look(audit)
        refused = [guard.explanation for guard in look.summary.guards if not guard.passed]
        assert made.exit_code in (0, 2), refused
        self.looks.append(look)
        return look

    def wait_between_looks(self) -> None:
        """Wait until the next audit may make all ledgers deletable that the last one found unreferenced."""
        time.sleep(max(self.policy.look_window_ms, self.policy.min_age_ms) / 1000)

    def apply(self, look: Look) -> AppliedPlan:
        """Approve and send an audit's plan."""
        assert look.summary.plan is not None
        request = ApplyRequest(
            look.directory,
            execute=True,
            plan_sha256=look.summary.plan.sha256,
            metadata_store_url=self.addresses.metadata_store_url,
            broker_service_url=self.addresses.broker_service_url,
        )
        return apply_audit(request, lambda done, total: None)


def _let_time_pass(metadata_store_url: str) -> None:
    """Write a node, because an audit's time is that of the newest write, and a quiet cluster may have none."""
    with closing(open_store(metadata_store_url, SystemClock())) as store:
        store.delete(_TICK)
        store.create(_TICK, b"")


def demand_unused(look: Look, deletable: frozenset[int], in_use: Mapping[int, set[str]]) -> None:
    """Demand that no ledger that a broker names is deletable, and that every ledger has an owner."""
    wrong = {ledger_id: in_use[ledger_id] for ledger_id in deletable & in_use.keys()}
    assert not wrong, f"{look.directory} would delete what is in use: {wrong}"
    assert not look.unattributed, look.unattributed


def _quiet(text: str) -> None:
    """Ignore a progress report."""
