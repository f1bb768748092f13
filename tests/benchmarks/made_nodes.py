"""Nodes made in a living ZooKeeper, and the number of requests that it has had."""

import re
import socket
from collections.abc import Iterable
from itertools import islice

from kazoo.client import KazooClient
from pulsar_sidecar.adapters.zookeeper.addressing import parse_metadata_store_url

_CREATES = 500


def make_nodes(metadata_store_url: str, nodes: Iterable[tuple[str, bytes]]) -> None:
    """Create the nodes, and the missing parents of each."""
    kazoo = KazooClient(parse_metadata_store_url(metadata_store_url).hosts)
    kazoo.start()
    made: set[str] = set()
    left = iter(nodes)
    try:
        while some := list(islice(left, _CREATES)):
            transaction = kazoo.transaction()
            for path, data in some:
                parent = path.rpartition("/")[0]
                if parent not in made:
                    kazoo.ensure_path(parent)
                transaction.create(path, data)
                made |= {parent, path}
            failed = [each for each in transaction.commit() if not isinstance(each, str)]
            if failed:
                raise RuntimeError(f"the nodes could not be made: {failed[0]!r}")
    finally:
        kazoo.stop()
        kazoo.close()


def requests_to(metadata_store_url: str) -> int:
    """Return the number of packets that the server has received, this question's included."""
    host, _, port = parse_metadata_store_url(metadata_store_url).servers[0].rpartition(":")
    with socket.create_connection((host, int(port)), 10) as connection:
        connection.sendall(b"srvr")
        with connection.makefile("rb") as answer:
            found = re.search(rb"Received: ([0-9]+)", answer.read())
    assert found is not None
    return int(found[1])
