"""What the exceptions of the Pulsar client and of ``requests`` mean to this project.

Invariant: both tables name every exception class of their client; a class that is in none of them is a bug that
``tests/unit/pulsar/test_errors.py`` finds before an operator does.
"""

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pulsar
import requests
import urllib3
from pulsar import exceptions as client
from requests import exceptions as http

from pulsar_sidecar.ledger_deletion.ports import PublishResult
from pulsar_sidecar.model.errors import (
    ConflictError,
    InvalidInputError,
    NotAuthenticatedError,
    NotAuthorizedError,
    NotFoundError,
    OutcomeUnknownError,
    PermanentError,
    SidecarError,
    TemporaryError,
    UnreachableError,
)

_Kind = type[SidecarError]

CLIENT_ERRORS: Final[dict[type[pulsar.PulsarException], _Kind]] = {
    client.AlreadyClosed: TemporaryError,
    client.AuthenticationError: NotAuthenticatedError,
    client.AuthorizationError: NotAuthorizedError,
    client.BrokerMetadataError: TemporaryError,
    client.BrokerPersistenceError: TemporaryError,
    client.ChecksumError: TemporaryError,
    client.ConnectError: UnreachableError,
    client.ConsumerAssignError: TemporaryError,
    client.ConsumerBusy: ConflictError,
    client.ConsumerNotFound: NotFoundError,
    client.ConsumerNotInitialized: TemporaryError,
    client.CryptoError: PermanentError,
    client.CumulativeAcknowledgementNotAllowedError: PermanentError,
    client.ErrorGettingAuthenticationData: NotAuthenticatedError,
    client.IncompatibleSchema: PermanentError,
    client.Interrupted: TemporaryError,
    client.InvalidConfiguration: InvalidInputError,
    client.InvalidMessage: InvalidInputError,
    client.InvalidTopicName: InvalidInputError,
    client.InvalidTxnStatusError: PermanentError,
    client.InvalidUrl: InvalidInputError,
    client.LookupError: TemporaryError,
    client.MemoryBufferIsFull: TemporaryError,
    client.MessageTooBig: InvalidInputError,
    client.NotAllowedError: PermanentError,
    client.NotConnected: UnreachableError,
    client.OperationNotSupported: PermanentError,
    client.ProducerBlockedQuotaExceededError: TemporaryError,
    client.ProducerBlockedQuotaExceededException: TemporaryError,
    client.ProducerBusy: ConflictError,
    client.ProducerFenced: ConflictError,
    client.ProducerNotInitialized: TemporaryError,
    client.ProducerQueueIsFull: TemporaryError,
    client.ReadError: TemporaryError,
    client.ServiceUnitNotReady: TemporaryError,
    client.SubscriptionNotFound: NotFoundError,
    client.Timeout: UnreachableError,
    client.TooManyLookupRequestException: TemporaryError,
    client.TopicNotFound: NotFoundError,
    client.TopicTerminated: PermanentError,
    client.TransactionConflict: ConflictError,
    client.TransactionCoordinatorNotFoundError: NotFoundError,
    client.TransactionNotFound: NotFoundError,
    client.UnknownError: TemporaryError,
    client.UnsupportedVersionError: PermanentError,
    pulsar.PulsarException: TemporaryError,
}

HTTP_ERRORS: Final[dict[type[http.RequestException], _Kind]] = {
    http.ChunkedEncodingError: UnreachableError,
    http.ConnectTimeout: UnreachableError,
    http.ConnectionError: UnreachableError,
    http.ContentDecodingError: TemporaryError,
    http.HTTPError: TemporaryError,
    http.InvalidHeader: InvalidInputError,
    http.InvalidJSONError: TemporaryError,
    http.InvalidProxyURL: InvalidInputError,
    http.InvalidSchema: InvalidInputError,
    http.InvalidURL: InvalidInputError,
    http.JSONDecodeError: TemporaryError,
    http.MissingSchema: InvalidInputError,
    http.ProxyError: UnreachableError,
    http.ReadTimeout: UnreachableError,
    http.RequestException: TemporaryError,
    http.RetryError: TemporaryError,
    http.SSLError: UnreachableError,
    http.StreamConsumedError: TemporaryError,
    http.Timeout: UnreachableError,
    http.TooManyRedirects: TemporaryError,
    http.URLRequired: InvalidInputError,
    http.UnrewindableBodyError: TemporaryError,
}

NEVER_SENT: Final[frozenset[str]] = frozenset(
    {
        "AuthorizationError",
        "CryptoError",
        "IncompatibleSchema",
        "InvalidConfiguration",
        "InvalidMessage",
        "MemoryBufferIsFull",
        "MessageTooBig",
        "OperationNotSupported",
        "ProducerBlockedQuotaExceededError",
        "ProducerBlockedQuotaExceededException",
        "ProducerNotInitialized",
        "ProducerQueueIsFull",
        "TopicTerminated",
    }
)
"""Names of the results that say for certain that a message is not in the topic; every other failure leaves it open."""


@contextmanager
def translated(doing: str) -> Iterator[None]:
    """Turn the Pulsar client's exceptions into ours; ``doing`` completes the sentence "failed while ...".

    Raises:
        SidecarError: the class that `CLIENT_ERRORS` names.
    """
    try:
        yield
    except pulsar.PulsarException as error:
        kind = CLIENT_ERRORS.get(type(error), TemporaryError)
        raise kind(f"{doing}: {type(error).__name__} from the Pulsar client; {_NEXT_STEP[kind]}") from error


def publish_result(result: pulsar.Result, ledger_id: int) -> PublishResult:
    """What a send receipt says; ``ledger_id`` is -1 in the receipt of a message that PIP-6 recognised."""
    if result == pulsar.Result.Ok:
        return PublishResult.STORED if ledger_id >= 0 else PublishResult.ALREADY_STORED
    return PublishResult.NOT_STORED if result.name in NEVER_SENT else PublishResult.UNKNOWN


def http_error(error: requests.RequestException, doing: str, *, change: bool) -> SidecarError:
    """Our error for a request that got no answer; a change that may have left is `OutcomeUnknownError`."""
    kind = HTTP_ERRORS.get(type(error), TemporaryError)
    is_tls = isinstance(error, http.SSLError)
    reason = f"{doing}: {f'TLS failed ({_tls_reason(error)})' if is_tls else type(error).__name__}"
    if issubclass(kind, TemporaryError) and change and not never_left(error):
        return OutcomeUnknownError(f"{reason}, so it may have taken effect; read the state again")
    return kind(f"{reason}; {_TLS_NEXT_STEP if is_tls else _NEXT_STEP[kind]}")


def never_left(error: requests.RequestException) -> bool:
    """Whether no byte of the request can have reached the other side."""
    if isinstance(error, http.ConnectTimeout):
        return True
    cause = error.args[0] if error.args else None
    reason = cause.reason if isinstance(cause, urllib3.exceptions.MaxRetryError) else cause
    return isinstance(reason, urllib3.exceptions.NewConnectionError | urllib3.exceptions.ConnectTimeoutError)


def _tls_reason(error: requests.RequestException) -> str:
    """What the TLS library says, such as ``CERTIFICATE_VERIFY_FAILED``, as deep as it may be wrapped."""
    wrapped: object = error
    for _ in range(_DEEPEST_CAUSE):
        if isinstance(wrapped, ssl.SSLError) and wrapped.reason:
            return str(wrapped.reason)
        inner = getattr(wrapped, "reason", None)
        args = getattr(wrapped, "args", ())
        wrapped = inner if isinstance(inner, BaseException) else args[0] if args else None
    return type(error).__name__


_DEEPEST_CAUSE: Final = 6
_TLS_NEXT_STEP: Final = (
    "check tlsTrustCertsFilePath, the client certificate (tlsCertificateFilePath, authParams), and the scheme and port"
)

_NEXT_STEP: Final[dict[_Kind, str]] = {
    ConflictError: "somebody else holds it now",
    InvalidInputError: "correct the setting or the input it names",
    NotAuthenticatedError: "check the sidecar's credentials for the brokers",
    NotAuthorizedError: "grant the sidecar's role this operation",
    NotFoundError: "check the name",
    PermanentError: "trying again changes nothing",
    TemporaryError: "try again",
    UnreachableError: "check that it runs and can be reached",
}
