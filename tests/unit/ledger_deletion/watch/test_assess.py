"""Owner of a ledger and permission to delete it: the second phase's checks, before anything is appended."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
from pulsar_sidecar.features.ledger_deletion.record import SIGNING_KEY, is_signed
from pulsar_sidecar.features.ledger_deletion.second_phase.decide import (
    Delete,
    Keep,
    OutcomeReason,
    RetryLater,
    SendToDeadLetters,
    Verdict,
)
from pulsar_sidecar.features.ledger_deletion.steps import Steps
from pulsar_sidecar.features.ledger_deletion.watch.assess import Assessor, Candidate, NotDeletable
from pulsar_sidecar.features.ledger_deletion.watch.leaks import LeakStore
from pulsar_sidecar.features.ledger_deletion.watch.reference_counts import VanishedReference
from pulsar_sidecar.features.ledger_deletion.watch.results import LeakCause
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.ledgers import LedgerComponent
from pulsar_sidecar.model.names import encode_cursor
from pulsar_sidecar.ownership.claims import owner_path
from pulsar_sidecar.ownership.paths import cursor_path, instance_id_path, ledger_path, managed_ledger_path, schema_path
from pulsar_sidecar.ownership.protections import UnreadableNode, unreadable_node

from tests.fakes.bookkeeper import data_custom_metadata, schema_custom_metadata
from tests.fakes.pulsar import INSTANCE_ID, FakePulsar, TopicPlan
from tests.unit.ledger_deletion.replay_settings import MAY_BE_SHARED, TOPIC
from tests.unit.ledger_deletion.sidecars import Sidecar

POLICIES, LOCAL_POLICIES = "/admin/policies", "/admin/local-policies"


@dataclass
class Asking:
    """An assessor over a fake Pulsar with one topic."""

    fake_pulsar: FakePulsar = field(default_factory=FakePulsar)

    def __post_init__(self) -> None:
        fake_pulsar = self.fake_pulsar
        plan = TopicPlan(schema_versions=1, buckets=1, compacted=True, offloaded=(0,))
        self.topic = fake_pulsar.topic(TOPIC, plan)
        fake_pulsar.store.put(f"{POLICIES}/public/default")
        self.leaks = LeakStore(fake_pulsar.store, Steps())
        gatherer = Sidecar(fake_pulsar).gatherer
        self.assessor = Assessor(fake_pulsar.store, gatherer, MAY_BE_SHARED, self.leaks, "/ledgers")

    @property
    def list_path(self) -> str:
        return managed_ledger_path(self.topic.managed_ledger_name)

    @property
    def cursor(self) -> str:
        return cursor_path(self.topic.managed_ledger_name, encode_cursor("sub"))

    def candidate(self, ledger_id: LedgerId, dereferenced_ms: int | None = 5) -> Candidate:
        (found,) = self.assessor.candidates([(ledger_id, dereferenced_ms)])
        assert isinstance(found, Candidate)
        return found

    def trimmed(self) -> LedgerId:
        return self.fake_pulsar.trim(self.topic, 1, dies_between=True)[0]

    def verdict(self, ledger_id: LedgerId, *unreadable: UnreadableNode) -> Verdict:
        candidate = self.candidate(ledger_id)
        (verdict,) = self.assessor.verdicts([self.leaks.signed(candidate.record)], unreadable)
        return verdict


@pytest.fixture
def asking() -> Asking:
    return Asking()


# --- whose it is -----------------------------------------------------------------------------------------------------


def test_each_ledger_is_reported_in_order(asking: Asking) -> None:
    fake_pulsar, listed = asking.fake_pulsar, asking.fake_pulsar.listed(asking.topic)
    gone = LedgerId(4_000)
    unknown = fake_pulsar.ledger({"application": b"pulsar", "component": b"new"})
    nobodys, no_topics = fake_pulsar.ledger({}), fake_pulsar.ledger(data_custom_metadata("just-a-name"))
    broken = fake_pulsar.ledger({})
    fake_pulsar.store.put(ledger_path(broken), b"no metadata")
    asked = [gone, listed[0], nobodys, unknown, no_topics, broken]
    first, second, *others = asking.assessor.candidates([(each, 9) for each in asked])
    assert first is None
    assert isinstance(second, Candidate)
    assert second.record.ledger_id == listed[0]
    assert second.record.mark.instance_id == INSTANCE_ID
    assert second.record.mark.dereferenced_ms == 9
    assert second.claim == second.ledger.claim
    assert second.ledger.replication_locked is False, "locks are the second phase's to ask for"
    assert all(isinstance(each, NotDeletable) for each in others)
    details = {
        ledger_id: each.reason
        for ledger_id, each in zip(asked[2:], others, strict=True)
        if isinstance(each, NotDeletable)
    }
    assert details[nobodys] == "its metadata does not show that Pulsar made it"
    assert details[unknown].startswith("this version does not know its kind: component b'new' is not known")
    assert details[no_topics] == "its owner /managed-ledgers/just-a-name is not a topic's"
    assert details[broken].startswith("its metadata is not understood: ")


def test_ledgers_below_another_root(asking: Asking) -> None:
    store, ledger_id = asking.fake_pulsar.store, asking.fake_pulsar.listed(asking.topic)[0]
    moved = replace(asking.assessor, root="/bk/ledgers")
    for made in (ledger_path, lambda _, root="/ledgers": instance_id_path(root)):
        node = store.peek(made(ledger_id))
        store.put(made(ledger_id, "/bk/ledgers"), node.data)
        store.remove(made(ledger_id))
    (found,) = moved.candidates([(ledger_id, 9)])
    assert isinstance(found, Candidate)
    assert found.record.mark.instance_id == INSTANCE_ID


def test_empty_input_yields_no_verdicts(asking: Asking) -> None:
    assert asking.assessor.candidates([]) == []
    assert asking.assessor.verdicts([], []) == []


def test_without_bookkeepers_instance_nothing_is_claimed(asking: Asking) -> None:
    asking.fake_pulsar.store.remove(instance_id_path())
    for root in ("/ledgers", "/bk/ledgers"):
        with pytest.raises(TemporaryError, match=f"no BookKeeper instance id at {root}/INSTANCEID, "):
            replace(asking.assessor, root=root).candidates([(LedgerId(1), None)])


def test_a_store_that_does_not_answer_proves_nothing(asking: Asking) -> None:
    asking.fake_pulsar.store.fail_next("read_many", TemporaryError("away"))
    with pytest.raises(TemporaryError):
        asking.assessor.candidates([(asking.fake_pulsar.listed(asking.topic)[0], None)])


# --- evidence --------------------------------------------------------------------------------------------------------


def test_only_the_claimed_owners_node_is_evidence(asking: Asking) -> None:
    candidate = asking.candidate(asking.fake_pulsar.listed(asking.topic)[0])
    assert owner_path(candidate.claim) == asking.list_path
    other = VanishedReference(candidate.record.ledger_id, f"{asking.list_path}-shadow", replaced=False)
    assert asking.assessor.evidence(candidate, other) is None
    assert asking.fake_pulsar.store.peek(SIGNING_KEY) is None
    own = VanishedReference(candidate.record.ledger_id, asking.list_path, replaced=False)
    evidence = asking.assessor.evidence(candidate, own)
    key = asking.fake_pulsar.store.peek(SIGNING_KEY)
    assert is_signed(evidence.record, key.data)
    assert (evidence.path, evidence.dereferenced_ms, evidence.appended_ms) == (asking.list_path, 5, None)


GONE: dict[str, Callable[[Asking], object]] = {
    "nothing": lambda asking: None,
    "the cursor": lambda asking: asking.fake_pulsar.store.remove(asking.cursor),
    "the topic": lambda asking: asking.fake_pulsar.store.remove(asking.list_path),
    "the namespace": lambda asking: asking.fake_pulsar.store.remove(f"{POLICIES}/public/default"),
    "everything": lambda asking: (
        asking.fake_pulsar.store.remove(asking.list_path),
        asking.fake_pulsar.store.remove(f"{POLICIES}/public/default"),
        asking.fake_pulsar.store.remove(schema_path(asking.topic.schema_id)),
    ),
}
CAUSES = {
    "nothing": ("trim", "cursor-switch", "schema", "compaction", "delayed-index"),
    "the cursor": ("trim", "subscription", "schema", "compaction", "subscription"),
    "the topic": ("topic-deletion", "topic-deletion", "schema", "topic-deletion", "topic-deletion"),
    "the namespace": ("trim", "cursor-switch", "namespace-deletion", "compaction", "delayed-index"),
    "everything": ("namespace-deletion",) * 5,
}


@pytest.mark.parametrize("gone", GONE)
def test_the_cause_is_read_from_what_is_left(asking: Asking, gone: str) -> None:
    by_kind: dict[LedgerComponent, Candidate] = {}
    for ledger_id in asking.fake_pulsar.ledgers():
        candidate = asking.candidate(ledger_id)
        if candidate.record.cursor_name != "__compaction":
            by_kind[candidate.record.component] = candidate
    GONE[gone](asking)
    causes = []
    for component in LedgerComponent:
        candidate = by_kind[component]
        path = owner_path(candidate.claim)
        evidence = asking.assessor.evidence(
            candidate, VanishedReference(candidate.record.ledger_id, path, replaced=False)
        )
        causes.append(evidence.cause.value)
    assert tuple(causes) == CAUSES[gone]


@pytest.mark.parametrize(("local", "cause"), [(True, LeakCause.TOPIC_DELETION), (False, LeakCause.NAMESPACE_DELETION)])
def test_a_namespace_whose_policies_are_elsewhere_has_local_ones(asking: Asking, local: bool, cause: LeakCause) -> None:
    """Policies may be in a configuration store of their own."""
    candidate = asking.candidate(asking.fake_pulsar.listed(asking.topic)[0])
    GONE["everything"](asking)
    if local:
        asking.fake_pulsar.store.put(f"{LOCAL_POLICIES}/public/default")
    vanished = VanishedReference(candidate.record.ledger_id, asking.list_path, replaced=False)
    assert asking.assessor.evidence(candidate, vanished).cause is cause


@pytest.mark.parametrize(
    ("replaced", "before", "after"),
    [(False, LeakCause.TRIM, LeakCause.TOPIC_DELETION), (True, LeakCause.OFFLOAD, LeakCause.OFFLOAD)],
)
def test_a_cause_is_read_again_and_nothing_else_changes(
    asking: Asking, replaced: bool, before: LeakCause, after: LeakCause
) -> None:
    candidate = asking.candidate(asking.fake_pulsar.listed(asking.topic)[0])
    evidence = asking.assessor.evidence(
        candidate, VanishedReference(candidate.record.ledger_id, asking.list_path, replaced=replaced)
    )
    assert evidence.cause is before
    GONE["the topic"](asking)
    assert asking.assessor.with_cause(evidence) == replace(evidence, cause=after)


# --- may it go? ------------------------------------------------------------------------------------------------------


def test_unreferenced_ledger_is_deletable_and_listed_one_is_not(asking: Asking) -> None:
    gone, listed = asking.trimmed(), asking.fake_pulsar.listed(asking.topic)[0]
    assert isinstance(asking.verdict(gone), Delete)
    verdict = asking.verdict(listed)
    assert isinstance(verdict, Keep)
    assert verdict.reason is OutcomeReason.IN_USE


def test_several_are_judged_each_for_itself(asking: Asking) -> None:
    gone, listed = asking.trimmed(), asking.fake_pulsar.listed(asking.topic)[0]
    records = [asking.leaks.signed(asking.candidate(each).record) for each in (listed, gone, listed)]
    assert [isinstance(each, Delete) for each in asking.assessor.verdicts(records, [])] == [False, True, False]


def test_without_evidence_the_operators_word_is_asked_for(asking: Asking) -> None:
    gone = asking.trimmed()
    (verdict,) = asking.assessor.verdicts([asking.candidate(gone, None).record], [])
    assert isinstance(verdict, SendToDeadLetters)
    assert verdict.reason is OutcomeReason.BOOKKEEPER_MAY_BE_SHARED


@pytest.mark.parametrize(
    ("path", "protects"),
    [
        ("/managed-ledgers/public/default/persistent/other", True),
        ("/managed-ledgers/public", True),
        ("/managed-ledgers/public/default/persistent/other/sub", False),
        ("/schemas/public", False),
    ],
)
def test_unread_nodes_protect_as_in_an_audit(asking: Asking, path: str, protects: bool) -> None:
    verdict = asking.verdict(asking.trimmed(), unreadable_node(path, "NoAuth"))
    if protects:
        detail = f"{path} was not read, and may reference it: NoAuth"
        assert verdict == RetryLater(OutcomeReason.REFERENCES_UNKNOWN, detail, 60_000)
    else:
        assert isinstance(verdict, Delete)


def test_unread_nodes_protect_only_the_kinds_they_may_name(asking: Asking) -> None:
    lost = asking.fake_pulsar.ledger(schema_custom_metadata(asking.topic.schema_id))
    verdict = asking.verdict(lost, unreadable_node("/schemas/public", "NoAuth"))
    assert isinstance(verdict, RetryLater)
    assert isinstance(asking.verdict(lost, unreadable_node("/managed-ledgers/public", "NoAuth")), Delete)


@pytest.mark.parametrize(
    ("tenants", "local", "goes"),
    [
        ((), (), True),
        (("public",), (), True),
        (("other",), (), False),
        ((), ("public",), True),
        ((), ("other",), False),
        (("other",), ("public",), True),
    ],
)
def test_a_tenant_that_neither_policies_nor_local_policies_know_is_protected(
    asking: Asking, tenants: tuple[str, ...], local: tuple[str, ...], goes: bool
) -> None:
    """Same rule as in an audit: policies may be in a configuration store of their own."""
    asking.fake_pulsar.store.remove(POLICIES)
    for path in (*(f"{POLICIES}/{tenant}" for tenant in tenants), *(f"{LOCAL_POLICIES}/{tenant}" for tenant in local)):
        asking.fake_pulsar.store.put(path)
    verdict = asking.verdict(asking.trimmed())
    assert isinstance(verdict, Delete if goes else RetryLater)
    assert goes or "/admin/policies does not have its tenant public" in verdict.detail
