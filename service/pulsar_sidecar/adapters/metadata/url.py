"""Pulsar's ``metadataStoreUrl``, read as Pulsar reads it.

Invariant: a URL either names ZooKeeper servers completely, or is refused with a text that says what is supported;
a store we have no driver for is never mistaken for a ZooKeeper host name.
"""

import re
from dataclasses import dataclass

from pulsar_sidecar.adapters.metadata.limits import check_path
from pulsar_sidecar.model.errors import InvalidInputError

DEFAULT_PORT = 2181
_SCHEME = "zk:"
_OTHER_STORES = ("etcd:", "oxia:", "rocksdb:", "memory:")
_SERVER = re.compile(r"(?P<host>\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(:(?P<port>[0-9]{1,5}))?")
_FORM = "zk:host:port[,host:port...][/chroot]"


@dataclass(frozen=True, slots=True)
class ZooKeeperUrl:
    """The servers, each ``host:port``, and the path below which the cluster keeps its nodes ("" for the root)."""

    servers: tuple[str, ...]
    chroot: str

    @property
    def hosts(self) -> str:
        """ZooKeeper's own connect string."""
        return ",".join(self.servers) + self.chroot


def parse_metadata_store_url(url: str) -> ZooKeeperUrl:
    """Read ``zk:host:port[,host:port...][/chroot]``, or the same without ``zk:``.

    The choice of the store is that of Pulsar's ``MetadataStoreFactoryImpl.findProvider``: by the scheme, and ZooKeeper
    when no scheme is known.

    Raises:
        InvalidInputError: another store, or a malformed URL.
    """
    text = url.strip()
    for scheme in _OTHER_STORES:
        if text.startswith(scheme):
            raise InvalidInputError(
                f"the metadata store {scheme}... is not supported; ZooKeeper is the only one so far, given as {_FORM}"
            )
    if "://" in text or "@" in text:
        raise InvalidInputError(f"the metadata store's URL has an unknown form; give it as {_FORM}")
    servers, slash, rest = text.removeprefix(_SCHEME).partition("/")
    return ZooKeeperUrl(tuple(_server(server.strip()) for server in servers.split(",")), _chroot(slash + rest))


def _server(text: str) -> str:
    match = _SERVER.fullmatch(text)
    if match is None:
        raise InvalidInputError(f"{text!r} is not a host and port; give the metadata store's URL as {_FORM}")
    port = int(match["port"] or DEFAULT_PORT)
    if not 0 < port < 2**16:
        raise InvalidInputError(f"{port} is not a port; give the metadata store's URL as {_FORM}")
    return f"{match['host']}:{port}"


def _chroot(path: str) -> str:
    chroot = path.rstrip("/")
    if chroot:
        check_path(chroot)
    return chroot
