"""Opens the Pulsar client with the sidecar's identity, and keeps its logging in the process's own logs.

Invariant: one client per process; whoever opens it closes it before the interpreter ends, because the C++ client's
threads call back into Python.
"""

import logging
from collections.abc import Sequence

import pulsar

from pulsar_sidecar.adapters.pulsar.credentials import ClientCredentials, TlsOptions, tls_context
from pulsar_sidecar.adapters.pulsar.errors import translated
from pulsar_sidecar.model.errors import InvalidInputError

Client = pulsar.Client
"""The type, for those who hand a client on."""

SHARED = pulsar.ConsumerType.Shared
"""A consumer that shares its subscription, for those who are handed a client."""

_LOGGER = logging.getLogger("pulsar_sidecar.adapters.pulsar.client")
_REPEAT_SECONDS = 30.0
_REMEMBERED_LINES = 1000


class RepetitionFilter(logging.Filter):
    """Logs a repeated line once in 30 seconds: the client repeats itself many times a second while a broker is down."""

    def __init__(self) -> None:
        super().__init__()
        self._shown: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        line = record.getMessage()
        shown = self._shown.get(line)
        if shown is not None and record.created - shown < _REPEAT_SECONDS:
            return False
        if len(self._shown) >= _REMEMBERED_LINES:
            self._shown.clear()
        self._shown[line] = record.created
        return True


_REPEATED = RepetitionFilter()


def open_client(
    broker_service_url: str,
    credentials: ClientCredentials | None = None,
    tls: TlsOptions | None = None,
    *,
    operation_timeout_seconds: int = 15,
    connection_timeout_ms: int = 10_000,
) -> pulsar.Client:
    """A client for ``pulsar://host:port[,host:port]`` or ``pulsar+ssl://...``; it connects on first use.

    The C++ client's lines of WARNING and above go to the logger ``adapters.pulsar.client``, repetitions left
    out. ``operation_timeout_seconds`` is also how long one partition without a broker can hold up a `publish`.

    Raises:
        InvalidInputError: the URL is none of the binary protocol, or a certificate's file cannot be used.
    """
    known = credentials or ClientCredentials()
    options = tls or TlsOptions()
    tls_context(known, options)  # the client itself would try again and again with a file that cannot be used
    if _LOGGER.level == logging.NOTSET:
        _LOGGER.setLevel(logging.WARNING)
    _LOGGER.addFilter(_REPEATED)
    trusted = options.trust_certs_file
    shown = known.shown_certificate(options)
    try:
        return pulsar.Client(
            broker_service_url,
            known.client_authentication(),
            operation_timeout_seconds=operation_timeout_seconds,
            connection_timeout_ms=connection_timeout_ms,
            stats_interval_in_seconds=0,
            tls_trust_certs_file_path=None if trusted is None else str(trusted),
            tls_allow_insecure_connection=options.allow_insecure_connection,
            tls_validate_hostname=options.hostname_verification,
            tls_certificate_file_path=None if shown is None else str(shown.file),
            tls_private_key_file_path=None if shown is None else str(shown.key_file),
            logger=_LOGGER,
        )
    except ValueError as error:
        raise InvalidInputError("the broker service URL cannot be used; write pulsar://host:port") from error


def partitions_of(client: pulsar.Client, topic: str) -> Sequence[str]:
    """The partitions' URIs, or the topic itself when it has none."""
    with translated(f"asking for the partitions of {topic}"):
        return client.get_topic_partitions(topic)
