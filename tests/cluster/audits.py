"""A chain of audits of one cluster: a listing, a dump and an audit against the one before, each time."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kazoo.client import KazooClient
from pulsar_sidecar.audit.requests import (
    AppliedPlan,
    ApplyRequest,
    AuditPolicy,
    AuditRequest,
    DumpRequest,
    ListingRequest,
)
from pulsar_sidecar.audit.results.tables import OrphanStatus
from pulsar_sidecar.bootstrap.audit_review import apply_audit
from pulsar_sidecar.bootstrap.audit_run import make_audit
from pulsar_sidecar.bootstrap.audit_sources import make_dump, make_listing
from pulsar_sidecar.local_cluster.state import ClusterAddresses

from tests.made_audits import MadeAudit

IMPATIENT = AuditPolicy(
    min_age_ms=3_000,
    look_window_ms=2_000,
    max_share=1.0,
    max_shrink=1.0,
    allow_young=True,
    bookkeeper_exclusive=True,
)
"""Days and hours of the defaults, cut down to seconds; a test's leaks are a large share of its cluster."""

_TICK = "/tick-of-tests"


class Look(MadeAudit):
    """One audit of a chain."""

    @property
    def deletable(self) -> frozenset[int]:
        return frozenset(
            ledger_id for ledger_id, standing in self.standings.items() if standing == OrphanStatus.DELETABLE.value
        )


@dataclass
class Audits:
    """Makes them in a directory, one after the other."""

    addresses: ClusterAddresses
    directory: Path
    policy: AuditPolicy = IMPATIENT
    looks: list[Look] = field(default_factory=list)

    def look(self) -> Look:
        """One more audit; the listing comes first, as the documentation asks."""
        here = self.directory / f"look-{len(self.looks)}"
        here.mkdir(parents=True)
        listing, dump, audit = here / "listing", here / "dump", here / "audit"
        store = self.addresses.metadata_store_url
        _let_time_pass(store)
        make_listing(ListingRequest("metadata", listing, store, with_metadata=True), _quiet)
        make_dump(DumpRequest(f"zk://{store.removeprefix('zk:')}", dump), _quiet)
        previous = self.looks[-1].directory if self.looks else None
        made = make_audit(AuditRequest(dump, listing, audit, previous, self.policy), _quiet)
        look = Look(audit)
        refused = [guard.explanation for guard in look.summary.guards if not guard.passed]
        assert made.exit_code in (0, 2), refused
        self.looks.append(look)
        return look

    def wait_between_looks(self) -> None:
        """Until the next look may call all deletable that the last one saw unreferenced."""
        time.sleep(max(self.policy.look_window_ms, self.policy.min_age_ms) / 1000)

    def apply(self, look: Look) -> AppliedPlan:
        """Approve and send a look's plan."""
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
    """Write something: an audit's time is that of the newest write, and a quiet cluster may have none."""
    kazoo = KazooClient(metadata_store_url.removeprefix("zk:"))
    kazoo.start()
    kazoo.ensure_path(_TICK)
    kazoo.set(_TICK, b"")
    kazoo.stop()
    kazoo.close()


def demand_unused(look: Look, deletable: frozenset[int], in_use: Mapping[int, set[str]]) -> None:
    """No ledger that a broker names is deletable, and nothing is without an owner."""
    wrong = {ledger_id: in_use[ledger_id] for ledger_id in deletable & in_use.keys()}
    assert not wrong, f"{look.directory} would delete what is in use: {wrong}"
    assert not look.unattributed, look.unattributed


def _quiet(text: str) -> None:
    """Progress is for people."""
