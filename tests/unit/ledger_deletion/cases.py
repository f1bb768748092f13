"""Facts to judge by, built from one plain case: a closed old ledger that nothing references."""

from dataclasses import replace

from pulsar_sidecar.features.ledger_deletion.record import Mark, PendingDeleteLedgerInfo
from pulsar_sidecar.features.ledger_deletion.second_phase.decide import (
    DeletionPolicy,
    Facts,
    References,
    StoredLedger,
    UndecodableLedger,
    Unreferenced,
)
from pulsar_sidecar.model.ids import BookieId, EntryId, LedgerId, NodeVersion, Position
from pulsar_sidecar.model.ledgers import (
    LedgerComponent,
    LedgerMetadata,
    LedgerSegment,
    LedgerState,
    LedgerType,
    OffloadContext,
)
from pulsar_sidecar.model.lookups import Unreadable
from pulsar_sidecar.model.metadata import Birth, Guard
from pulsar_sidecar.model.names import encode_cursor, parse_topic_name
from pulsar_sidecar.model.topic_stats import TopicInternalStats
from pulsar_sidecar.ownership.claims import (
    BucketClaim,
    Claim,
    ClaimReading,
    CompactedClaim,
    CursorClaim,
    DataClaim,
    SchemaClaim,
)

TOPIC = parse_topic_name("persistent://public/default/orders")
OTHER = parse_topic_name("persistent://public/default/others")
SUBSCRIPTION = "a/b"
LEDGER_ID = LedgerId(7)
NOW_MS = 1_700_000_000_000
CREATED_MS = NOW_MS - 10**9
BUCKET_KEY = "#pulsar.internal.delayed.bucket_1_2"
GUARD = Guard("/owner", NodeVersion(5))
NOT_REFERENCED = Unreferenced((GUARD,))
CONTEXT = OffloadContext(1, 2, "aws-s3", {"bucket": "b"})
POLICY = DeletionPolicy(
    open_min_age_ms=3_600_000, unlinked_min_age_ms=1_800_000, in_use_wait_ms=600_000, bookkeeper_exclusive=True
)

PLAIN: dict[str, object] = {
    "topicName": "persistent://public/default/orders",
    "ledgerComponent": "MANAGED_LEDGER",
    "ledgerType": "LEDGER",
    "ledgerId": 7,
}
CURSOR = PLAIN | {"ledgerComponent": "MANAGED_CURSOR", "cursorName": "sub"}
"""Records as brokers write them."""

CLAIMS: dict[LedgerComponent, Claim] = {
    LedgerComponent.MANAGED_LEDGER: DataClaim(TOPIC.managed_ledger_name),
    LedgerComponent.MANAGED_CURSOR: CursorClaim(TOPIC.managed_ledger_name, encode_cursor(SUBSCRIPTION)),
    LedgerComponent.SCHEMA_STORAGE: SchemaClaim(TOPIC.schema_id),
    LedgerComponent.COMPACTED_LEDGER: CompactedClaim(TOPIC),
    LedgerComponent.DELAYED_INDEX_BUCKET: BucketClaim(TOPIC, SUBSCRIPTION, BUCKET_KEY),
}
"""Custom metadata of a ledger of each kind whose record is true."""


def record(component: LedgerComponent = LedgerComponent.MANAGED_LEDGER, **mark: object) -> PendingDeleteLedgerInfo:
    return PendingDeleteLedgerInfo(
        TOPIC,
        component,
        LedgerType.LEDGER,
        LEDGER_ID,
        cursor_name=SUBSCRIPTION,
        mark=Mark(**mark),
    )


def offload_record(**mark: object) -> PendingDeleteLedgerInfo:
    return replace(record(**mark), ledger_type=LedgerType.OFFLOAD_LEDGER, offload_context=CONTEXT)


def metadata(state: LedgerState = LedgerState.CLOSED) -> LedgerMetadata:
    closed = state is LedgerState.CLOSED
    segment = LedgerSegment(EntryId(0), (BookieId("bookie-1:3181"),))
    return LedgerMetadata(state, 1, 1, 1, 100 if closed else 0, EntryId(9 if closed else -1), (segment,))


def stored(
    claim: ClaimReading = CLAIMS[LedgerComponent.MANAGED_LEDGER],
    *,
    state: LedgerState = LedgerState.CLOSED,
    age_ms: int = NOW_MS - CREATED_MS,
    replication_locked: bool = False,
) -> StoredLedger:
    return StoredLedger(
        "/ledgers/00/0000/L0007",
        b"raw",
        NodeVersion(3),
        NOW_MS - age_ms,
        Birth(NOW_MS - age_ms, None),
        metadata(state),
        claim,
        replication_locked=replication_locked,
    )


def view(**used: object) -> TopicInternalStats:
    empty: dict[str, object] = {
        "broker": "broker-1:8080",
        "cursors": {},
        "last_confirmed": Position(LedgerId(-1), EntryId(-1)),
        "ledgers": {},
        "cursor_ledgers": frozenset(),
        "schema_ledgers": frozenset(),
        "compacted_ledger": None,
        "ledgers_being_read": frozenset(),
    }
    return TopicInternalStats(**(empty | used))


def facts(
    about: PendingDeleteLedgerInfo | None = None,
    *,
    ledger: StoredLedger | UndecodableLedger | str | None = "matching",
    references: References = NOT_REFERENCED,
    owner: TopicInternalStats | None = None,
    operation_running: bool = False,
    in_use_since_ms: int | None = None,
    now_ms: int = NOW_MS,
    only_copy_whole: bool | Unreadable | None = None,
) -> Facts:
    about = about or record()
    return Facts(
        record=about,
        instance_id="here",
        ledger=stored(CLAIMS[about.component]) if isinstance(ledger, str) else ledger,
        references=references,
        owner=owner,
        operation_running=operation_running,
        in_use_since_ms=in_use_since_ms,
        now_ms=now_ms,
        only_copy_whole=only_copy_whole,
    )
