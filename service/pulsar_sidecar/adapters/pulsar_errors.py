"""Translation of the exceptions of the Pulsar client and of urllib3 into this project's errors.

Every class that is in no table is a `TemporaryError`. Invariant: each class of both clients was considered;
``tests/unit/pulsar/test_errors.py`` lists the temporary ones, and finds a new one before an operator does.
"""

import logging
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pulsar
from pulsar import exceptions as client
from urllib3 import exceptions as http

from pulsar_sidecar.features.ledger_deletion.ports import PublishResult
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
_LOGGER = logging.getLogger(__name__)

CLIENT_ERRORS: Final[dict[type[pulsar.PulsarException], _Kind]] = {
    client.AuthenticationError: NotAuthenticatedError,
    client.AuthorizationError: NotAuthorizedError,
    client.ConnectError: UnreachableError,
    client.ConsumerBusy: ConflictError,
    client.ConsumerNotFound: NotFoundError,
    client.CryptoError: PermanentError,
    client.CumulativeAcknowledgementNotAllowedError: PermanentError,
    client.ErrorGettingAuthenticationData: NotAuthenticatedError,
    client.IncompatibleSchema: PermanentError,
    client.InvalidConfiguration: InvalidInputError,
    client.InvalidMessage: InvalidInputError,
    client.InvalidTopicName: InvalidInputError,
    client.InvalidTxnStatusError: PermanentError,
    client.InvalidUrl: InvalidInputError,
    client.MessageTooBig: InvalidInputError,
    client.NotAllowedError: PermanentError,
    client.NotConnected: UnreachableError,
    client.OperationNotSupported: PermanentError,
    client.ProducerBusy: ConflictError,
    client.ProducerFenced: ConflictError,
    client.SubscriptionNotFound: NotFoundError,
    client.Timeout: UnreachableError,
    client.TopicNotFound: NotFoundError,
    client.TopicTerminated: PermanentError,
    client.TransactionConflict: ConflictError,
    client.TransactionCoordinatorNotFoundError: NotFoundError,
    client.TransactionNotFound: NotFoundError,
    client.UnsupportedVersionError: PermanentError,
}

HTTP_ERRORS: Final[dict[type[http.HTTPError], _Kind]] = {
    http.ConnectTimeoutError: UnreachableError,
    http.IncompleteRead: UnreachableError,
    http.InvalidChunkLength: UnreachableError,
    http.LocationParseError: InvalidInputError,
    http.LocationValueError: InvalidInputError,
    http.MaxRetryError: UnreachableError,
    http.NameResolutionError: UnreachableError,
    http.NewConnectionError: UnreachableError,
    http.ProtocolError: UnreachableError,
    http.ProxyError: UnreachableError,
    http.ProxySchemeUnknown: InvalidInputError,
    http.ReadTimeoutError: UnreachableError,
    http.SSLError: UnreachableError,
    http.TimeoutError: UnreachableError,
    http.URLSchemeUnknown: InvalidInputError,
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
"""Names of results that prove that a message is not in the topic; after any other failure it may be."""


@contextmanager
def translated(doing: str) -> Iterator[None]:
    """Turn the Pulsar client's exceptions into ours; ``doing`` completes the sentence "failed while ..."."""
    try:
        yield
    except pulsar.PulsarException as error:
        kind = CLIENT_ERRORS.get(type(error), TemporaryError)
        raise kind(f"{doing}: {type(error).__name__} from the Pulsar client; {_NEXT_STEP[kind]}") from error


def close_quietly(opened: pulsar.Client | pulsar.Producer | pulsar.Consumer, doing: str) -> None:
    """Close a client object, and log a failure: brokers notice the disconnect, and release its resources."""
    try:
        with translated(doing):
            opened.close()
    except SidecarError as error:
        _LOGGER.warning("%s", error)


def publish_result(result: pulsar.Result, ledger_id: int) -> PublishResult:
    """Return the result in a send receipt; ``ledger_id`` is -1 in the receipt of a duplicate (PIP-6)."""
    if result == pulsar.Result.Ok:
        return PublishResult.STORED if ledger_id >= 0 else PublishResult.ALREADY_STORED
    return PublishResult.NOT_STORED if result.name in NEVER_SENT else PublishResult.UNKNOWN


def http_error(error: http.HTTPError, doing: str, *, change: bool) -> SidecarError:
    """Return our error for a request without a response; `OutcomeUnknownError` for a change that may have been sent."""
    kind = HTTP_ERRORS.get(type(error), TemporaryError)
    tls_failure = f"TLS failed ({_tls_reason(error)})" if isinstance(error, http.SSLError) else None
    reason = f"{doing}: {tls_failure or type(error).__name__}"
    if issubclass(kind, TemporaryError) and change and not was_not_sent(error):
        return OutcomeUnknownError(f"{reason}, so it may have taken effect; read the state again")
    return kind(f"{reason}; {_TLS_NEXT_STEP if tls_failure else _NEXT_STEP[kind]}")


def was_not_sent(error: http.HTTPError) -> bool:
    """Return True if no byte of the request can have reached the other side."""
    return isinstance(error, http.NewConnectionError | http.ConnectTimeoutError)


def _tls_reason(error: http.SSLError) -> str:
    """Return the TLS library's own reason, such as ``CERTIFICATE_VERIFY_FAILED``."""
    cause = error.args[0] if error.args else None
    return str(cause.reason) if isinstance(cause, ssl.SSLError) and cause.reason else type(error).__name__


_TLS_NEXT_STEP: Final = (
    "check tlsTrustCertsFilePath, the client certificate (tlsCertificateFilePath, authParams), and the scheme and port"
)

_NEXT_STEP: Final[dict[_Kind, str]] = {
    ConflictError: "another client holds it now",
    InvalidInputError: "correct the setting or the input it names",
    NotAuthenticatedError: "check the sidecar's credentials for the brokers",
    NotAuthorizedError: "grant the sidecar's role this operation",
    NotFoundError: "check the name",
    PermanentError: "trying again changes nothing",
    TemporaryError: "try again",
    UnreachableError: "check that it is running and reachable",
}
