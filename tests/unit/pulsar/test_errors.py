"""Every exception a client can raise has a meaning here, and every failed send an honest result."""

import socket
import ssl

import pulsar
import pytest
import urllib3
from pulsar import exceptions as client
from pulsar_sidecar.adapters.pulsar_errors import (
    CLIENT_ERRORS,
    HTTP_ERRORS,
    NEVER_SENT,
    http_error,
    publish_result,
    translated,
)
from pulsar_sidecar.features.ledger_deletion.ports import PublishResult
from pulsar_sidecar.model.errors import (
    ConflictError,
    InvalidInputError,
    NotAuthenticatedError,
    OutcomeUnknownError,
    PermanentError,
    SidecarError,
    TemporaryError,
    UnreachableError,
)
from urllib3 import exceptions as http

TEMPORARY_OF_CLIENT = {
    pulsar.PulsarException,
    client.AlreadyClosed,
    client.BrokerMetadataError,
    client.BrokerPersistenceError,
    client.ChecksumError,
    client.ConsumerAssignError,
    client.ConsumerNotInitialized,
    client.Interrupted,
    client.LookupError,
    client.MemoryBufferIsFull,
    client.ProducerBlockedQuotaExceededError,
    client.ProducerBlockedQuotaExceededException,
    client.ProducerNotInitialized,
    client.ProducerQueueIsFull,
    client.ReadError,
    client.ServiceUnitNotReady,
    client.TooManyLookupRequestException,
    client.UnknownError,
}
TEMPORARY_OF_HTTP = {
    http.BodyNotHttplibCompatible,
    http.ClosedPoolError,
    http.DecodeError,
    http.EmptyPoolError,
    http.FullPoolError,
    http.HTTPError,
    http.HeaderParsingError,
    http.HostChangedError,
    http.InvalidHeader,
    http.PoolError,
    http.RequestError,
    http.ResponseError,
    http.ResponseNotChunked,
    http.TimeoutStateError,
    http.UnrewindableBodyError,
}


def classes_of(module: object, root: type[Exception]) -> set[type[Exception]]:
    found = {value for value in vars(module).values() if isinstance(value, type) and issubclass(value, root)}
    return found | {root}


def test_every_exception_of_the_pulsar_client_is_mapped() -> None:
    assert classes_of(client, pulsar.PulsarException) == set(CLIENT_ERRORS) | TEMPORARY_OF_CLIENT


def test_every_exception_of_urllib3_is_mapped() -> None:
    assert classes_of(http, http.HTTPError) == set(HTTP_ERRORS) | TEMPORARY_OF_HTTP


def test_every_result_that_is_called_certain_exists() -> None:
    names = set(pulsar.Result.__members__)
    assert names >= NEVER_SENT
    assert {kind.__name__ for kind in classes_of(client, pulsar.PulsarException)} >= NEVER_SENT


@pytest.mark.parametrize(
    ("raised", "expected"),
    [*CLIENT_ERRORS.items(), *((kind, TemporaryError) for kind in sorted(TEMPORARY_OF_CLIENT, key=str))],
)
def test_a_client_error_is_raised_as_ours(raised: type[pulsar.PulsarException], expected: type[SidecarError]) -> None:
    with pytest.raises(expected, match="testing") as caught, translated("testing"):
        raise raised("secret detail")
    assert isinstance(caught.value.__cause__, raised)
    assert "secret detail" not in str(caught.value)


def test_client_errors_are_translated() -> None:
    assert CLIENT_ERRORS[client.ProducerBusy] is CLIENT_ERRORS[client.ConsumerBusy] is ConflictError
    assert CLIENT_ERRORS[client.Timeout] is CLIENT_ERRORS[client.ConnectError] is UnreachableError
    assert CLIENT_ERRORS[client.AuthenticationError] is NotAuthenticatedError


def test_receipts() -> None:
    ok = pulsar.Result.__members__["Ok"]
    assert publish_result(ok, 7) is PublishResult.STORED
    assert publish_result(ok, -1) is PublishResult.ALREADY_STORED
    for name, result in pulsar.Result.__members__.items():
        if name != "Ok":
            expected = PublishResult.NOT_STORED if name in NEVER_SENT else PublishResult.UNKNOWN
            assert publish_result(result, -1) is expected
            assert not publish_result(result, 7).stored


@pytest.mark.parametrize("name", ["Timeout", "AlreadyClosed", "UnknownError", "BrokerPersistenceError", "ReadError"])
def test_a_lost_receipt_is_never_called_not_stored(name: str) -> None:
    assert publish_result(pulsar.Result.__members__[name], -1) is PublishResult.UNKNOWN


CONNECTION = urllib3.connection.HTTPConnection("localhost")
POOL = urllib3.HTTPConnectionPool("localhost")


@pytest.mark.parametrize(
    "error",
    [
        http.NewConnectionError(CONNECTION, "refused"),
        http.NameResolutionError("nowhere", CONNECTION, socket.gaierror()),
        http.ConnectTimeoutError("slow"),
    ],
)
def test_a_change_that_was_not_sent_is_temporary(error: http.HTTPError) -> None:
    assert isinstance(http_error(error, "PUT /x", change=True), TemporaryError)


@pytest.mark.parametrize(
    "error", [http.ReadTimeoutError(POOL, "/x", "slow"), http.ProtocolError("reset"), http.IncompleteRead(1, 2)]
)
def test_a_change_that_may_have_left_has_an_unknown_outcome(error: http.HTTPError) -> None:
    assert isinstance(http_error(error, "PUT /x", change=True), OutcomeUnknownError)
    assert isinstance(http_error(error, "GET /x", change=False), TemporaryError)


def test_an_unusable_url_is_invalid_input() -> None:
    assert isinstance(http_error(http.LocationParseError("x"), "PUT /x", change=True), InvalidInputError)
    assert issubclass(InvalidInputError, PermanentError)


def test_a_failure_of_tls_names_its_kind_and_what_to_check() -> None:
    refused = ssl.SSLError(1, "[SSL: TLSV13_ALERT_CERTIFICATE_REQUIRED] ...")
    refused.reason = "TLSV13_ALERT_CERTIFICATE_REQUIRED"
    error = http_error(http.SSLError(refused), "GET /x", change=False)
    assert isinstance(error, TemporaryError)
    assert "GET /x: TLS failed (TLSV13_ALERT_CERTIFICATE_REQUIRED); check tlsTrustCertsFilePath" in str(error)
    assert isinstance(http_error(http.SSLError(refused), "PUT /x", change=True), OutcomeUnknownError)
    assert "TLS failed (SSLError)" in str(http_error(http.SSLError(), "GET /x", change=False))
