"""Properties of every decision, for generated facts."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from pulsar_sidecar.features.ledger_deletion.second_phase.decide import (
    LINKED_AFTER_CLOSING,
    Delete,
    DeleteOffloaded,
    Facts,
    Keep,
    OutcomeReason,
    Postpone,
    Referenced,
    ReferencesUnknown,
    RetryLater,
    StoredLedger,
    UndecodableLedger,
    Unreferenced,
    decide,
    matches,
)
from pulsar_sidecar.model.ids import LedgerId, NodeVersion
from pulsar_sidecar.model.ledgers import LedgerComponent, LedgerState, LedgerType
from pulsar_sidecar.model.lookups import Unreadable
from pulsar_sidecar.model.metadata import Guard
from pulsar_sidecar.model.names import ManagedLedgerName, SchemaId
from pulsar_sidecar.ownership.claims import DataClaim, ForeignLedger, SchemaClaim, UnknownClaim

from tests.unit.ledger_deletion.cases import (
    CLAIMS,
    CONTEXT,
    CREATED_MS,
    LEDGER_ID,
    NOW_MS,
    POLICY,
    SUBSCRIPTION,
    facts,
    offload_record,
    record,
    stored,
    view,
)

ledger_ids = st.sampled_from([LEDGER_ID, LedgerId(8), LedgerId(9)])
claims = st.sampled_from(
    [
        *CLAIMS.values(),
        ForeignLedger(),
        UnknownClaim("?"),
        DataClaim(ManagedLedgerName("x/y/persistent/z")),
        SchemaClaim(SchemaId("x/y/z")),
    ]
)
states = st.sampled_from(LedgerState)
ages = st.sampled_from([-1, 0, 1_799_999, 1_800_000, 3_599_999, 3_600_000, 10**10])
ledgers = st.builds(
    lambda claim, state, age_ms, locked: stored(claim, state=state, age_ms=age_ms, replication_locked=locked),
    claims,
    states,
    ages,
    st.booleans(),
)
undecodable = st.just(UndecodableLedger("?"))
versions = st.integers(0, 9).map(NodeVersion)
guards = st.builds(Guard, st.just("/owner"), versions)
references = st.one_of(
    st.builds(Referenced, guards),
    st.builds(Unreferenced, st.just(()) | st.tuples(guards), st.booleans(), st.none() | st.just(CONTEXT)),
    st.just(ReferencesUnknown("?")),
)
owners = st.none() | st.builds(
    view,
    cursors=st.frozensets(st.sampled_from([SUBSCRIPTION, "x"])),
    ledgers=st.frozensets(ledger_ids),
    cursor_ledgers=st.frozensets(ledger_ids),
    schema_ledgers=st.frozensets(ledger_ids),
    compacted_ledger=st.none() | ledger_ids,
    ledgers_being_read=st.frozensets(ledger_ids),
)
marks = st.fixed_dictionaries(
    {},
    optional={
        "operation_id": st.just("op"),
        "marked_version": versions,
        "unreferenced": st.booleans(),
        "instance_id": st.sampled_from(["here", "there"]),
        "created_ms": st.sampled_from([CREATED_MS, NOW_MS]),
    },
)
abouts = st.builds(
    lambda component, mark: record(component, **mark), st.sampled_from(LedgerComponent), marks
) | st.builds(lambda mark: offload_record(**mark), marks)


@st.composite
def any_facts(draw: st.DrawFn) -> Facts:
    about = draw(abouts)
    return facts(
        about,
        ledger=draw(st.none() | ledgers | undecodable | st.just("matching")),
        references=draw(references),
        owner=draw(owners),
        operation_running=about.mark.operation_id is not None and draw(st.booleans()),
        in_use_since_ms=draw(st.none() | st.sampled_from([0, NOW_MS - 600_000, NOW_MS - 1, NOW_MS, NOW_MS + 10**9])),
        only_copy_whole=draw(st.sampled_from([True, False, None, Unreadable("?")])),
    )


@given(any_facts())
def test_delete_means_everything_that_the_invariant_demands(case: Facts) -> None:
    verdict = decide(case, POLICY)
    if not isinstance(verdict, Delete):
        return
    ledger, mark = case.ledger, case.record.mark
    assert isinstance(ledger, StoredLedger)
    assert verdict.ledger is ledger
    assert case.record.ledger_type is LedgerType.LEDGER
    assert matches(case.record, ledger.claim)
    assert mark.instance_id in (None, case.instance_id)
    assert mark.created_ms in (None, ledger.created_ms)
    assert isinstance(case.references, Unreferenced)
    assert verdict.guards == case.references.read
    assert case.references.only_copy is None or case.only_copy_whole is True
    assert not ledger.replication_locked
    age_ms = case.now_ms - ledger.created_ms
    assert ledger.metadata.state is LedgerState.CLOSED or age_ms >= POLICY.open_min_age_ms
    assert not isinstance(ledger.claim, LINKED_AFTER_CLOSING) or age_ms >= POLICY.unlinked_min_age_ms
    if case.owner is not None and not case.references.other_copy_listed:
        owner = case.owner
        assert LEDGER_ID not in owner.ledgers | owner.cursor_ledgers | owner.schema_ledgers | owner.ledgers_being_read
        assert owner.compacted_ledger != LEDGER_ID


@given(any_facts())
def test_an_offloaded_copy_goes_only_unreferenced_and_by_its_record(case: Facts) -> None:
    verdict = decide(case, POLICY)
    if isinstance(verdict, DeleteOffloaded):
        assert case.record.ledger_type is LedgerType.OFFLOAD_LEDGER
        assert verdict.context == case.record.offload_context
        assert isinstance(case.references, Unreferenced)
        assert case.references.only_copy is None or case.only_copy_whole is True
        assert case.record.mark.instance_id in (None, case.instance_id)


@given(any_facts(), st.builds(Referenced, guards), owners)
def test_additional_reference_never_permits_deletion(case: Facts, referenced: Referenced, owner: object) -> None:
    for worse in (
        replace(case, references=referenced),
        replace(case, references=ReferencesUnknown("?")),
        replace(case, owner=view(ledgers=frozenset({LEDGER_ID})), references=without_other_copy(case)),
    ):
        verdict = decide(worse, POLICY)
        assert not isinstance(verdict, (Delete, DeleteOffloaded))


def without_other_copy(case: Facts) -> object:
    found = case.references
    return replace(found, other_copy_listed=False) if isinstance(found, Unreferenced) else found


@given(any_facts(), owners)
def test_a_live_owner_never_makes_deletable(case: Facts, owner: object) -> None:
    unowned = decide(replace(case, owner=None), POLICY)
    owned = decide(replace(case, owner=owner), POLICY)
    assert isinstance(unowned, (Delete, DeleteOffloaded)) or not isinstance(owned, (Delete, DeleteOffloaded))


@given(any_facts())
def test_in_use_is_final_only_where_no_marker_can_still_shrink(case: Facts) -> None:
    verdict = decide(case, POLICY)
    if not isinstance(verdict, Keep) or verdict.reason is not OutcomeReason.IN_USE:
        return
    mark = case.record.mark
    assert isinstance(case.references, Referenced)
    assert not case.operation_running
    waited = case.in_use_since_ms is not None and case.now_ms - case.in_use_since_ms >= POLICY.in_use_wait_ms
    fenced = mark.marked_version is not None and case.references.by.version > mark.marked_version
    assert mark.unreferenced or fenced or (mark.marked_version is None and waited)


@given(any_facts())
def test_every_wait_is_bounded(case: Facts) -> None:
    verdict = decide(case, POLICY)
    if isinstance(verdict, RetryLater) and verdict.delay_ms is not None:
        assert 0 < verdict.delay_ms <= 3_600_000
    if isinstance(verdict, Postpone):
        assert case.operation_running or case.only_copy_whole is None
