"""schemathesis against the app on a fake service: no 5xx, every error in Pulsar's shape, nothing without a token.

The seed is fixed, so that a change is judged by what it changes; `tests/e2e/test_fuzzing.py` fuzzes a real sidecar.
"""

from pulsar_sidecar.api.authentication import Authentication
from pulsar_sidecar.api.authentication_tokens import TokenVerifier, secret_key
from pulsar_sidecar.api.rooms import ack_state
from pulsar_sidecar.api.rooms.delayed_delivery import routes as delayed_delivery
from pulsar_sidecar.ledger_deletion.record import PendingDeleteLedgerInfo
from pulsar_sidecar.ledger_deletion.service import (
    Control,
    DeadLetter,
    FollowedDeletion,
    OperationState,
    Redirect,
    Remains,
    SidecarInstance,
    TopicDeletionStatus,
)
from pulsar_sidecar.model.clocks import SystemClock
from pulsar_sidecar.model.ids import LedgerId, OperationId
from pulsar_sidecar.model.ledgers import LedgerComponent, LedgerType
from pulsar_sidecar.model.names import parse_topic_name

from tests.fakes.ack_states import FakeAckStates
from tests.fakes.delayed_service import FakeDelayedDelivery
from tests.fakes.deletion_service import FakeDeletionService
from tests.fakes.leaks import leak
from tests.fakes.waiting import FakeWaitingMessages
from tests.fuzzing.running import fuzz
from tests.unit.api.serving import served
from tests.unit.api.test_authentication import ADMIN, SECRET, data_url, hs256

ORDERS = parse_topic_name("persistent://public/default/orders")


def furnished() -> FakeDeletionService:
    """Every list has an item, so that answers are more than empty ones."""
    record = PendingDeleteLedgerInfo(ORDERS, LedgerComponent.MANAGED_LEDGER, LedgerType.LEDGER, LedgerId(4711))
    since_ms = 1_700_000_000_000
    running = TopicDeletionStatus(OperationId("op-1"), ORDERS, OperationState.RUNNING, 3, 2, since_ms, "waits")
    service = FakeDeletionService(
        dead=[
            DeadLetter("1:2:0", record, "{}", "still in use", 10, since_ms),
            DeadLetter("1:3:0", None, "\x00{", "malformed", 0, since_ms),
        ],
        running=[running],
        followed=[FollowedDeletion(running, "sidecar-1", Remains(("/managed-ledgers/t",), 1, (LedgerId(7),)))],
        instances=(SidecarInstance("sidecar-1", "http://127.0.0.1:8750", None, since_ms),),
        control=Control(paused=True, paused_reason="maintenance", rate_per_second=0.5),
        not_sent={0: "its outcome is unknown"},
        deleted={4711},
    )
    service.watch.found = [leak(4711)]
    return service


def test_every_operation_of_an_open_sidecar() -> None:
    service = furnished()
    routers = [
        delayed_delivery.router(FakeDelayedDelivery()),
        ack_state.router(FakeAckStates()),
        delayed_delivery.waiting_router(FakeWaitingMessages()),
    ]
    with served(service, routers=routers) as server:
        fuzz(server.url, seed=4, most_examples=6)
    assert service.recorded
    assert service.judged


def test_every_operation_of_a_sidecar_that_demands_a_token() -> None:
    service = furnished()
    service.deletion_state, service.deletion_reason = OperationState.RUNNING, "the broker does not answer"
    authentication = Authentication(TokenVerifier(secret_key(data_url(SECRET)), SystemClock()))
    with served(service, authentication) as server:
        service.ledger_answer = Redirect(server.url)
        fuzz(server.url, seed=5, most_examples=3, token=hs256(ADMIN))
    # What was done was done for the token's role only.
    assert {asked[3] for asked in service.calls("delete_topic")} == {"admin"}  # type: ignore[index]
