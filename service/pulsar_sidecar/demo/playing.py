"""The whole demonstration, from an empty directory to its last lines."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from pulsar_sidecar.audit.reference_scan import ReferenceScan
from pulsar_sidecar.demo.auditing import AuditAct, AuditStory
from pulsar_sidecar.demo.cancelling import CancelAct, CancelStory
from pulsar_sidecar.demo.commands import Commands
from pulsar_sidecar.demo.stage import Stage
from pulsar_sidecar.demo.story import Act, Drain, Story
from pulsar_sidecar.local_cluster.addresses import ClusterAddresses
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.metadata import MetadataStore

TOPICS = 100


@dataclass(frozen=True, slots=True)
class Eyes:
    """The demo's own look at the cluster, independent of the sidecar.

    ``count`` takes a census of the whole cluster, ``client`` is a ``pulsar.Client``, ``shared`` the
    ``pulsar.ConsumerType`` of consumers that share a subscription.
    """

    store: MetadataStore
    count: Callable[[], ReferenceScan]
    client: Any
    shared: Any


OpenEyes = Callable[[ClusterAddresses], AbstractContextManager[Eyes]]


@dataclass(frozen=True, slots=True)
class Report:
    """What the demonstration measured, and where to look next."""

    plain: Act
    two_phase: Act
    drain: Drain
    audit: AuditAct
    cancelling: CancelAct
    seconds: float
    sidecar_url: str
    web_service_url: str

    @property
    def kept_its_promise(self) -> bool:
        """Nothing leaked through the sidecar, nothing is left to do, and what leaked before was found and deleted."""
        act = self.two_phase
        return (
            self.audit.kept_its_promise
            and self.cancelling.kept_its_promise
            and not (act.orphans or act.dangling or act.topics_left or self.drain.pending)
        )


def play(stage: Stage, open_eyes: OpenEyes, clock: Clock, say: Callable[[str], None], topics: int) -> Report:
    """Set the stage, play all acts, leave everything running."""
    started = clock.monotonic_seconds()
    say("1. A real cluster: ZooKeeper, two bookies, two brokers")
    addresses = stage.set_up()
    with open_eyes(addresses) as eyes:
        story = Story(stage, eyes.store, eyes.count, eyes.client, addresses.web_service_urls, clock, say, topics)
        say("2. Without the sidecar")
        plain = story.without_sidecar()
        say(f"   {len(plain.orphans)} ledgers leaked, {len(plain.dangling)} references dangle, and no broker mends it")
        say("3. With the sidecar")
        sidecar = stage.start_sidecar(addresses)
        two_phase, drain = story.with_sidecar(sidecar.url)
        say("4. The audit: what leaked in act 2 is found, and deleted by the sidecar")
        commands = Commands(stage.audits, say)
        audit = AuditStory(commands, addresses, clock, say, story.existing).play(plain.orphans, plain.dangling)
        say("5. Delayed messages: half of them are cancelled, and the brokers are killed")
        cancelling = CancelStory(stage, eyes.client, eyes.shared, sidecar.url, clock, say).play()
    seconds = clock.monotonic_seconds() - started
    return Report(plain, two_phase, drain, audit, cancelling, seconds, sidecar.url, addresses.web_service_urls[0])


def lines(report: Report) -> list[str]:
    """The last lines, each with figures measured in this run."""
    plain, two_phase, drain = report.plain, report.two_phase, report.drain
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
        f"  the sidecar recorded {drain.recorded} ledgers before the brokers were asked and finished {drain.finished}: "
        f"{drain.highest_pending} were pending at most,",
        f"  and {drain.pending} pending were left {drain.seconds:.1f} s after the last deletion was accepted",
        *_audit_lines(report.audit),
        *_cancelling_lines(report.cancelling),
        f"  the whole story took {report.seconds:.0f} s",
        "",
        "  Look around (everything is still running):",
        f"    status    curl {report.sidecar_url}/admin/v2/ledger-deletion/status",
        f"    metrics   curl {report.sidecar_url}/metrics",
        f"    a broker  curl {report.web_service_url}/admin/v2/brokers/health",
        f"    the CLI   pulsar-sidecar --admin-url {report.sidecar_url} ledger-deletion status",
        f"    the audit {report.audit.report}",
        "  and end it with: make demo-down",
    ]


def _cancelling_lines(act: CancelAct) -> list[str]:
    proofs = ", ".join(f"{count} {proof}" for proof, count in act.proofs.items())
    return [
        f"  of {act.sent} delayed messages {act.cancelled} were cancelled ({proofs}) before both brokers were killed: "
        f"{act.delivered} of these were",
        f"  delivered; of the others {act.lost} were lost and {act.repeated} delivered twice",
    ]


def _audit_lines(audit: AuditAct) -> list[str]:
    spark = {
        None: "NOT COMPARED WITH THE SPARK JOB: install PySpark (pip install 'pulsar-sidecar[spark]')",
        True: "the Spark job found the same plan and the same rows of all four tables",
        False: "the Spark job found OTHER rows",
    }
    end = audit.at_end
    return [
        f"  the audit's plan had {audit.planned} ledgers, {audit.leaked_in_plan} of the {audit.leaked} that leaked; "
        f"applied, {audit.left} of them are left;",
        f"  {spark[audit.spark_agrees]};",
        f"  a last audit {'is clean' if end.clean else 'is NOT CLEAN'}: {end}",
    ]
