"""Measure the ZooKeeper driver against plain kazoo: ``python -m tests.benchmarks.metadata_store zk:host:port``.

Works below a node of its own that it removes again. Figures of a store that others use at the same time mean little.
"""

import argparse
import secrets
import statistics
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from kazoo.client import KazooClient
from kazoo.handlers.threading import AsyncResult
from pulsar_sidecar.adapters.zookeeper.addressing import parse_metadata_store_url
from pulsar_sidecar.adapters.zookeeper.zookeeper import ZooKeeperMetadataStore
from pulsar_sidecar.model.clocks import SystemClock
from pulsar_sidecar.model.ids import NodeVersion
from pulsar_sidecar.model.metadata import DeletionResult, Guard, GuardedDeletion

_T = TypeVar("_T")
_WINDOW = 500
_LEDGER_METADATA_BYTES = 220
_CLOCK = SystemClock()


def main() -> None:
    arguments = _arguments()
    hosts = parse_metadata_store_url(arguments.url).hosts
    root = f"/pulsar-sidecar-benchmark-{secrets.token_hex(4)}"
    kazoo = KazooClient(hosts)
    kazoo.start()
    try:
        with ZooKeeperMetadataStore(arguments.url, _CLOCK) as store:
            store.create(root, b"")
            for name, rates in _measure(store, kazoo, root, arguments.nodes, arguments.rounds):
                _show(name, rates)
    finally:
        kazoo.delete(root, recursive=True)
        kazoo.stop()
        kazoo.close()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", help="zk:host:port[/chroot]")
    parser.add_argument("--nodes", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args()


def _measure(
    store: ZooKeeperMetadataStore, kazoo: KazooClient, root: str, count: int, rounds: int
) -> Iterator[tuple[str, list[float]]]:
    paths = [f"{root}/L{number:010d}" for number in range(count)]
    guard = Guard(root, NodeVersion(0))
    for gone in (0, 100, 2):
        label = "guarded multi delete" + (f", 1 in {gone} gone" if gone else "")
        deletions = [GuardedDeletion(path, NodeVersion(0), (guard,)) for path in paths]
        yield label, [_deletion_rate(store, kazoo, paths, deletions, gone) for _ in range(rounds)]
    rates = []
    for _ in range(rounds):
        _fill(kazoo, paths)
        rates.append(_rate(count, lambda: _pipelined(paths, kazoo.delete_async)))
    yield f"kazoo delete_async, window {_WINDOW}", rates
    _fill(kazoo, paths)
    yield "multi-read", [_rate(count, lambda: store.read_many(paths)) for _ in range(rounds)]
    yield (
        f"kazoo get_async, window {_WINDOW}",
        [_rate(count, lambda: _pipelined(paths, kazoo.get_async)) for _ in range(rounds)],
    )


def _deletion_rate(
    store: ZooKeeperMetadataStore,
    kazoo: KazooClient,
    paths: Sequence[str],
    deletions: Sequence[GuardedDeletion],
    gone: int,
) -> float:
    _fill(kazoo, paths)
    if gone:
        _pipelined(paths[::gone], kazoo.delete_async)
    results: list[DeletionResult] = []
    rate = _rate(len(paths), lambda: results.extend(store.delete_many(deletions)))
    expected = len(paths[::gone]) if gone else 0
    if results.count(DeletionResult.GONE) != expected or DeletionResult.DELETED not in results:
        sys.exit("the deletions did not do what they should; the figures would be worthless")
    return rate


def _fill(kazoo: KazooClient, paths: Sequence[str]) -> None:
    data = b"x" * _LEDGER_METADATA_BYTES
    for start in range(0, len(paths), _WINDOW):
        transaction = kazoo.transaction()
        for path in paths[start : start + _WINDOW]:
            transaction.create(path, data)
        if not all(isinstance(answer, str) for answer in transaction.commit_async().get()):
            sys.exit("the nodes to measure with could not be created")


def _pipelined(paths: Sequence[str], call: "Callable[[str], AsyncResult[_T]]") -> None:
    in_flight: deque[AsyncResult[_T]] = deque()
    for path in paths:
        if len(in_flight) >= _WINDOW:
            in_flight.popleft().get()
        in_flight.append(call(path))
    for result in in_flight:
        result.get()


def _rate(count: int, work: Callable[[], object]) -> float:
    started = _CLOCK.monotonic_seconds()
    work()
    return count / (_CLOCK.monotonic_seconds() - started)


def _show(name: str, rates: Sequence[float]) -> None:
    line = f"{name:40} {statistics.median(rates):>12,.0f}/s   (lowest {min(rates):,.0f}, highest {max(rates):,.0f})"
    sys.stdout.write(line + "\n")


if __name__ == "__main__":
    main()
