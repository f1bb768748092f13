"""The whole demo, from an empty directory to its last lines."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from pulsar_sidecar.demo.auditing import AuditResult, AuditScenario, Commands
from pulsar_sidecar.demo.cancelling import CancellationResult, cancel_half
from pulsar_sidecar.demo.deleting import DeletionResult, DeletionScenario, Drain, WatchedDeletion
from pulsar_sidecar.demo.environment import SETTLE_SECONDS, ClusterInspector, DemoEnvironment
from pulsar_sidecar.local_cluster.cluster import STORE_NAMES
from pulsar_sidecar.local_cluster.state import ClusterAddresses
from pulsar_sidecar.reports.formatting import format_count


@dataclass(frozen=True, slots=True)
class DemoReport:
    """Measurements of the demo, and addresses for a further investigation."""

    plain: DeletionResult
    two_phase: DeletionResult
    drain: Drain
    watched: WatchedDeletion
    audit: AuditResult
    cancelling: CancellationResult
    seconds: float
    sidecar_url: str
    web_service_url: str

    @property
    def succeeded(self) -> bool:
        """True if the sidecar leaked nothing, has no work left, and found and deleted all earlier leaks."""
        leaked = self.two_phase.orphans or self.two_phase.dangling or self.two_phase.topics_left
        kept = self.audit.succeeded and self.cancelling.succeeded
        return kept and not (leaked or self.drain.pending or self.watched.left)

    def lines(self) -> list[str]:
        """Return the last lines, with figures measured in this run."""
        plain, two_phase, drain, watched = self.plain, self.two_phase, self.drain, self.watched
        rows = [
            ("", "without", "with the sidecar"),
            ("topics deleted while both brokers were killed", str(plain.topics), str(two_phase.topics)),
            ("their ledgers, cursors' included", str(plain.ledgers), str(two_phase.ledgers)),
            ("deletions accepted at the first try", str(plain.accepted_at_first), str(two_phase.accepted_at_first)),
            ("ledgers leaked (exist, referenced by nothing)", str(len(plain.orphans)), str(len(two_phase.orphans))),
            ("references to ledgers that do not exist", str(len(plain.dangling)), str(len(two_phase.dangling))),
            ("topics left over", str(plain.topics_left), str(two_phase.topics_left)),
        ]
        table = [f"  {name:<48}{without:>10}{with_it:>20}" for name, without, with_it in rows]
        return [
            "",
            *table,
            "",
            f"  the sidecar had {format_count(drain.recorded, 'record')} confirmed before the brokers were asked, and "
            f"finished {drain.finished} (killed brokers repeat some);",
            f"  {drain.pending} were pending {drain.seconds:.1f} s after the last deletion was accepted",
            f"  of {format_count(watched.leaked, 'ledger')} that leaked while the sidecar only watched {watched.left} "
            f"were left {watched.seconds:.0f} s later (settle time {SETTLE_SECONDS} s, by default 200)",
            *_audit_lines(self.audit),
            *_cancelling_lines(self.cancelling),
            f"  all steps took {self.seconds:.0f} s",
            "",
            "  Look around (everything is still running):",
            f"    status    curl {self.sidecar_url}/admin/v2/ledger-deletion/status",
            f"    metrics   curl {self.sidecar_url}/metrics",
            f"    a broker  curl {self.web_service_url}/admin/v2/brokers/health",
            f"    the CLI   pulsar-sidecar --admin-url {self.sidecar_url} ledger-deletion status",
            f"    the audit {self.audit.report}",
            "  and stop it with: make demo-down",
            "",
            f"  All of it in a browser: {self.sidecar_url}/ui/",
        ]


def run(
    environment: DemoEnvironment,
    open_inspector: Callable[[ClusterAddresses], AbstractContextManager[ClusterInspector]],
    topics: int,
) -> DemoReport:
    """Start everything, run all steps, and leave everything running."""
    clock, report = environment.clock, environment.report
    started = clock.monotonic_seconds()
    report(f"1. A real cluster: {STORE_NAMES[environment.metadata_store]}, two bookies, two brokers")
    addresses = environment.start()
    with open_inspector(addresses) as inspector:
        deleting = DeletionScenario(environment, inspector, addresses.web_service_urls[0], topics)
        report("2. Without the sidecar")
        plain = deleting.without_sidecar()
        report(
            f"   {format_count(len(plain.orphans), 'ledger')} leaked, "
            f"{format_count(len(plain.dangling), 'dangling reference')}, and no broker repairs it"
        )
        report("3. With the sidecar")
        url = environment.start_sidecar(addresses)
        two_phase, drain = deleting.with_sidecar(url)
        report("4. Step 2 once more while the sidecar watches the metadata store; no deletion is asked of it")
        watched = deleting.watched(url)
        report("5. The audit: it finds what leaked in step 2, and the sidecar deletes it")
        commands = Commands(environment.audits, report)
        audit = AuditScenario(commands, addresses, clock, report, deleting.existing).run(plain.orphans, plain.dangling)
        report("6. Delayed messages: half of them are cancelled, and the brokers are killed")
        cancelling = cancel_half(environment, inspector, url)
    seconds = clock.monotonic_seconds() - started
    return DemoReport(plain, two_phase, drain, watched, audit, cancelling, seconds, url, addresses.web_service_urls[0])


def _cancelling_lines(found: CancellationResult) -> list[str]:
    statuses = ", ".join(f"{count} {status}" for status, count in found.statuses.items())
    return [
        f"  of {format_count(found.sent, 'delayed message')} {found.cancelled} were cancelled ({statuses}) before "
        f"both brokers were killed: {found.delivered} of these were",
        f"  delivered; of the others {found.lost} were lost and {found.repeated} delivered twice",
    ]


def _audit_lines(audit: AuditResult) -> list[str]:
    same = "the same plan and the same rows of all four tables"
    end = audit.at_end
    return [
        f"  the audit's plan had {format_count(audit.planned, 'ledger')}, {audit.leaked_in_plan} of the "
        f"{audit.leaked} that leaked; applied, {audit.left} of them are left;",
        f"  the Spark job found {same if audit.spark_agrees else 'OTHER rows'};",
        f"  a last audit {'is clean' if end.clean else 'is NOT CLEAN'}: {end}",
    ]
