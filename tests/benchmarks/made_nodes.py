"""Nodes made in a living ZooKeeper, and the number of requests that it has had."""

import re
import socket
from collections.abc import Iterable
from itertools import islice

from kazoo.client import KazooClient
from pulsar_sidecar.adapters.zookeeper.addressing import parse_metadata_store_url

from tests.cluster.orphans import create_nodes

_CREATES = 500


def make_nodes(metadata_store_url: str, nodes: Iterable[tuple[str, bytes]]) -> None:
    """Create the nodes, and the missing parents of each."""
    kazoo = KazooClient(parse_metadata_store_url(metadata_store_url).hosts)
    kazoo.start()
    made: set[str] = set()
    left = iter(nodes)
    try:
        while some := list(islice(left, _CREATES)):
            for path, _ in some:
                parent = path.rpartition("/")[0]
                if parent not in made:
                    kazoo.ensure_path(parent)
                made |= {parent, path}
            create_nodes(kazoo, some)
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
