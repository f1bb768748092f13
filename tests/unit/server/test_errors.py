import pytest
import structlog
from pulsar_sidecar.model import errors
from pulsar_sidecar.model.clocks import SystemClock
from pulsar_sidecar.model.errors import BrokerRefusedError, SidecarError
from pulsar_sidecar.server.authentication import Authentication
from pulsar_sidecar.server.authentication_tokens import TokenVerifier, secret_key
from pulsar_sidecar.server.callers import Caller
from pulsar_sidecar.server.errors import (
    STATUS_BY_ERROR,
    MismatchError,
    NotPersistentError,
    TooLargeError,
    error_response,
    status_of,
)
from starlette.types import Scope

from tests.fakes.deletion_service import FakeDeletionService
from tests.unit.server.serving import Served, served

STATUS = "/admin/v2/ledger-deletion/status"

TABLE = [
    (errors.InvalidInputError("x"), 400),
    (errors.NotAuthenticatedError("x"), 401),
    (errors.NotAuthorizedError("x"), 403),
    (errors.NotFoundError("x"), 404),
    (errors.DisabledError("x"), 405),
    (NotPersistentError("x"), 405),
    (errors.ConflictError("x"), 409),
    (errors.AlreadyExistsError("x"), 409),
    (errors.DataLossError("x"), 409),
    (errors.PermanentError("x"), 412),
    (MismatchError("x"), 412),
    (TooLargeError(), 413),
    (errors.TemporaryError("x"), 503),
    (errors.UnreachableError("x"), 503),
    (errors.ProducerBusyError("x"), 503),
    (errors.UndecodableError("x"), 503),
    (errors.UnknownFieldError("x"), 503),
    (errors.OutcomeUnknownError("x"), 503),
    (errors.PassedChangeUnansweredError("x"), 502),
    (errors.ForeignRedirectError("x"), 502),
    (errors.ForeignRedirectError("x", "http://elsewhere"), 307),
    (BrokerRefusedError(412, "x"), 412),
    (errors.RefusedBeforehandError(412, "x"), 412),
    (BrokerRefusedError(403, "x"), 403),
    (BrokerRefusedError(500, "x"), 502),
    (SidecarError("x"), 500),
]


@pytest.mark.parametrize(
    ("error", "status"), TABLE, ids=lambda value: str(value) if isinstance(value, int) else f"{type(value).__name__}"
)
def test_every_error_has_its_status_and_names_its_reason(
    error: SidecarError, status: int, service: FakeDeletionService, server: Served
) -> None:
    service.failure = error
    answer = server.ask("GET", STATUS)
    assert answer.status == status
    assert answer.reason == ("x" if isinstance(error, BrokerRefusedError) and error.status == status else str(error))
    assert ("retry-after" in answer.headers) == (status == 503)
    assert ("www-authenticate" in answer.headers) == (status == 401)


def test_a_request_for_another_cluster_is_redirected_to_its_sidecar(
    service: FakeDeletionService, server: Served
) -> None:
    service.failure = errors.ForeignRedirectError("x", "http://elsewhere:8750")
    assert server.ask("GET", STATUS).headers["location"] == f"http://elsewhere:8750{STATUS}"


def test_every_model_error_has_a_tested_status() -> None:
    defined = {kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, SidecarError)}
    tested = {type(error) for error, _ in TABLE}
    assert defined <= tested
    assert set(STATUS_BY_ERROR) <= tested


def test_a_defect_is_answered_and_the_process_lives(service: FakeDeletionService, server: Served) -> None:
    service.failure = RuntimeError("secret detail")
    answer = server.ask("GET", STATUS)
    assert answer.status == 500
    assert "secret detail" not in answer.reason
    service.failure = None
    assert server.ask("GET", STATUS).status == 200


def test_a_defect_before_the_app_is_answered_and_logged_like_one_in_it(service: FakeDeletionService) -> None:
    class Defective(Authentication):
        async def caller(self, scope: Scope) -> Caller:
            raise RuntimeError("secret detail")

    key = secret_key("data:;base64," + "c2Vj" * 11)
    with (
        structlog.testing.capture_logs() as logs,
        served(service, Defective(TokenVerifier(key, SystemClock()))) as server,
    ):
        answer = server.ask("GET", STATUS)
    assert (answer.status, "RuntimeError" in answer.reason, "secret detail" in answer.reason) == (500, True, False)
    assert [(line["event"], line.get("status")) for line in logs] == [
        ("a request failed unexpectedly", None),
        ("request", 500),
    ]


def test_a_reason_is_shortened_and_always_encodable() -> None:
    response = error_response(SidecarError("\ud800" + "x" * 100_000))
    assert len(response.body) < 3_000
    assert status_of(SidecarError("")) == 500
