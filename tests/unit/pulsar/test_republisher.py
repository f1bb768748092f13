"""A copy that was not sent is distinguished from one that may have been stored: only the first may be tried again."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pulsar_sidecar.adapters.bookkeeper.bookie_entries import BookieEntries
from pulsar_sidecar.adapters.pulsar_wire.binary_connections import TopicOwners
from pulsar_sidecar.adapters.pulsar_wire.encoding import metadata_of
from pulsar_sidecar.adapters.pulsar_wire.producers import BrokerRepublisher
from pulsar_sidecar.identity.credentials import parse_credentials
from pulsar_sidecar.model.clocks import SystemClock
from pulsar_sidecar.model.errors import OutcomeUnknownError, PermanentError, SidecarError, TemporaryError
from pulsar_sidecar.model.ids import BookieId
from pulsar_sidecar.ownership.paths import DEFAULT_LEDGERS_ROOT, ledger_path
from pulsar_sidecar.protobuf import PulsarApi_pb2 as api

from tests.fakes.binary_brokers import (
    Answers,
    BinaryBroker,
    challenge,
    owners_at,
    refusal,
    send_error,
    usual,
)
from tests.fakes.bookie_servers import FakeBookies, stored_entry
from tests.fakes.bookkeeper import ledger_metadata_bytes
from tests.fakes.clock import FakeClock
from tests.fakes.delayed_messages import LEDGER, TOPIC, at
from tests.fakes.metadata import FakeMetadataStore
from tests.unit.pulsar.test_message_metadata import message, stored

KIND = api.BaseCommand
BOOKIES = (BookieId("a:3181"), BookieId("b:3181"))


class Republishing:
    """A stored message, and a broker."""

    def __init__(self, broker: BinaryBroker, owners: TopicOwners) -> None:
        self.broker, self.owners = broker, owners
        store, bookies, clock = FakeMetadataStore(), FakeBookies(), SystemClock()
        store.put(ledger_path(LEDGER), ledger_metadata_bytes(last_entry_id=0, ensemble=BOOKIES))
        entry = stored(message(deliver_at_time=77))
        for bookie in BOOKIES:
            bookies.held[bookie] = {at(0).entry_id: stored_entry(LEDGER, at(0).entry_id, entry)}
        self.republisher = BrokerRepublisher(store, BookieEntries(bookies), owners, clock, DEFAULT_LEDGERS_ROOT)

    def republish(self) -> str:
        return self.republisher.republish(TOPIC, (at(0),), None, {"replaces": "7:0"})


class TickingClock(FakeClock):
    """Time passes whenever it is asked for."""

    def now_ms(self) -> int:
        self.advance_ms(1)
        return super().now_ms()


@pytest.fixture
def token(tmp_path: Path) -> Path:
    (path := tmp_path / "token").write_text("secret")
    return path


@pytest.fixture
def republishing(broker: BinaryBroker, token: Path) -> Iterator[Republishing]:
    with owners_at(broker, credentials=parse_credentials("token", token.as_uri())) as owners:
        yield Republishing(broker, owners)


Reply = Callable[[api.BaseCommand], Answers]


def _silence(came: api.BaseCommand) -> Answers:
    return []


def _break(came: api.BaseCommand) -> Answers:
    return None


def _refuse(code: int) -> Reply:
    def refuse(came: api.BaseCommand) -> Answers:
        return [refusal(came.producer.request_id, code) if came.type == KIND.PRODUCER else send_error(came, code)]

    return refuse


def test_a_copy_is_published_and_its_producer_leaves(republishing: Republishing) -> None:
    assert republishing.republish().endswith(":-1")
    assert republishing.broker.kinds()[-3:] == ["PRODUCER", "SEND", "CLOSE_PRODUCER"]


def test_all_chunks_of_a_copy_have_one_time_by_which_they_are_found_again(republishing: Republishing) -> None:
    replace(republishing.republisher, _clock=TickingClock()).republish(TOPIC, (at(0), at(0)), None, {})
    first, second = (metadata_of(message)[0].publish_time for message in republishing.broker.messages)
    assert first == second


@pytest.mark.parametrize(
    ("kind", "reply", "error"),
    [
        (KIND.PRODUCER, _break, TemporaryError),
        (KIND.PRODUCER, _silence, TemporaryError),
        (KIND.PRODUCER, _refuse(api.ServiceNotReady), TemporaryError),
        (KIND.PRODUCER, _refuse(api.TopicTerminatedError), PermanentError),
        (KIND.SEND, _break, OutcomeUnknownError),
        (KIND.SEND, _silence, OutcomeUnknownError),
        (KIND.SEND, _refuse(api.PersistenceError), OutcomeUnknownError),
        (KIND.SEND, _refuse(api.TopicTerminatedError), PermanentError),
        (KIND.SEND, lambda came: [refusal(2**64 - 1, api.AuthorizationError)], OutcomeUnknownError),
    ],
)
def test_only_failures_before_sending_are_retryable(
    republishing: Republishing, kind: int, reply: Reply, error: type[SidecarError]
) -> None:
    republishing.broker.on(kind, reply)
    with pytest.raises(SidecarError) as raised:
        republishing.republish()
    assert isinstance(raised.value, error), raised.value
    assert ("SEND" in republishing.broker.kinds()) is (kind == KIND.SEND)


def test_a_challenge_that_cannot_be_answered_proves_nothing_about_a_copy_that_was_sent(
    republishing: Republishing, token: Path
) -> None:
    def challenged(came: api.BaseCommand) -> Answers:
        token.unlink()
        return [challenge(), *(usual(republishing.broker, came) or [])]

    republishing.broker.on(KIND.SEND, challenged)
    with pytest.raises(OutcomeUnknownError):
        republishing.republish()
