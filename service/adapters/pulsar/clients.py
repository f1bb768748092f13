"""Opens the Pulsar client with the sidecar's identity, and keeps its logging in the process's own logs.

Invariant: one client per process; whoever opens it closes it before the interpreter ends, because the C++ client's
threads call back into Python.
"""

import logging
from collections.abc import Sequence

import pulsar

from service.adapters.pulsar.credentials import ClientCredentials, TlsOptions
from service.adapters.pulsar.errors import translated

_LOGGER = logging.getLogger("service.adapters.pulsar.client")


def open_client(
    broker_service_url: str,
    credentials: ClientCredentials | None = None,
    tls: TlsOptions | None = None,
    *,
    operation_timeout_seconds: int = 30,
    connection_timeout_ms: int = 10_000,
) -> pulsar.Client:
    """A client for ``pulsar://host:port[,host:port]`` or ``pulsar+ssl://...``; it connects on first use.

    The C++ client's lines of WARNING and above go to the logger ``service.adapters.pulsar.client``.

    Raises:
        InvalidInputError: the URL is none of the binary protocol.
    """
    known = credentials or ClientCredentials()
    options = tls or TlsOptions()
    if _LOGGER.level == logging.NOTSET:
        _LOGGER.setLevel(logging.WARNING)
    with translated(f"opening the broker service URL {broker_service_url}"):
        return pulsar.Client(
            broker_service_url,
            known.client_authentication(),
            operation_timeout_seconds=operation_timeout_seconds,
            connection_timeout_ms=connection_timeout_ms,
            stats_interval_in_seconds=0,
            tls_trust_certs_file_path=None if options.trust_certs_file is None else str(options.trust_certs_file),
            tls_allow_insecure_connection=options.allow_insecure_connection,
            tls_validate_hostname=options.hostname_verification,
            logger=_LOGGER,
        )


def partitions_of(client: pulsar.Client, topic: str) -> Sequence[str]:
    """The partitions' URIs, or the topic itself when it has none."""
    with translated(f"asking for the partitions of {topic}"):
        return client.get_topic_partitions(topic)
