"""Bookies' addresses: from their ids, or from the endpoints that they registered in the metadata store."""

import re
from typing import NamedTuple

from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.ids import BookieId
from pulsar_sidecar.model.metadata import MetadataStore, Node
from pulsar_sidecar.ownership.exact_decoding import decode_exactly, exact_text
from pulsar_sidecar.ownership.paths import DEFAULT_LEDGERS_ROOT, available_bookies_path, bookie_registration_paths
from pulsar_sidecar.protobuf import DataFormats_pb2 as bookkeeper

_PORT = re.compile(r"[0-9]{1,5}")
_LAST_PORT = 65535


def bookie_address(
    bookie: BookieId, store: MetadataStore | None, ledgers_root: str = DEFAULT_LEDGERS_ROOT
) -> tuple[str, int]:
    """Return the host and port of the bookie with this id (``DefaultBookieAddressResolver``).

    By default the id is the address. A bookie with an id of its own registers its endpoints in the metadata store, and
    moves when it restarts elsewhere; so every new connection looks the address up.

    Raises:
        TemporaryError: the bookie is not registered now, or the store cannot be read.
    """
    host, _, port = bookie.rpartition(":")
    if host and _PORT.fullmatch(port) and 0 < int(port) <= _LAST_PORT:
        return host, int(port)
    if store is None or "/" in bookie:
        raise TemporaryError(f"bookie id {bookie!r:.200} is not a host:port, and no metadata store is given")
    for node in store.read_many(bookie_registration_paths(bookie, ledgers_root)):
        if node is None:
            continue
        for endpoint in endpoints_of(node):
            if endpoint.protocol == "bookie-rpc":
                return endpoint.host, endpoint.port
        folder = available_bookies_path(ledgers_root)
        raise TemporaryError(f"bookie {bookie} registered no bookie-rpc endpoint; check its node below {folder}")
    raise TemporaryError(f"bookie {bookie} is not registered; it may be down, try again")


class Endpoint(NamedTuple):
    """Address at which a bookie serves a protocol."""

    protocol: str
    host: str
    port: int


def endpoints_of(node: Node) -> list[Endpoint]:
    """Return the endpoints in a bookie's node below ``available``; none from an empty node, as of older bookies."""
    found = decode_exactly(bookkeeper.BookieServiceInfoFormat, node.data).endpoints
    return [Endpoint(exact_text(each.protocol), exact_text(each.host), each.port) for each in found]
