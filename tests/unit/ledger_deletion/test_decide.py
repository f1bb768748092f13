"""The decision: a table of every kind against everything that may be true of it."""

from dataclasses import replace

import pytest
from pulsar_sidecar.features.ledger_deletion.second_phase.decide import (
    LINKED_AFTER_CLOSING,
    UNKNOWN_END,
    Delete,
    DeleteOffloaded,
    Keep,
    OutcomeReason,
    Postpone,
    Referenced,
    ReferencesUnknown,
    RetryLater,
    UndecodableLedger,
    Unreferenced,
    Verdict,
    decide,
    matches,
)
from pulsar_sidecar.model.ids import LedgerId, NodeVersion
from pulsar_sidecar.model.ledgers import LedgerComponent, LedgerState
from pulsar_sidecar.model.lookups import Unreadable
from pulsar_sidecar.model.metadata import Birth
from pulsar_sidecar.model.names import CursorName
from pulsar_sidecar.ownership.claims import (
    BucketClaim,
    Claim,
    ClaimReading,
    CompactedClaim,
    CursorClaim,
    DataClaim,
    ForeignLedger,
    SchemaClaim,
    UnknownClaim,
)

from tests.unit.ledger_deletion.cases import (
    BUCKET_KEY,
    CLAIMS,
    CONTEXT,
    CREATED_MS,
    GUARD,
    LEDGER_ID,
    NOW_MS,
    OTHER,
    POLICY,
    SUBSCRIPTION,
    TOPIC,
    facts,
    offload_record,
    record,
    stored,
    view,
)

COMPONENTS = list(LedgerComponent)
IN_USE = Referenced(GUARD)
LISTED = OutcomeReason.OWNER_STILL_USES, "broker-1:8080 has the topic loaded and lists the ledger"


def reason_of(verdict: Verdict) -> OutcomeReason | None:
    return getattr(verdict, "reason", None)


# --- the table -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("component", COMPONENTS)
def test_an_old_closed_unreferenced_ledger_goes(component: LedgerComponent) -> None:
    verdict = decide(facts(record(component)), POLICY)
    assert verdict == Delete(stored(CLAIMS[component]), (GUARD,))


@pytest.mark.parametrize("until_ms", [None, NOW_MS - 1, NOW_MS])
def test_a_protection_that_has_ended_protects_nothing(until_ms: int | None) -> None:
    assert isinstance(decide(replace(facts(), protected_until_ms=until_ms), POLICY), Delete)


@pytest.mark.parametrize(
    ("until_ms", "end", "after_ms"),
    [
        (NOW_MS + 1, "2023-11-14T22:13:20+00:00", 1),
        (NOW_MS + 90_000, "2023-11-14T22:14:50+00:00", 90_000),
        (UNKNOWN_END, "an operator ends the protection", None),
        (UNKNOWN_END + 1, "an operator ends the protection", None),
    ],
)
def test_undeleted_ledger_waits_until_its_protection_ends(until_ms: int, end: str, after_ms: int | None) -> None:
    verdict = decide(replace(facts(), protected_until_ms=until_ms), POLICY)
    detail = f"undelete restored it; it is protected until {end}"
    assert verdict == RetryLater(OutcomeReason.BROUGHT_BACK, detail, after_ms)


@pytest.mark.parametrize("claimed", COMPONENTS)
@pytest.mark.parametrize("component", COMPONENTS)
def test_a_ledger_of_another_kind_stays(component: LedgerComponent, claimed: LedgerComponent) -> None:
    verdict = decide(facts(record(component), ledger=stored(CLAIMS[claimed])), POLICY)
    assert isinstance(verdict, Delete) == (component is claimed)
    assert component is claimed or reason_of(verdict) is OutcomeReason.MISMATCH


@pytest.mark.parametrize(
    ("component", "claim"),
    [
        (LedgerComponent.MANAGED_LEDGER, DataClaim(OTHER.managed_ledger_name)),
        (LedgerComponent.MANAGED_CURSOR, CursorClaim(OTHER.managed_ledger_name, SUBSCRIPTION)),
        (LedgerComponent.MANAGED_CURSOR, CursorClaim(TOPIC.managed_ledger_name, CursorName("other"))),
        (LedgerComponent.SCHEMA_STORAGE, SchemaClaim(OTHER.schema_id)),
        (LedgerComponent.COMPACTED_LEDGER, CompactedClaim(OTHER)),
        (LedgerComponent.DELAYED_INDEX_BUCKET, BucketClaim(OTHER, SUBSCRIPTION, BUCKET_KEY)),
        (LedgerComponent.DELAYED_INDEX_BUCKET, BucketClaim(TOPIC, "other", BUCKET_KEY)),
    ],
)
def test_a_ledger_of_another_owner_stays(component: LedgerComponent, claim: Claim) -> None:
    assert not matches(record(component), claim)
    verdict = decide(facts(record(component), ledger=stored(claim)), POLICY)
    assert verdict == Keep(OutcomeReason.MISMATCH, f"its metadata names {claim}")


def test_a_cursor_may_be_named_as_the_store_or_as_people_spell_it() -> None:
    claim = CLAIMS[LedgerComponent.MANAGED_CURSOR]
    about = record(LedgerComponent.MANAGED_CURSOR)
    assert matches(about, claim)
    assert matches(replace(about, cursor_name=SUBSCRIPTION), claim)
    assert not matches(replace(about, cursor_name=None), claim)
    bucket = record(LedgerComponent.DELAYED_INDEX_BUCKET)
    assert matches(replace(bucket, cursor_name=None), CLAIMS[LedgerComponent.DELAYED_INDEX_BUCKET])


def test_a_schemas_number_is_not_compared_but_its_text_is() -> None:
    about, claim = record(LedgerComponent.SCHEMA_STORAGE), CLAIMS[LedgerComponent.SCHEMA_STORAGE]
    assert matches(replace(about, schema_id=5), claim)
    assert matches(replace(about, schema_id=str(TOPIC.schema_id)), claim)
    assert not matches(replace(about, schema_id="public/default/others"), claim)


@pytest.mark.parametrize("component", COMPONENTS)
@pytest.mark.parametrize(
    ("claim", "verdict"),
    [
        (ForeignLedger(), Keep(OutcomeReason.NOT_PULSARS, "its metadata does not name Pulsar as its application")),
        (UnknownClaim("new kind"), Keep(OutcomeReason.UNKNOWN_COMPONENT, "new kind")),
    ],
)
def test_a_ledger_of_an_unknown_owner_stays(component: LedgerComponent, claim: ClaimReading, verdict: Keep) -> None:
    assert decide(facts(record(component), ledger=stored(claim)), POLICY) == verdict


@pytest.mark.parametrize("component", COMPONENTS)
@pytest.mark.parametrize("state", [LedgerState.OPEN, LedgerState.IN_RECOVERY])
def test_open_ledger_must_be_old(component: LedgerComponent, state: LedgerState) -> None:
    for age_ms, goes in ((0, False), (3_599_999, False), (3_600_000, True)):
        ledger = stored(CLAIMS[component], state=state, age_ms=age_ms)
        verdict = decide(facts(record(component), ledger=ledger), POLICY)
        assert isinstance(verdict, Delete) == goes
        if not goes:
            detail = f"it is {state.name} and {age_ms} ms old; its minimum age is 3600000 ms"
            assert verdict == RetryLater(OutcomeReason.TOO_YOUNG, detail, 3_600_000 - age_ms)


@pytest.mark.parametrize("component", COMPONENTS)
def test_ledger_linked_after_closing_must_be_old(component: LedgerComponent) -> None:
    linked_last = isinstance(CLAIMS[component], LINKED_AFTER_CLOSING)
    for age_ms, old_enough in ((0, False), (1_799_999, False), (1_800_000, True)):
        ledger = stored(CLAIMS[component], age_ms=age_ms)
        verdict = decide(facts(record(component), ledger=ledger), POLICY)
        assert isinstance(verdict, Delete) == (old_enough or not linked_last)


@pytest.mark.parametrize("component", COMPONENTS)
@pytest.mark.parametrize("state", LedgerState)
@pytest.mark.parametrize(
    ("dereferenced_ms", "is_signed", "waits"),
    [(NOW_MS, True, False), (0, True, False), (NOW_MS, False, True), (None, True, True), (None, False, True)],
)
def test_a_young_ledger_may_go_once_this_cluster_saw_its_last_reference_vanish(
    component: LedgerComponent, state: LedgerState, dereferenced_ms: int | None, is_signed: bool, waits: bool
) -> None:
    ledger = stored(CLAIMS[component], state=state, age_ms=0)
    given = facts(record(component, dereferenced_ms=dereferenced_ms), ledger=ledger)
    verdict = decide(replace(given, from_own_list=is_signed), POLICY)
    has_to_be_old = state is not LedgerState.CLOSED or isinstance(CLAIMS[component], LINKED_AFTER_CLOSING)
    assert reason_of(verdict) is (OutcomeReason.TOO_YOUNG if waits and has_to_be_old else None)
    assert isinstance(verdict, Delete) != (waits and has_to_be_old)


@pytest.mark.parametrize(
    "changed",
    [
        {"references": IN_USE},
        {"references": ReferencesUnknown("?")},
        {"owner": view(ledgers={LEDGER_ID: 1})},
        {"protected_until_ms": NOW_MS + 1},
        {"ledger": stored(replication_locked=True)},
        {"ledger": stored(CLAIMS[LedgerComponent.MANAGED_CURSOR])},
    ],
)
def test_vanished_reference_alone_does_not_permit_deletion(changed: dict[str, object]) -> None:
    given = replace(facts(record(dereferenced_ms=NOW_MS)), from_own_list=True)
    assert isinstance(decide(given, POLICY), Delete)
    assert not isinstance(decide(replace(given, **changed), POLICY), Delete)


def test_a_clock_that_went_back_makes_young_not_old() -> None:
    ledger = stored(state=LedgerState.OPEN, age_ms=-5_000)
    verdict = decide(facts(ledger=ledger), POLICY)
    assert verdict == RetryLater(OutcomeReason.TOO_YOUNG, verdict.detail, 3_600_000)


@pytest.mark.parametrize("component", COMPONENTS)
@pytest.mark.parametrize("running", [False, True])
@pytest.mark.parametrize(
    ("used", "found"),
    [
        ({"ledgers": frozenset({LEDGER_ID})}, LISTED),
        ({"cursor_ledgers": frozenset({LEDGER_ID})}, LISTED),
        ({"schema_ledgers": frozenset({LEDGER_ID})}, LISTED),
        ({"compacted_ledger": LEDGER_ID}, LISTED),
        (
            {"ledgers_being_read": frozenset({LEDGER_ID})},
            (OutcomeReason.STILL_BEING_READ, "a cursor on broker-1:8080 is reading the ledger"),
        ),
    ],
)
def test_ledger_used_by_the_live_owner_is_retried(
    component: LedgerComponent, running: bool, used: dict[str, object], found: tuple[OutcomeReason, str]
) -> None:
    verdict = decide(facts(record(component), owner=view(**used), operation_running=running), POLICY)
    assert verdict == (Postpone if running else RetryLater)(*found)


def test_owner_using_other_ledgers_permits_deletion() -> None:
    others = frozenset({LedgerId(8), LedgerId(9)})
    owner = view(ledgers=others, cursor_ledgers=others, schema_ledgers=others, compacted_ledger=LedgerId(8))
    assert isinstance(decide(facts(owner=owner), POLICY), Delete)


def test_a_bucket_waits_for_the_tracker_that_may_hold_it() -> None:
    about = record(LedgerComponent.DELAYED_INDEX_BUCKET)
    loaded = view(cursors=frozenset({SUBSCRIPTION}))
    found = OutcomeReason.OWNER_STILL_USES, "broker-1:8080 has the subscription's delayed index loaded"
    assert decide(facts(about, owner=loaded), POLICY) == RetryLater(*found)
    assert decide(facts(about, owner=loaded, operation_running=True), POLICY) == Postpone(*found)
    assert isinstance(decide(facts(about, owner=view(cursors=frozenset({"x"}))), POLICY), Delete)


def test_a_ledger_under_repair_waits() -> None:
    verdict = decide(facts(ledger=stored(replication_locked=True)), POLICY)
    assert verdict == RetryLater(OutcomeReason.REPLICATION_RUNNING, "its copies are being repaired")


def test_missing_ledger_is_already_gone() -> None:
    verdict = decide(facts(ledger=None, references=ReferencesUnknown("nobody to ask")), POLICY)
    assert verdict == Keep(OutcomeReason.ALREADY_GONE, "there is no such ledger")


def test_unreadable_facts_are_retried() -> None:
    undecodable = UndecodableLedger("format 4")
    assert decide(facts(ledger=undecodable), POLICY) == RetryLater(OutcomeReason.METADATA_UNREADABLE, "format 4")
    for about in (record(), offload_record()):
        unknown = facts(about, references=ReferencesUnknown("no bookie answers"))
        assert decide(unknown, POLICY) == RetryLater(OutcomeReason.REFERENCES_UNKNOWN, "no bookie answers")


@pytest.mark.parametrize("about", [record(instance_id="there"), offload_record(instance_id="there")])
def test_a_record_of_another_cluster_is_final(about: object) -> None:
    verdict = decide(facts(about), POLICY)
    assert verdict == Keep(OutcomeReason.OTHER_CLUSTER, "the record is for BookKeeper instance there, this is here")


def test_another_ledger_with_the_same_id_stays() -> None:
    detail = f"it was created at {CREATED_MS} ms, the record expects {CREATED_MS - 1} ms"
    assert decide(facts(record(created_ms=CREATED_MS - 1)), POLICY) == Keep(OutcomeReason.OTHER_LEDGER, detail)
    assert isinstance(decide(facts(record(created_ms=CREATED_MS)), POLICY), Delete)


def test_without_times_the_order_of_creation_tells_ledgers_apart() -> None:
    timeless = replace(stored(), birth=Birth(None, 7))
    for mark, reason in ((record(created_order=7), None), (record(created_order=8), OutcomeReason.OTHER_LEDGER)):
        verdict = decide(facts(mark, ledger=timeless), POLICY)
        assert isinstance(verdict, Delete) if reason is None else reason_of(verdict) is reason
    by_time = decide(facts(record(created_ms=CREATED_MS), ledger=timeless), POLICY)
    assert reason_of(by_time) is OutcomeReason.OTHER_LEDGER


# --- offloaded copies ------------------------------------------------------------------------------------------------


def test_an_unreferenced_copy_goes_whatever_bookkeeper_has() -> None:
    for ledger in (None, stored(), stored(ForeignLedger())):
        assert decide(facts(offload_record(), ledger=ledger), POLICY) == DeleteOffloaded(CONTEXT, (GUARD,))


def test_a_copy_without_its_place_is_malformed() -> None:
    verdict = decide(facts(replace(offload_record(), offload_context=None)), POLICY)
    assert verdict == Keep(OutcomeReason.MALFORMED, "the record has no offloadContext")


def test_a_copy_that_is_used_stays() -> None:
    assert reason_of(decide(facts(offload_record(), references=IN_USE), POLICY)) is OutcomeReason.MAY_STILL_SHRINK
    owner = view(ledgers=frozenset({LEDGER_ID}))
    assert reason_of(decide(facts(offload_record(), owner=owner), POLICY)) is OutcomeReason.OWNER_STILL_USES


@pytest.mark.parametrize("about", [record(), offload_record()])
def test_owner_listing_the_other_copy_permits_deletion(about: object) -> None:
    owner = view(ledgers=frozenset({LEDGER_ID}), ledgers_being_read=frozenset({LEDGER_ID}))
    other_copy = Unreferenced((GUARD,), other_copy_listed=True)
    verdict = decide(facts(about, references=other_copy, owner=owner), POLICY)
    assert isinstance(verdict, (Delete, DeleteOffloaded))


@pytest.mark.parametrize("about", [record(), offload_record()])
@pytest.mark.parametrize(
    ("whole", "verdict", "detail"),
    [
        (None, Postpone, "the sidecar has not read yet"),
        (False, RetryLater, "missing or incomplete: this one may be the last"),
        (Unreadable("S3 is away"), RetryLater, "cannot be read: S3 is away"),
    ],
)
def test_a_copy_beside_the_only_listed_one_stays_until_that_was_read_and_is_whole(
    about: object, whole: object, verdict: type[object], detail: str
) -> None:
    listed = Unreferenced((GUARD,), other_copy_listed=True, only_copy=CONTEXT)
    found = decide(facts(about, references=listed, only_copy_whole=whole), POLICY)
    assert isinstance(found, verdict)
    assert found.reason is OutcomeReason.MAY_BE_LAST_COPY
    assert detail in found.detail
    assert isinstance(decide(facts(about, references=listed, only_copy_whole=True), POLICY), (Delete, DeleteOffloaded))


# --- in use: final, or an early look? --------------------------------------------------------------------------------

BOTH = pytest.mark.parametrize("make", [record, offload_record])
REFERENCED = "/owner at version 5 references it"


@BOTH
def test_in_use_waits_while_the_operation_runs(make: object) -> None:
    about = make(operation_id="op", unreferenced=True, marked_version=1)
    verdict = decide(facts(about, references=IN_USE, operation_running=True), POLICY)
    assert verdict == Postpone(OutcomeReason.OPERATION_RUNNING, REFERENCED)


@BOTH
def test_in_use_settles_after_the_operation(make: object) -> None:
    about = make(operation_id="op")
    first = decide(facts(about, references=IN_USE), POLICY)
    assert first == RetryLater(OutcomeReason.MAY_STILL_SHRINK, REFERENCED, 600_000)
    last = decide(facts(about, references=IN_USE, in_use_since_ms=NOW_MS - 600_000), POLICY)
    assert last == Keep(OutcomeReason.IN_USE, f"{REFERENCED}, and still did after the waiting time")


@BOTH
def test_in_use_is_final_where_nothing_shrinks(make: object) -> None:
    verdict = decide(facts(make(unreferenced=True), references=IN_USE), POLICY)
    assert verdict == Keep(OutcomeReason.IN_USE, REFERENCED)


@pytest.mark.parametrize("age_ms", [0, 10**12])
@pytest.mark.parametrize(("marked", "final"), [(4, True), (5, False), (6, False)])
def test_a_marked_version_is_a_fence_and_time_is_not(marked: int, final: bool, age_ms: int) -> None:
    about = record(marked_version=NodeVersion(marked))
    verdict = decide(facts(about, references=IN_USE, in_use_since_ms=NOW_MS - age_ms), POLICY)
    detail = f"{REFERENCED}, it was marked at version {marked}"
    expected = Keep(OutcomeReason.IN_USE, detail) if final else RetryLater(OutcomeReason.MAY_STILL_SHRINK, detail)
    assert verdict == expected


@pytest.mark.parametrize(
    ("since_ms", "delay_ms"),
    [
        (None, 600_000),
        (0, 600_000),
        (1, 599_999),
        (599_999, 1),
        (600_000, None),
        (-5_000, 600_000),
        (-(10**15), 600_000),
    ],
)
def test_a_plain_record_is_believed_after_the_in_use_wait(since_ms: int | None, delay_ms: int | None) -> None:
    since = None if since_ms is None else NOW_MS - since_ms
    verdict = decide(facts(references=IN_USE, in_use_since_ms=since), POLICY)
    if delay_ms is None:
        assert isinstance(verdict, Keep)
    else:
        assert isinstance(verdict, RetryLater)
        assert verdict.delay_ms == delay_ms
