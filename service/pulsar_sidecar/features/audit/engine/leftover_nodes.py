"""Dangling nodes, which deletions leave behind in addition to ledgers.

A first pass over a dump finds suspects; a second one looks for the nodes that they point to. Invariant: the audit
reports a node only if the dump has nothing that the node may point to, and could read every directory where that would
be. A topic that is created or deleted while the dump is taken may look the same, as a missing ledger does.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pulsar_sidecar.features.audit.arrays import Numbers
from pulsar_sidecar.features.audit.results.summaries import LeftoverNode, LeftoverNodes
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.names import PARTITIONED_SUFFIX, PENDING_ACKS_SUFFIX, TopicDomain, topic_of_managed_ledger
from pulsar_sidecar.ownership.paths import MANAGED_LEDGERS, PARTITIONED_TOPICS, SCHEMAS, ledger_path
from pulsar_sidecar.ownership.places import Place, locate, topic_of_schema
from pulsar_sidecar.ownership.references import schema_references
from pulsar_sidecar.reports.schemas import schema_of

PRESENT = schema_of("path string, unreadable boolean")
"""Paths that a dump has, and paths of nodes that could not be read."""
_SYSTEM_NAMESPACE: Final = "pulsar/system"
"""Namespace whose partitioned topics may have no partitions (``transaction_coordinator_assign``)."""
_MARK: Final = r"/underreplication/ledgers/.*/urL[0-9]+$"
_MARKED_LEDGER: Final = re.compile(r"/urL([0-9]+)$")
_PARTITION: Final = rf"{PARTITIONED_SUFFIX}[0-9]+$"


@dataclass(frozen=True, slots=True)
class Suspects:
    """Paths of nodes that point to nothing unless the dump has their targets.

    ``pending_acks`` are managed ledgers of transactions' acknowledgements, ``marks`` auto-recovery's of ledgers that
    lack copies; of ``schemas`` all ledgers are missing.
    """

    ledgers_root: str
    schemas: Sequence[str] = ()
    partitioned_topics: Sequence[str] = ()
    pending_acks: Sequence[str] = ()
    marks: Sequence[str] = ()

    @property
    def topics(self) -> pa.Array:
        """Paths of the managed ledgers to look for; one that is found with a partition's suffix counts, too."""
        return pa.array(
            [*map(_managed_ledger, self.partitioned_topics), *chain.from_iterable(map(_owners, self.pending_acks))]
        )

    @property
    def ledgers(self) -> pa.Array:
        return pa.array([self._marked(path) for path in self.marks], pa.string())

    def without(self, present: Iterable[pa.RecordBatch]) -> LeftoverNodes:
        """Return the suspects that point to nothing, given the `PRESENT` of `topics` and `ledgers`."""
        rows = [row for batch in present for row in batch.to_pylist()]
        there, unread = ({row["path"] for row in rows if bool(row["unreadable"]) is one} for one in (False, True))

        def lacks(paths: Iterable[str]) -> bool:
            return not any(path in there or _is_below(path, unread) for path in paths)

        nodes = [
            *map(_schema, self.schemas),
            *(_partitioned_topic(path) for path in self.partitioned_topics if lacks([_managed_ledger(path)])),
            *(_pending_acks(path) for path in self.pending_acks if lacks(_owners(path))),
            *(_mark(path) for path in self.marks if lacks([self._marked(path)])),
        ]
        return LeftoverNodes.of(nodes)

    def _marked(self, path: str) -> str:
        return ledger_path(LedgerId(_ledger_id(path)), self.ledgers_root)


def _is_below(path: str, directories: Collection[str]) -> bool:
    parts = path.split("/")
    return any("/".join(parts[:end]) in directories for end in range(2, len(parts)))


# --- the first pass ------------------------------------------------------------------------------------------------


def partitioned_topics(paths: Iterable[str]) -> Iterator[str]:
    """Yield the nodes below ``/admin/partitioned-topics`` whose topics have managed ledgers from their creation on."""
    for path in paths:
        topic = topic_of_managed_ledger(path.removeprefix(f"{PARTITIONED_TOPICS}/"))
        if topic is not None and topic.domain is TopicDomain.PERSISTENT and topic.namespace != _SYSTEM_NAMESPACE:
            yield path


def pending_acks(paths: pa.Array) -> list[str]:
    named_so = paths.filter(pc.ends_with(paths, PENDING_ACKS_SUFFIX)).to_pylist()
    return [path for path in named_so if locate(path).place is Place.MANAGED_LEDGER]


def under_replication_marks(nodes: pa.RecordBatch) -> list[str]:
    paths = nodes.column("path")
    return list(paths.filter(pc.match_substring_regex(paths, _MARK)).to_pylist())


def schemas_without_ledgers(wanted: Sequence[str], gone: Numbers, nodes: pa.RecordBatch) -> list[str]:
    """Return the nodes of the wanted schemas that name only missing ledgers."""
    chosen = nodes.filter(pc.is_in(nodes.column("path"), value_set=pa.array(wanted, pa.string())))
    rows = [row for row in chosen.select(["path", "value"]).to_pylist() if row["value"]]
    return [row["path"] for row in rows if np.isin(sorted(schema_references(row["value"])), gone).all()]


# --- the second pass -----------------------------------------------------------------------------------------------


def present_paths(wanted: pa.Array, nodes: pa.RecordBatch) -> pa.RecordBatch:
    """Return `PRESENT` of these paths, with and without a partition's suffix, among nodes."""
    paths = nodes.column("path")
    partitions = paths.filter(pc.match_substring(paths, PARTITIONED_SUFFIX))
    both = pa.concat_arrays([paths, pc.replace_substring_regex(partitions, _PARTITION, "")])
    # A topic with many partitions counts once.
    found = sorted(set(both.filter(pc.is_in(both, value_set=wanted)).to_pylist()))
    unread = paths.filter(pc.is_valid(nodes.column("unreadable"))).to_pylist()
    flags = [False] * len(found) + [True] * len(unread)
    return pa.RecordBatch.from_pydict({"path": [*found, *unread], "unreadable": flags}, schema=PRESENT)


def _managed_ledger(partitioned_topic: str) -> str:
    return f"{MANAGED_LEDGERS}/{partitioned_topic.removeprefix(f'{PARTITIONED_TOPICS}/')}"


def _owners(pending_ack: str) -> Iterator[str]:
    """Yield every managed ledger whose topic may own it: ``<topic>-<subscription>``, and both may have dashes."""
    stem = pending_ack.removesuffix(PENDING_ACKS_SUFFIX)
    first = stem.rindex("/") + 1
    return (stem[:end] for end in range(first + 1, len(stem)) if stem[end] == "-")


def _ledger_id(mark: str) -> int:
    found = _MARKED_LEDGER.search(mark)
    assert found is not None
    return int(found[1])


# --- descriptions --------------------------------------------------------------------------------------------------


def _schema(path: str) -> LeftoverNode:
    topic = topic_of_schema(path.removeprefix(f"{SCHEMAS}/"))
    why = "a schema whose ledgers are all gone: brokers answer 500 to requests for it"
    return LeftoverNode("schema", path, why, f"pulsar-admin schemas delete --force {topic or 'TOPIC'}")


def _partitioned_topic(path: str) -> LeftoverNode:
    topic = topic_of_managed_ledger(path.removeprefix(f"{PARTITIONED_TOPICS}/"))
    why = "a topic without any of its partitions: it was half deleted, or all of them were inactive"
    return LeftoverNode("partitioned-topic", path, why, f"pulsar-sidecar topics delete --partitioned {topic}")


def _pending_acks(path: str) -> LeftoverNode:
    topic = topic_of_managed_ledger(path.removeprefix(f"{MANAGED_LEDGERS}/"))
    why = "pending acknowledgements of transactions of a topic that does not exist; its ledgers count as referenced"
    return LeftoverNode("pending-acks", path, why, f"pulsar-sidecar topics delete {topic or 'NAME'}")


def _mark(path: str) -> LeftoverNode:
    why = f"auto-recovery's mark of ledger {_ledger_id(path)}, which does not exist"
    return LeftoverNode("under-replication", path, why, "let auto-recovery run: bookkeeper shell autorecovery -enable")
