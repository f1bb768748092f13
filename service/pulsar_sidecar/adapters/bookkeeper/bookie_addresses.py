"""Where a bookie listens, given the id under which ledgers name it.

By default the id is the address (``host:port``). A bookie with an id of its own registers its endpoints in the
metadata store, and moves when it restarts elsewhere; so an address is looked up whenever a connection is made.
"""

import re
from typing import NamedTuple

from pulsar_sidecar.ledger_ownership.exact_decoding import decode_exactly, exact_text
from pulsar_sidecar.ledger_ownership.paths import DEFAULT_LEDGERS_ROOT
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.ids import BookieId
from pulsar_sidecar.model.metadata import MetadataStore
from pulsar_sidecar.wire import DataFormats_pb2 as bookkeeper

_BOOKIE_RPC = "bookie-rpc"
_PORT = re.compile(r"[0-9]{1,5}")
_LAST_PORT = 65535


class BookieAddress(NamedTuple):
    """Host and port of a bookie's own protocol."""

    host: str
    port: int


class RegisteredBookies:
    """Bookies as they registered themselves (``DefaultBookieAddressResolver``).

    Without a store only ids that are addresses can be found.
    """

    def __init__(self, store: MetadataStore | None = None, ledgers_root: str = DEFAULT_LEDGERS_ROOT) -> None:
        self._store = store
        self._root = ledgers_root

    def address(self, bookie: BookieId) -> BookieAddress:
        """Where to connect to.

        Raises:
            TemporaryError: the bookie is not registered now, or the store cannot be asked.
        """
        return _address_in_id(bookie) or self._registered(bookie)

    def _registered(self, bookie: BookieId) -> BookieAddress:
        if self._store is None or "/" in bookie:
            raise TemporaryError(f"bookie id {bookie!r:.200} is no host:port, and there is no registry to ask")
        folder = f"{self._root}/available"
        for node in self._store.read_many([f"{folder}/{bookie}", f"{folder}/readonly/{bookie}"]):
            if node is not None:
                return _rpc_endpoint(bookie, node.data)
        raise TemporaryError(f"bookie {bookie} is not registered; it may be down, try again")


def _address_in_id(bookie: BookieId) -> BookieAddress | None:
    host, _, port = bookie.rpartition(":")
    if not host or not _PORT.fullmatch(port) or not 0 < int(port) <= _LAST_PORT:
        return None
    return BookieAddress(host, int(port))


def _rpc_endpoint(bookie: BookieId, data: bytes) -> BookieAddress:
    for endpoint in decode_exactly(bookkeeper.BookieServiceInfoFormat, data).endpoints:
        if endpoint.protocol == _BOOKIE_RPC:
            return BookieAddress(exact_text(endpoint.host), endpoint.port)
    raise TemporaryError(f"bookie {bookie} registered no {_BOOKIE_RPC} endpoint; look at its node")
