"""What ZooKeeper is asked for: Pulsar's ``metadataStoreUrl`` and credential, and the paths and data of requests.

Invariants: a URL either names ZooKeeper servers completely, or is refused with a text that names what is supported; a
store we have no driver for is never mistaken for a ZooKeeper host name. Nothing is sent that would break the connection
all callers share (a path that cannot be encoded, a request over the server's ``jute.maxbuffer``), that ZooKeeper would
answer with a misleading "no node" (a malformed path), or that it would take as unconditional (version -1).
"""

import re
import ssl
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from pulsar_sidecar.analysis.formatting import format_count
from pulsar_sidecar.model.errors import InvalidInputError
from pulsar_sidecar.model.file_urls import content_of
from pulsar_sidecar.model.ids import NodeVersion
from pulsar_sidecar.model.metadata import GuardedDeletion
from pulsar_sidecar.model.metadata_stores import unsupported_store
from pulsar_sidecar.model.tls import load_certificate, trusting

DEFAULT_PORT = 2181
_SERVER = re.compile(r"(?P<host>\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(:(?P<port>[0-9]{1,5}))?")
_FORM = "zk:host:port[,host:port...][/chroot]"

_MAX_PATH_BYTES = 32 * 1024
_MAX_REQUEST_BYTES = 10_485_760
"""``jute.maxbuffer`` as Pulsar's own scripts set it; a larger request makes the server drop the connection."""
_REQUEST_OVERHEAD_BYTES = 1024
_ANY_VERSION = -1
_SASL = "sasl"
# The characters that org.apache.zookeeper.common.PathUtils refuses.
_REFUSED_CHARACTERS = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\U0010ffff]")
_REFUSED_PARTS = re.compile(r"//|/\.{1,2}(/|$)|/$")


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
    """Read ``zk:host:port[,host:port...][/chroot]``, or the same with ``zk://`` or without ``zk:``.

    The choice of the store is that of Pulsar's ``MetadataStoreFactoryImpl.findProvider``: by the scheme, and ZooKeeper
    when no scheme is known.

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


@dataclass(frozen=True, slots=True)
class ZooKeeperCredential:
    """What ``addauth`` takes, for example scheme ``digest`` and ``user:password``; or, as scheme ``sasl``, a login."""

    scheme: str
    secret: str = field(repr=False)

    @property
    def sasl(self) -> tuple[str, str] | None:
        """User and password for SASL's DIGEST-MD5, where that is the scheme."""
        user, _, password = self.secret.partition(":")
        return (user, password) if self.scheme == _SASL else None


@dataclass(frozen=True, slots=True)
class ZooKeeperTls:
    """How connections to ZooKeeper are secured: PEM files of trusted authorities, and of the client's certificate."""

    trusted: Path
    certificate: Path | None = None
    key: Path | None = None

    def context(self) -> ssl.SSLContext:
        """For one connection; `InvalidInputError` if a file cannot be used."""
        context = trusting(self.trusted)
        if self.certificate is not None and self.key is not None:
            load_certificate(context, self.certificate, self.key)
        return context


def parse_credential(text: str | None) -> ZooKeeperCredential | None:
    """The setting ``metadataStoreAuth``: ``scheme:credential``, or ``file:`` and where that stands; None for none.

    Raises:
        InvalidInputError: it is not written so, or the file cannot be read; the message does not repeat it.
    """
    if text is None:
        return None
    scheme, colon, secret = content_of(text, "metadataStoreAuth").partition(":")
    if not colon or not secret or (scheme == _SASL and ":" not in secret):
        raise InvalidInputError(
            "metadataStoreAuth must be scheme:credential, such as digest:user:password or sasl:user:password, or "
            "file:///path of a file with that"
        )
    return ZooKeeperCredential(scheme, secret)


def check_path(path: str) -> None:
    """Refuse what ZooKeeper does not accept as the path of a node.

    Raises:
        InvalidInputError: not absolute, an empty or relative part, a control character, or too long.
    """
    if path == "/":
        return
    if not path.startswith("/") or _REFUSED_PARTS.search(path) or _REFUSED_CHARACTERS.search(path):
        raise InvalidInputError(f"{path[:100]!r} is not a path of the metadata store")
    if len(path.encode()) > _MAX_PATH_BYTES:
        raise InvalidInputError(f"{path[:100]!r}... is longer than {_MAX_PATH_BYTES} bytes; no such node can exist")


def check_version(version: NodeVersion) -> None:
    """Refuse versions that no node has; -1 above all, which ZooKeeper reads as "whatever it is"."""
    if version == _ANY_VERSION or not -(2**31) <= version < 2**31:
        raise InvalidInputError(f"{version} is not a version that a node can have; read the node and use its version")


def check_data(path: str, data: bytes) -> None:
    """Refuse a node that does not fit into one request."""
    check_path(path)
    if len(data) + len(path.encode()) + _REQUEST_OVERHEAD_BYTES > _MAX_REQUEST_BYTES:
        raise InvalidInputError(
            f"{format_count(len(data), 'byte')} for {path} are more than ZooKeeper takes in one request (10 MB)"
        )


def check_removable(path: str) -> None:
    """Refuse what is no node of ours to delete."""
    check_path(path)
    if path == "/":
        raise InvalidInputError("the root of the metadata store cannot be deleted")


def check_deletions(deletions: Iterable[GuardedDeletion]) -> None:
    """Apply `check_path` and `check_version` to the nodes and the guards of every deletion."""
    for deletion in deletions:
        check_removable(deletion.path)
        check_version(deletion.version)
        for guard in deletion.guards:
            check_path(guard.path)
            check_version(guard.version)
