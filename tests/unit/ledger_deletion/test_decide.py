"""The decision: a table of every kind against everything that may be true of it."""

from dataclasses import replace

import pytest
from pulsar_sidecar.features.ledger_deletion.second_phase.decide import (
    LINKED_AFTER_CLOSING,
    UNKNOWN_END,
    Delete,
    DeleteOffloaded,
    Facts,
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
from pulsar_sidecar.model.names import CursorName, SchemaId
from pulsar_sidecar.ownership.claims import (
    BucketClaim,
    Claim,
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
        (UNKNOWN_END, "an operator ends it", None),
        (UNKNOWN_END + 1, "an operator ends it", None),
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
    assert reason_of(decide(facts(record(component), ledger=stored(claim)), POLICY)) is OutcomeReason.MISMATCH


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
    ("claim", "reason"),
    [(ForeignLedger(), OutcomeReason.NOT_PULSARS), (UnknownClaim("new kind"), OutcomeReason.UNKNOWN_COMPONENT)],
)
def test_a_ledger_of_an_unknown_owner_stays(component: LedgerComponent, claim: object, reason: OutcomeReason) -> None:
    verdict = decide(facts(record(component), ledger=stored(claim)), POLICY)
    assert isinstance(verdict, Keep)
    assert verdict.reason is reason


@pytest.mark.parametrize("component", COMPONENTS)
@pytest.mark.parametrize("state", [LedgerState.OPEN, LedgerState.IN_RECOVERY])
def test_open_ledger_must_be_old(component: LedgerComponent, state: LedgerState) -> None:
    for age_ms, goes in ((0, False), (3_599_999, False), (3_600_000, True)):
        ledger = stored(CLAIMS[component], state=state, age_ms=age_ms)
        verdict = decide(facts(record(component), ledger=ledger), POLICY)
        assert isinstance(verdict, Delete) == goes
        if not goes:
            assert verdict == RetryLater(OutcomeReason.TOO_YOUNG, verdict.detail, 3_600_000 - age_ms)


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
    ("used", "reason"),
    [
        ({"ledgers": frozenset({LEDGER_ID})}, OutcomeReason.OWNER_STILL_USES),
        ({"cursor_ledgers": frozenset({LEDGER_ID})}, OutcomeReason.OWNER_STILL_USES),
        ({"schema_ledgers": frozenset({LEDGER_ID})}, OutcomeReason.OWNER_STILL_USES),
        ({"compacted_ledger": LEDGER_ID}, OutcomeReason.OWNER_STILL_USES),
        ({"ledgers_being_read": frozenset({LEDGER_ID})}, OutcomeReason.STILL_BEING_READ),
    ],
)
def test_ledger_used_by_the_live_owner_is_retried(
    component: LedgerComponent, running: bool, used: dict[str, object], reason: OutcomeReason
) -> None:
    verdict = decide(facts(record(component), owner=view(**used), operation_running=running), POLICY)
    assert isinstance(verdict, Postpone if running else RetryLater)
    assert verdict.reason is reason


def test_owner_using_other_ledgers_permits_deletion() -> None:
    others = frozenset({LedgerId(8), LedgerId(9)})
    owner = view(ledgers=others, cursor_ledgers=others, schema_ledgers=others, compacted_ledger=LedgerId(8))
    assert isinstance(decide(facts(owner=owner), POLICY), Delete)


def test_a_bucket_waits_for_the_tracker_that_may_hold_it() -> None:
    about = record(LedgerComponent.DELAYED_INDEX_BUCKET)
    loaded = view(cursors=frozenset({SUBSCRIPTION}))
    assert reason_of(decide(facts(about, owner=loaded), POLICY)) is OutcomeReason.OWNER_STILL_USES
    assert isinstance(decide(facts(about, owner=view(cursors=frozenset({"x"}))), POLICY), Delete)


def test_a_ledger_under_repair_waits() -> None:
    verdict = decide(facts(ledger=stored(replication_locked=True)), POLICY)
    assert isinstance(verdict, RetryLater)
    assert verdict.reason is OutcomeReason.REPLICATION_RUNNING


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
    assert isinstance(verdict, Keep)
    assert verdict.reason is OutcomeReason.OTHER_CLUSTER


def test_another_ledger_with_the_same_id_stays() -> None:
    assert reason_of(decide(facts(record(created_ms=CREATED_MS - 1)), POLICY)) is OutcomeReason.OTHER_LEDGER
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
    about = replace(offload_record(), offload_context=None)
    assert reason_of(decide(facts(about), POLICY)) is OutcomeReason.MALFORMED


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


@BOTH
def test_in_use_waits_while_the_operation_runs(make: object) -> None:
    about = make(operation_id="op", unreferenced=True, marked_version=1)
    verdict = decide(facts(about, references=IN_USE, operation_running=True), POLICY)
    assert isinstance(verdict, Postpone)
    assert verdict.reason is OutcomeReason.OPERATION_RUNNING


@BOTH
def test_in_use_settles_after_the_operation(make: object) -> None:
    about = make(operation_id="op")
    first = decide(facts(about, references=IN_USE), POLICY)
    assert first == RetryLater(OutcomeReason.MAY_STILL_SHRINK, "/owner at version 5 references it", 600_000)
    last = decide(facts(about, references=IN_USE, in_use_since_ms=NOW_MS - 600_000), POLICY)
    assert isinstance(last, Keep)
    assert last.reason is OutcomeReason.IN_USE


@BOTH
def test_in_use_is_final_where_nothing_shrinks(make: object) -> None:
    verdict = decide(facts(make(unreferenced=True), references=IN_USE), POLICY)
    assert isinstance(verdict, Keep)
    assert verdict.reason is OutcomeReason.IN_USE


@pytest.mark.parametrize("age_ms", [0, 10**12])
@pytest.mark.parametrize(("marked", "final"), [(4, True), (5, False), (6, False)])
def test_a_marked_version_is_a_fence_and_time_is_not(marked: int, final: bool, age_ms: int) -> None:
    about = record(marked_version=NodeVersion(marked))
    verdict = decide(facts(about, references=IN_USE, in_use_since_ms=NOW_MS - age_ms), POLICY)
    assert isinstance(verdict, Keep) == final
    assert reason_of(verdict) is (OutcomeReason.IN_USE if final else OutcomeReason.MAY_STILL_SHRINK)


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


# --- the details -----------------------------------------------------------------------------------------------------

YOUNG = stored(state=LedgerState.OPEN, age_ms=1)
BUCKET = stored(CLAIMS[LedgerComponent.DELAYED_INDEX_BUCKET])
TRACKER = view(cursors=frozenset({SUBSCRIPTION}))


@pytest.mark.parametrize(
    ("case", "detail"),
    [
        (facts(record(instance_id="there")), "the record is about there, this is here"),
        (
            facts(record(created_ms=5)),
            f"it was created at {CREATED_MS} ms, the record means 5 ms",
        ),
        (facts(ledger=stored(ForeignLedger())), "its metadata does not name Pulsar as its application"),
        (facts(ledger=stored(UnknownClaim("odd"))), "odd"),
        (facts(ledger=stored(SchemaClaim(SchemaId("a/b/c")))), "its metadata names SchemaClaim(schema_id='a/b/c')"),
        (facts(replace(offload_record(), offload_context=None)), "the record has no offloadContext"),
        (facts(references=Referenced(GUARD), operation_running=True), "/owner at version 5 references it"),
        (facts(record(unreferenced=True), references=Referenced(GUARD)), "/owner at version 5 references it"),
        (
            facts(record(marked_version=5), references=Referenced(GUARD)),
            "/owner at version 5 references it, it was marked at version 5",
        ),
        (
            facts(record(marked_version=4), references=Referenced(GUARD)),
            "/owner at version 5 references it, it was marked at version 4",
        ),
        (
            facts(references=Referenced(GUARD), in_use_since_ms=0),
            "/owner at version 5 references it, and still did after the waiting time",
        ),
        (
            facts(owner=view(ledgers=frozenset({LEDGER_ID}))),
            "broker-1:8080 has the topic loaded and lists the ledger",
        ),
        (
            facts(owner=view(ledgers_being_read=frozenset({LEDGER_ID}))),
            "a cursor on broker-1:8080 is reading the ledger",
        ),
        (
            facts(record(LedgerComponent.DELAYED_INDEX_BUCKET), ledger=BUCKET, owner=TRACKER),
            "broker-1:8080 has the subscription's delayed index loaded",
        ),
        (
            facts(record(LedgerComponent.DELAYED_INDEX_BUCKET), ledger=BUCKET, owner=TRACKER, operation_running=True),
            "broker-1:8080 has the subscription's delayed index loaded",
        ),
        (facts(ledger=YOUNG), f"it is OPEN and 1 ms old; its minimum age is {POLICY.open_min_age_ms} ms"),
        (facts(ledger=stored(replication_locked=True)), "its copies are being repaired"),
    ],
)
def test_the_detail_names_what_was_found(case: Facts, detail: str) -> None:
    verdict = decide(case, POLICY)
    assert isinstance(verdict, Keep | RetryLater | Postpone)
    assert verdict.detail == detail
