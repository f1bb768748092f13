"""The tenants that this cluster's policies know: a ledger that claims another one may be another Pulsar cluster's.

Two clusters may keep their ledgers in one BookKeeper, and no ledger says which cluster's it is.
"""

import pyarrow as pa
import pyarrow.compute as pc

_POLICIES = r"^/admin/(policies|local-policies)/[^/]+$"
ALWAYS_KNOWN = frozenset({"pulsar"})
"""Every cluster has it: system topics, and brokers' heartbeats."""


def known_tenants(nodes: pa.RecordBatch) -> list[str]:
    """The tenants that some of `Subtree.ADMIN`'s nodes name; of ``nodes`` only the column ``path`` is looked at.

    Local policies count, since policies may be in a configuration store of their own.
    """
    paths = nodes.column("path")
    named = paths.filter(pc.match_substring_regex(paths, _POLICIES)).to_pylist()
    return [path.rpartition("/")[2] for path in named]


def tenant_of(owner_path: str) -> str:
    """The tenant of a managed ledger, a cursor or a schema, by its node's path."""
    return owner_path.split("/")[2]
