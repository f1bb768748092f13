"""Recordings at whose end each alert fires, and the operator's text."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.alerts.rules import RULES

QUIET = 3
"""Each recording begins so long before anything happens."""
HOUR, DAY = 60, 24 * 60
CLUSTER = {"cluster": "local"}
HOLES, INDEXED, LEFT_OVER, UNREADABLE = (
    f"persistent://public/recorded/{name}" for name in ("holes", "indexed", "left-over", "unreadable")
)
OF_HOLES = {**CLUSTER, "topic": HOLES, "subscription": "with holes"}
OF_INDEXED = {**CLUSTER, "topic": INDEXED, "subscription": "s"}
OF_AUDITS = ', instance="audits:9100", job="node"} _x5'


@dataclass(frozen=True)
class Case:
    """An alert that fires at the end of a recording, held for some minutes.

    Attributes:
        labels: besides its name and its severity.
        description: where it has figures or labels in it.
        scaled: factors, by metric.
        until: so many minutes of the recording are played.
        changed: parts of lines, and what they are changed to: what no act has brought about.
        added: one more line.
    """

    alert: str
    recording: str
    held: int
    summary: str
    labels: Mapping[str, str] = field(default_factory=lambda: CLUSTER)
    description: str | None = None
    scaled: Mapping[str, float] = field(default_factory=dict)
    until: int | None = None
    changed: Mapping[str, str] = field(default_factory=dict)
    added: str | None = None

    def expected(self) -> dict[str, object]:
        rule = RULES[self.alert]
        annotations = rule["annotations"]
        return {
            "exp_labels": {**rule["labels"], **self.labels},
            "exp_annotations": {
                "runbook_url": annotations["runbook_url"],
                "summary": self.summary,
                "description": self.description or annotations["description"],
            },
        }


CASES = [
    # The sidecars themselves.
    Case(
        "PulsarSidecarDown",
        "sidecars-end",
        10,
        "The sidecar at sidecar-1:8750 does not respond.",
        {"job": "pulsar-sidecar", "instance": "sidecar-1:8750"},
        until=9,
    ),
    Case("PulsarSidecarsFewerThanExpected", "sidecars-end", 20, "1 sidecar of local is left.", until=9),
    Case("PulsarSidecarsMissing", "sidecars-end", 5, "No sidecar responds.", {}),
    Case(
        "PulsarSidecarNotReady",
        "brokers-hang",
        6,
        "The sidecar at sidecar-15:8750 is not ready.",
        {**CLUSTER, "instance": "sidecar-15:8750"},
        'Ask it for the reason with "curl http://sidecar-15:8750/readyz".',
        until=15,
    ),
    Case(
        "PulsarSidecarVersionsDiffer",
        "sidecars-end",
        7 * HOUR,
        "2 versions of the sidecar run on local.",
        until=QUIET,
        changed={
            'instance="sidecar-2:8750", job="pulsar-sidecar", version="0.1.0"': 'instance="sidecar-2:8750", '
            'job="pulsar-sidecar", version="0.0.9"'
        },
    ),
    Case(
        "PulsarSidecarFilesNearlyExhausted",
        "pause",
        15,
        "The sidecar at sidecar-4:8750 has opened 91% of its files.",
        {"instance": "sidecar-4:8750"},
        scaled={"process_open_fds": 350},
    ),
    # Deletion.
    Case("PulsarLedgerDeletionLags", "lag", 3 * HOUR, "The oldest record of local has waited for 3h 0m 15s."),
    Case("PulsarLedgerDeletionPaused", "pause", 2 * HOUR, "Ledger deletion of local has been paused for an hour."),
    Case(
        "PulsarLedgerDeletionRetries",
        "dead-letters",
        20,
        "100% of the decisions of local are to try again later.",
    ),
    Case(
        "PulsarLedgerDeletionsFail",
        "refused-deletions",
        5,
        "1.14k deletions (ledger) of local failed.",
        {**CLUSTER, "ledger_type": "ledger"},
    ),
    Case("PulsarLedgerDeletionDeadLettersGrow", "dead-letters", 5, "10 records of local were given up within an hour."),
    Case(
        "PulsarLedgerDeletionDeadLettersWait", "dead-letters", 2 * DAY, "10 dead letters of local wait for an operator."
    ),
    Case(
        "PulsarTopicDeletionStuck",
        "stuck-deletion",
        10,
        "1 topic deletions of local do not continue by themselves.",
    ),
    Case(
        "PulsarTopicDeletionDoesNotEnd",
        "stuck-deletion",
        2 * HOUR,
        "A topic deletion of local has run for 2h 0m 15s.",
        scaled={"pulsar_ledger_deletion_topic_deletions_stuck": 0},
    ),
    # The watch.
    Case(
        "PulsarLedgersLeak",
        "brake",
        5,
        "72 ledgers of local leaked: topic-deletion.",
        {**CLUSTER, "cause": "topic-deletion"},
        "Within an hour they lost their last reference, and no broker deleted them. See which with "
        '"pulsar-sidecar ledger-deletion watch leaks --cause topic-deletion".',
    ),
    Case("PulsarLeakedLedgersStay", "brake", 2 * DAY, "72 leaked ledgers of local were not handed to the deletion."),
    Case("PulsarLedgerWatchBraked", "brake", 1, "The brake of the watch for leaked ledgers of local is engaged."),
    Case(
        "PulsarLedgersNotWatched",
        "watch-is-off",
        HOUR,
        "No sidecar watches the ledgers of local, although two-phase deletion is on.",
    ),
    Case(
        "PulsarLedgerWatchLags",
        "walks-in-turns",
        15,
        "The watch for leaked ledgers of local is 1m 17s behind.",
        scaled={"pulsar_ledger_deletion_watch_lag_seconds": 1e3},
    ),
    Case(
        "PulsarLedgerWatchWalksInTurns",
        "walks-in-turns",
        2 * HOUR,
        "The watch for leaked ledgers of local receives no events, and repeatedly reads everything.",
    ),
    Case(
        "PulsarLedgerWatchNodesUnreadable",
        "walks-in-turns",
        2 * HOUR,
        "2 nodes of local cannot be read or understood.",
    ),
    # Cancelling.
    Case("PulsarCancellationsNotLed", "no-leader", 10, "No sidecar of local reconciles its cancellations."),
    Case(
        "PulsarCancellationsNotReconciled",
        "brokers-hang",
        10,
        "Cancellations of local have not been reconciled for 15 minutes.",
        added='pulsar_delayed_message_cancellations_reconcile_failed_total{cluster="local"} 0+0x4 0+1x22',
    ),
    Case(
        "PulsarCancellationsUnknown",
        "cancellations",
        5,
        "12 cancellations of local ended as UNKNOWN within an hour.",
    ),
    Case(
        "PulsarCancellationsLost",
        "cancellations",
        5,
        "48 cancellations of local came too late: acknowledgement_lost.",
        {**CLUSTER, "cause": "acknowledgement_lost"},
    ),
    Case(
        "PulsarCancellationsDoNotFit", "cancellations", 5, "10 cancellations of local did not fit into their cursors."
    ),
    # Watched topics.
    Case(
        "PulsarDispatchPausedOnAckState",
        "watched-topics",
        10,
        f"Dispatch to with holes of {HOLES} is paused.",
        OF_HOLES,
    ),
    Case(
        "PulsarAckStateNearlyFull",
        "watched-topics",
        20,
        f"The acknowledgement state of with holes of {HOLES} is nearly full.",
        OF_HOLES,
        "150% of the ranges that fit. Beyond the limit acknowledgements are lost when the broker stops, or dispatch "
        "pauses.",
    ),
    Case(
        "PulsarAckStateOutgrowsEntry",
        "watched-topics",
        10,
        f"The acknowledgement state of with holes of {HOLES} outgrows an entry.",
        OF_HOLES,
        "150% of an entry of the cursor's ledger. Larger ones break the broker's connections to bookies, and what the "
        "metadata store does not take either hangs the broker.",
        changed={"ack_state_ranges": "ack_state_entry_bytes", "ack_state_max_ranges": "ack_state_max_entry_bytes"},
    ),
    Case(
        "PulsarAcknowledgementsNotStored",
        "watched-topics",
        15,
        f"1800 acknowledged entries of {HOLES} would be delivered again.",
        OF_HOLES,
        "For ten minutes the broker has not stored them. If it died, they would be delivered to with holes again.",
        scaled={"pulsar_subscription_ack_state_unstored_entries": 200},
    ),
    Case(
        "PulsarDelayedIndexNotRecoverable",
        "watched-topics",
        10,
        f"The next load of {INDEXED} does not recover the buckets of s.",
        OF_INDEXED,
    ),
    Case(
        "PulsarDelayedIndexUnreadable", "watched-topics", 20, f"1 buckets of s of {INDEXED} cannot be read.", OF_INDEXED
    ),
    Case(
        "PulsarDelayedIndexManyBuckets",
        "watched-topics",
        20,
        f"s of {INDEXED} has 1200 buckets.",
        OF_INDEXED,
        scaled={"pulsar_sidecar_delayed_message_index_bucket_total": 600},
    ),
    Case(
        "PulsarDeduplicationCursorLeftOver",
        "watched-topics",
        20,
        f"Deduplication of {LEFT_OVER} is off, and its cursor still exists.",
        {**CLUSTER, "topic": LEFT_OVER},
    ),
    Case(
        "PulsarDeduplicationLoadSlow",
        "watched-topics",
        20,
        f"A load of {LEFT_OVER} would replay for 3m 41s.",
        {**CLUSTER, "topic": LEFT_OVER},
        until=QUIET,
        scaled={"pulsar_sidecar_deduplication_load_replay_seconds": 1e5},
        changed={f'"{UNREADABLE}"}} 0.00221934+0x5': f'"{UNREADABLE}"}} 0+0x5'},
    ),
    Case(
        "PulsarDeduplicationSnapshotLate",
        "watched-topics",
        2 * HOUR,
        f"The snapshot of {LEFT_OVER} is 2h 0m 16s old.",
        {**CLUSTER, "topic": LEFT_OVER},
    ),
    Case(
        "PulsarDeduplicationPinsStorage",
        "watched-topics",
        2 * HOUR,
        f"The deduplication cursor of {LEFT_OVER} retains 34.16GiB.",
        {**CLUSTER, "topic": LEFT_OVER},
        scaled={"pulsar_sidecar_deduplication_pinned_alone_bytes": 1e7},
    ),
    Case(
        "PulsarDeduplicationProducersNearlyFull",
        "watched-topics",
        20,
        f"The snapshot of {LEFT_OVER} holds nearly as many producers as fit.",
        {**CLUSTER, "topic": LEFT_OVER},
        "90% of brokerDeduplicationMaxNumberOfProducers. What does not fit is forgotten by the next load, so that "
        "copies are stored again: use fewer producer names, or raise it.",
        changed={f'"{LEFT_OVER}"}} 0+0x15': f'"{LEFT_OVER}"}} 0+0x7 9000+0x7'},
    ),
    Case(
        "PulsarDeduplicationUnreadable",
        "watched-topics",
        HOUR,
        f"The state of deduplication of {UNREADABLE} cannot be read.",
        {**CLUSTER, "topic": UNREADABLE},
        f'See why with "pulsar-sidecar deduplication show {UNREADABLE}".',
    ),
    # Audits.
    Case(
        "PulsarLedgerAuditOverdue",
        "audits",
        3 * DAY,
        "No ledger audit of local for more than two days, or none at all.",
        description="The last audit is as of 3d 0h 15m 48s ago; 1s stands for no audit, or none whose metrics arrived. "
        "Orphan ledgers go unnoticed, and none becomes deletable, since that takes two audits. Check the job that runs "
        "deploy/spark/nightly.sh.",
    ),
    Case(
        "PulsarLedgerAuditStopped",
        "audits",
        1,
        "The guard share-of-ledgers of the ledger audit of local failed.",
        {**CLUSTER, "guard": "share-of-ledgers"},
        changed={f'guard="share-of-bytes"{OF_AUDITS} 1+0x5 0': f'guard="share-of-bytes"{OF_AUDITS} 1+0x5 1'},
    ),
    Case(
        "PulsarReferencedLedgersMissing",
        "audits",
        1,
        "1 references of local are to ledgers that do not exist.",
    ),
    Case(
        "PulsarOrphanLedgersWaiting",
        "audits",
        4 * DAY,
        "3 orphan ledgers of local are waiting for approval of their deletion.",
        until=10,
    ),
    Case(
        "PulsarTopicsEndangerLedgers",
        "audits",
        1,
        "1 topics of local may delete other topics' ledgers.",
    ),
]
