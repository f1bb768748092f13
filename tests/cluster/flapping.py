"""Bookies that register and withdraw for ever, after ZooKeeper was away for nearly as long as their session lasts.

Pulsar's metadata driver (4.0.8) gives a session up five sixths of its timeout after the connection broke. Where
ZooKeeper comes back just then and still has the session, ``ResourceLockImpl`` takes its own node for another's: it
deletes and makes it again, hundreds of times a second, and each deletion is the reason for the next. The bookies burn a
processor, and brokers find "not enough non-faulty bookies" from then on. Only a restart ends it, so tests do what an
operator would.
"""

import time
from itertools import pairwise

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError
from pulsar_sidecar.adapters.metadata.addressing import parse_metadata_store_url
from pulsar_sidecar.ledger_ownership.paths import DEFAULT_LEDGERS_ROOT

from tests.cluster.running import ClusterUnderTest

_REGISTRATIONS = f"{DEFAULT_LEDGERS_ROOT}/available"
_LOOKS = 15
_PAUSE_SECONDS = 0.2
_MOST_CHANGES = 4
"""A bookie whose session ended registers once; one that flaps is another one at nearly every look."""


def end_flapping(cluster: ClusterUnderTest) -> None:
    """Start the bookies again if they flap; for a test beside which no other starts members."""
    if bookies_flap(cluster.addresses.metadata_store_url):
        for member in cluster.addresses.members:
            if member.startswith("bookie-"):
                cluster.restart(member)


def bookies_flap(metadata_store_url: str) -> bool:
    """Whether any bookie's registration keeps changing; takes three seconds to be sure."""
    client = KazooClient(parse_metadata_store_url(metadata_store_url).hosts)
    client.start()
    try:
        seen: list[frozenset[tuple[str, int]]] = []
        for _ in range(_LOOKS):
            seen.append(_registrations(client))
            time.sleep(_PAUSE_SECONDS)
    finally:
        client.stop()
        client.close()
    return sum(before != after for before, after in pairwise(seen)) > _MOST_CHANGES


def _registrations(client: KazooClient) -> frozenset[tuple[str, int]]:
    """Each registered bookie with its registration's order of creation."""
    found = set()
    for name in client.get_children_async(_REGISTRATIONS, include_data=True).get()[0]:
        try:
            found.add((name, client.get_async(f"{_REGISTRATIONS}/{name}").get()[1].czxid))
        except NoNodeError:
            found.add((name, 0))
    return frozenset(found)
