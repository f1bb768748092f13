"""schemathesis against the app on a fake service: no 5xx, every error in Pulsar's shape, nothing without a token.

The seed is fixed, so that a change is judged by what it changes; `tests/e2e/test_fuzzing.py` fuzzes a real sidecar.
"""

from contextlib import ExitStack, closing

from pulsar_sidecar.features.acknowledgements import http as ack_state
from pulsar_sidecar.features.delayed_index.http import waiting_router
from pulsar_sidecar.features.delayed_messages.http import routes as delayed_delivery
from pulsar_sidecar.features.ledger_deletion.record import PendingDeleteLedgerInfo, record_document
from pulsar_sidecar.features.ledger_deletion.results import (
    Control,
    DeadLetter,
    OperationState,
    Redirect,
    SidecarInstance,
    TopicDeletionStatus,
)
from pulsar_sidecar.model.clocks import SystemClock
from pulsar_sidecar.model.ids import LedgerId, OperationId
from pulsar_sidecar.model.ledgers import LedgerComponent, LedgerType
from pulsar_sidecar.model.names import parse_topic_name
from pulsar_sidecar.server.authentication import Authentication
from pulsar_sidecar.server.authentication_tokens import TokenVerifier, secret_key

from tests.fakes.acknowledging_broker import FakeAcknowledgingBroker
from tests.fakes.delayed_service import FakeDelayedDelivery
from tests.fakes.deletion_service import FakeDeletionService
from tests.fakes.leaks import leak
from tests.fakes.waiting import FakeWaitingMessages
from tests.fuzzing.running import fuzz
from tests.unit.server.serving import served
from tests.unit.server.test_authentication import ADMIN, SECRET, data_url, hs256

ORDERS = parse_topic_name("persistent://public/default/orders")


def furnished() -> FakeDeletionService:
    """Every list has an item, so that answers are more than empty ones."""
    record = PendingDeleteLedgerInfo(ORDERS, LedgerComponent.MANAGED_LEDGER, LedgerType.LEDGER, LedgerId(4711))
    since_ms = 1_700_000_000_000
    running = TopicDeletionStatus(
        OperationId("op-1"), str(ORDERS), None, OperationState.RUNNING, 3, 2, since_ms, "waits"
    )
    service = FakeDeletionService(
        dead=[
            DeadLetter("1:2:0", record_document(record), "{}", "still in use", 10, since_ms),
            DeadLetter("1:3:0", None, "\x00{", "malformed", 0, since_ms),
        ],
        running=[running],
        followed=[running.followed(driver="sidecar-1", left_nodes=("/managed-ledgers/t",), left=(LedgerId(7),))],
        instances=(SidecarInstance("sidecar-1", "http://127.0.0.1:8750", None, since_ms),),
        control=Control(paused=True, paused_reason="maintenance", rate_per_second=0.5),
        not_sent={0: "its outcome is unknown"},
        deleted={4711},
    )
    service.watch.found = [leak(4711)]
    return service


def test_every_operation_of_an_open_sidecar() -> None:
    service = furnished()
    broker = FakeAcknowledgingBroker()
    for topic in (ORDERS, parse_topic_name("persistent://public/standalone/default/orders")):
        broker.dig(topic, "billing", 30)
    with ExitStack() as stack:
        states = stack.enter_context(closing(broker.service()))
        routers = [
            delayed_delivery.router(FakeDelayedDelivery()),
            ack_state.router(states),
            waiting_router(FakeWaitingMessages()),
        ]
        server = stack.enter_context(served(service, routers=routers))
        fuzz(server.url, seed=4, most_examples=6)
    assert service.recorded
    assert service.judged


def test_every_operation_of_a_sidecar_that_demands_a_token() -> None:
    service = furnished()
    service.deletion_state, service.deletion_reason = OperationState.RUNNING, "the broker does not respond"
    authentication = Authentication(TokenVerifier(secret_key(data_url(SECRET)), SystemClock()))
    with served(service, authentication) as server:
        service.ledger_answer = Redirect(server.url)
        # The boundaries of every parameter (phase ``coverage``, most of the calls) are tried on the open one.
        fuzz(server.url, seed=5, most_examples=3, token=hs256(ADMIN), options=("--phases=examples,fuzzing",))
    # What was done was done for the token's role only.
    assert {asked[3] for asked in service.calls("delete_topic")} == {"admin"}  # type: ignore[index]
