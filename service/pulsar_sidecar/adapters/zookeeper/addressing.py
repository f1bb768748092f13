"""ZooKeeper's addresses in Pulsar's ``metadataStoreUrl``.

Invariant: a URL either names ZooKeeper servers completely, or is refused with a message that names the supported
forms; a store without a driver is never mistaken for a ZooKeeper host name.
"""

import re
from dataclasses import dataclass

from pulsar_sidecar.adapters.metadata_requests import check_path
from pulsar_sidecar.model.errors import InvalidInputError
from pulsar_sidecar.model.metadata_stores import unsupported_store

DEFAULT_PORT = 2181
_SERVER = re.compile(r"(?P<host>\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(:(?P<port>[0-9]{1,5}))?")
_FORM = "zk:host:port[,host:port...][/chroot]"


@dataclass(frozen=True, slots=True)
class ZooKeeperUrl:
    """The servers, each ``host:port``, and the path below which the cluster keeps its nodes ("" for the root)."""

    servers: tuple[str, ...]
    chroot: str

    @property
    def hosts(self) -> str:
        """Connect string of ZooKeeper."""
        return ",".join(self.servers) + self.chroot


def parse_metadata_store_url(url: str) -> ZooKeeperUrl:
    """Read ``zk:host:port[,host:port...][/chroot]``, or the same with ``zk://`` or without ``zk:``.

    The store is chosen as in Pulsar's ``MetadataStoreFactoryImpl.findProvider``: by the scheme, and ZooKeeper for an
    unknown one.

    Raises:
        InvalidInputError: another store, or a malformed URL.
    """
    text = url.strip()
    if (advice := unsupported_store(text)) is not None:
        raise InvalidInputError(f"{text!r:.200}: {advice}")
    text = text.removeprefix("zk://")
    if "://" in text or "@" in text:
        raise InvalidInputError(f"the metadata store's URL has an unknown form; give it as {_FORM}")
    servers, slash, rest = text.removeprefix("zk:").partition("/")
    chroot = (slash + rest).rstrip("/")
    if chroot:
        check_path(chroot)
    return ZooKeeperUrl(tuple(_server(server.strip()) for server in servers.split(",")), chroot)


def _server(text: str) -> str:
    match = _SERVER.fullmatch(text)
    if match is None:
        raise InvalidInputError(f"{text!r} is not a host and port; give the metadata store's URL as {_FORM}")
    port = int(match["port"] or DEFAULT_PORT)
    if not 0 < port < 2**16:
        raise InvalidInputError(f"{port} is not a port; give the metadata store's URL as {_FORM}")
    return f"{match['host']}:{port}"
