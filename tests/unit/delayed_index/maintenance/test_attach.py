"""A cursor's buckets are changed only as decided, only while no broker has the topic, and no race is lost silently."""

from collections.abc import Callable, Mapping

import pytest
from pulsar_sidecar.features.delayed_index.bucket_key import BucketKey
from pulsar_sidecar.features.delayed_index.maintenance.attach import BucketPointers, PointerChange
from pulsar_sidecar.features.delayed_index.results.maintenance import PointerOutcome
from pulsar_sidecar.model.errors import (
    ConflictError,
    NotFoundError,
    OutcomeUnknownError,
    TemporaryError,
    UndecodableError,
)
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.metadata import Node
from pulsar_sidecar.model.names import encode_cursor, parse_topic_name
from pulsar_sidecar.ownership.paths import DEFAULT_LEDGERS_ROOT, cursor_path, ledger_path
from pulsar_sidecar.ownership.references import cursor_references
from pulsar_sidecar.protobuf import MLDataFormats_pb2 as ml

from tests.fakes.bookkeeper import compressed, cursor_bytes, ledger_metadata_bytes
from tests.fakes.clock import FakeClock
from tests.fakes.metadata import FakeMetadataStore

TOPIC = parse_topic_name("persistent://public/default/orders")
SUBSCRIPTION = "a b/c"
PATH = cursor_path(TOPIC.managed_ledger_name, encode_cursor(SUBSCRIPTION))
THERE = BucketKey(LedgerId(1), LedgerId(3))
NEW = BucketKey(LedgerId(4), LedgerId(6))
DANGLING = "#pulsar.internal.delayed.bucket_oddly_named_too"


class FakeLoadedTopics:
    """One response a call; the last one stays."""

    def __init__(self, *answers: str | Exception | None) -> None:
        self.answers = list(answers)

    def loaded_by(self, topic: object) -> str | None:
        assert topic == TOPIC
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


class Setup:
    def __init__(self, *loaded: str | Exception | None, buckets: Mapping[str, int] | None = None) -> None:
        self.store = FakeMetadataStore()
        for ledger_id in (31, 46):
            self.store.put(ledger_path(LedgerId(ledger_id)), ledger_metadata_bytes())
        info = ml.ManagedCursorInfo.FromString(cursor_bytes(buckets=buckets or {str(THERE): 31}))
        info.individualDeletedMessages.add(
            lowerEndpoint=ml.NestedPositionInfo(ledgerId=1, entryId=3),
            upperEndpoint=ml.NestedPositionInfo(ledgerId=1, entryId=5),
        )
        info.cursorProperties.add(name="of-the-user", value="kept")
        self.info = info
        self.store.put(PATH, info.SerializeToString())
        self.pointers = BucketPointers(
            self.store, FakeLoadedTopics(*loaded or (None,)), FakeClock(), DEFAULT_LEDGERS_ROOT
        )

    @property
    def node(self) -> Node:
        node = self.store.peek(PATH)
        assert node is not None
        return node

    @property
    def data(self) -> bytes:
        return self.node.data

    def change(
        self, attach: Mapping[BucketKey, int] | None = None, detach: Mapping[str, int] | None = None
    ) -> PointerChange:
        return PointerChange(
            TOPIC,
            SUBSCRIPTION,
            self.node.version,
            {key: LedgerId(id_) for key, id_ in (attach or {}).items()},
            {name: LedgerId(id_) for name, id_ in (detach or {}).items()},
        )

    def named(self) -> dict[str, int]:
        return dict(cursor_references(self.data).buckets)


@pytest.fixture
def setup() -> Setup:
    return Setup()


def test_buckets_are_named_and_no_longer_named_and_nothing_else_changes() -> None:
    setup = Setup(buckets={str(THERE): 31, DANGLING: 99, str(NEW): 98})
    change = setup.change({NEW: 46}, {DANGLING: 99, str(NEW): 98})
    assert setup.pointers.change(change) is PointerOutcome.DONE
    assert setup.named() == {str(THERE): 31, str(NEW): 46}
    before, after = setup.info, ml.ManagedCursorInfo.FromString(setup.data)
    assert {each.name: each.value for each in after.cursorProperties if each.name == "of-the-user"} == {
        "of-the-user": "kept"
    }
    for info in (before, after):
        del info.cursorProperties[:]
    assert after == before


@pytest.mark.parametrize("is_compressed", [False, True])
def test_attaching_appends_to_what_the_broker_wrote_uncompressed(setup: Setup, is_compressed: bool) -> None:
    plain = setup.data
    if is_compressed:
        setup.store.put(PATH, compressed("NONE", plain, plain))
    assert setup.pointers.change(setup.change({NEW: 46})) is PointerOutcome.DONE
    assert setup.data.startswith(plain)


def refused(setup: Setup, change: PointerChange, error: type[Exception], match: str) -> None:
    before = setup.data
    with pytest.raises(error, match=match):
        setup.pointers.change(change)
    assert setup.data == before


def test_a_loaded_topic_is_refused_with_what_to_do() -> None:
    setup = Setup("broker-1:8080")
    refused(setup, setup.change({NEW: 46}), ConflictError, "broker-1.*stop its producers.*topics unload")


def test_brokers_that_cannot_all_be_asked_change_nothing() -> None:
    setup = Setup(TemporaryError("a broker does not respond"))
    refused(setup, setup.change({NEW: 46}), TemporaryError, "does not respond")


@pytest.mark.parametrize(
    ("attach", "detach", "error", "match"),
    [
        pytest.param({NEW: 47}, {}, NotFoundError, "ledger 47", id="no such ledger"),
        pytest.param({BucketKey(LedgerId(3), LedgerId(4)): 46}, {}, ConflictError, "overlaps", id="overlapping"),
        pytest.param({THERE: 46}, {}, ConflictError, "overlaps", id="the same name"),
        pytest.param(
            {NEW: 46, BucketKey(LedgerId(6), LedgerId(7)): 31}, {}, ConflictError, "overlaps", id="each other"
        ),
        pytest.param({}, {str(THERE): 32}, ConflictError, "does not name ledger 32", id="another ledger"),
        pytest.param({}, {str(NEW): 46}, ConflictError, "does not name ledger 46", id="not named"),
    ],
)
def test_mismatched_index_is_refused(
    setup: Setup, attach: Mapping[BucketKey, int], detach: Mapping[str, int], error: type[Exception], match: str
) -> None:
    refused(setup, setup.change(attach, detach), error, match)


def test_a_cursor_that_changed_since_is_refused(setup: Setup) -> None:
    change = setup.change({NEW: 46})
    setup.store.put(PATH, setup.data)
    refused(setup, change, ConflictError, "plan again")


def test_a_write_in_between_is_refused_by_the_store(setup: Setup) -> None:
    change = setup.change({NEW: 46})
    setup.store.before("write", lambda: setup.store.put(PATH, setup.data))
    with pytest.raises(ConflictError):
        setup.pointers.change(change)
    assert setup.named() == {str(THERE): 31}


@pytest.mark.parametrize("when", ["before", "at the write"])
def test_a_subscription_that_goes(setup: Setup, when: str) -> None:
    change = setup.change({NEW: 46})
    if when == "before":
        setup.store.remove(PATH)
    else:
        setup.store.before("write", lambda: setup.store.remove(PATH))
    with pytest.raises(NotFoundError):
        setup.pointers.change(change)


def test_a_topic_loaded_at_the_same_moment_is_reported() -> None:
    setup = Setup(None, "broker-1:8080")
    assert setup.pointers.change(setup.change({NEW: 46})) is PointerOutcome.LOADED_MEANWHILE


def when_looked_at_again(setup: Setup, happening: Callable[[], object]) -> None:
    setup.store.before("read", lambda: setup.store.before("read", happening, path=PATH), path=PATH)


@pytest.mark.parametrize(
    ("attach", "detach"), [({NEW: 46}, {}), ({}, {DANGLING: 99}), ({NEW: 46}, {DANGLING: 99})], ids=str
)
def test_a_broker_that_writes_its_own_copy_is_reported(
    attach: Mapping[BucketKey, int], detach: Mapping[str, int]
) -> None:
    setup = Setup(None, "broker-1:8080", buckets={str(THERE): 31, **detach} if attach else detach)
    change, old = setup.change(attach, detach), setup.data
    when_looked_at_again(setup, lambda: setup.store.put(PATH, old))
    assert setup.pointers.change(change) is PointerOutcome.OVERWRITTEN


def test_a_subscription_that_goes_after_the_change_names_nothing(setup: Setup) -> None:
    change = setup.change({NEW: 46})
    when_looked_at_again(setup, lambda: setup.store.remove(PATH))
    assert setup.pointers.change(change) is PointerOutcome.OVERWRITTEN


def test_a_bad_name_that_stays_is_in_the_way_of_attaching_only() -> None:
    odd = f"{DANGLING}_as_this_one"
    setup = Setup(buckets={DANGLING: 99, odd: 98})
    assert setup.pointers.change(setup.change({}, {DANGLING: 99})) is PointerOutcome.DONE
    assert setup.named() == {odd: 98}
    refused(setup, setup.change({NEW: 46}), UndecodableError, "bucket_oddly")


def test_ledgers_are_looked_for_where_bookkeeper_keeps_them(setup: Setup) -> None:
    elsewhere = BucketPointers(setup.store, FakeLoadedTopics(None), FakeClock(), "/elsewhere")
    with pytest.raises(NotFoundError, match="ledger 46"):
        elsewhere.change(setup.change({NEW: 46}))
    setup.store.put(ledger_path(LedgerId(46), "/elsewhere"), ledger_metadata_bytes())
    assert elsewhere.change(setup.change({NEW: 46})) is PointerOutcome.DONE


@pytest.mark.parametrize("applied", [False, True])
def test_a_lost_answer_is_looked_up(setup: Setup, applied: bool) -> None:
    change = setup.change({NEW: 46})
    setup.store.lose_answer_next("write", applied=applied)
    if applied:
        assert setup.pointers.change(change) is PointerOutcome.DONE
    else:
        with pytest.raises(OutcomeUnknownError):
            setup.pointers.change(change)


def test_a_lost_answer_that_cannot_be_looked_up_is_not_known(setup: Setup) -> None:
    change = setup.change({NEW: 46})
    away = TemporaryError("the store is away")
    setup.store.before("write", lambda: setup.store.fail_next("read", away, path=PATH))
    setup.store.lose_answer_next("write", applied=True)
    with pytest.raises(OutcomeUnknownError, match=r"the answer to the write .* was lost"):
        setup.pointers.change(change)
    assert setup.named() == {str(THERE): 31, str(NEW): 46}


def test_failed_check_after_the_change_is_outcome_unknown() -> None:
    setup = Setup(None, TemporaryError("a broker does not respond"))
    with pytest.raises(OutcomeUnknownError, match=r"was changed.*delayed-index show"):
        setup.pointers.change(setup.change({NEW: 46}))
    assert setup.named() == {str(THERE): 31, str(NEW): 46}
