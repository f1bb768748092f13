"""ZooKeeper's four-letter words: a single server's report of itself, outside of any session."""

import re
import socket
from typing import Final

from pulsar_sidecar.adapters.metadata_access import StoreTls
from pulsar_sidecar.features.doctor.facts import StoreServer
from pulsar_sidecar.model.errors import UnreachableError

_SECONDS: Final = 3.0
_MOST_BYTES: Final = 64 * 1024
_VERSION = re.compile(r"Zookeeper version: ([0-9]+(\.[0-9]+)*)")
_MODE = re.compile(r"Mode: (\w+)")


def zookeeper_server(address: str, tls: StoreTls | None = None) -> StoreServer:
    """Return the report of the server at ``host:port`` (``srvr``, which the default ``4lw.commands.whitelist`` allows).

    Raises:
        UnreachableError: there is no connection to it, or no response in 3 s.
    """
    host, _, port = address.rpartition(":")
    try:
        plain = socket.create_connection((host.strip("[]"), int(port)), _SECONDS)
        with plain if tls is None else tls.context().wrap_socket(plain, server_hostname=host.strip("[]")) as connection:
            connection.sendall(b"srvr")
            with connection.makefile("rb") as answer:
                report = answer.read(_MOST_BYTES).decode(errors="replace")
    except OSError as error:
        raise UnreachableError(str(error)) from error
    version, mode = _VERSION.search(report), _MODE.search(report)
    return StoreServer(version and version[1], mode and mode[1])
