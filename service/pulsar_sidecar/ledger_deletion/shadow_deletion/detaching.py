"""How the nodes of a shadow topic look once no broker can reach the source's ledgers through them.

A detached managed ledger lists no ledger, and the topic's source is one that does not exist, so a broker that loads the
topic finds nothing to list again and gives up. Cursors stay: they are the shadow's own, and the broker deletes them.
"""

import json

from pulsar_sidecar.ledger_ownership.compression import unwrap
from pulsar_sidecar.ledger_ownership.exact_decoding import decode_exactly
from pulsar_sidecar.ledger_ownership.shadows import SHADOW_SOURCE, partitioned_topic_shadow_source
from pulsar_sidecar.wire import MLDataFormats_pb2 as ml


def is_detached(data: bytes, no_source: str, *, spells_source: bool) -> bool:
    """Whether a ``ManagedLedgerInfo`` node leads to no ledger of a source.

    ``spells_source`` is False for a partition, whose source stands in the partitioned topic's node.
    """
    info = decode_exactly(ml.ManagedLedgerInfo, unwrap(data))
    sources = {pair.value for pair in info.properties if pair.key == SHADOW_SOURCE}
    return not info.ledgerInfo and sources <= {no_source} and (bool(sources) or not spells_source)


def detached(data: bytes, no_source: str, *, spells_source: bool) -> bytes:
    """The node without ledgers, and with a source that does not exist."""
    info = decode_exactly(ml.ManagedLedgerInfo, unwrap(data))
    info.ClearField("ledgerInfo")
    info.ClearField("terminatedPosition")
    kept = [(pair.key, pair.value) for pair in info.properties if pair.key != SHADOW_SOURCE]
    if spells_source or len(kept) < len(info.properties):
        kept.append((SHADOW_SOURCE, no_source))
    info.ClearField("properties")
    for key, value in kept:
        info.properties.add(key=key, value=value)
    return info.SerializeToString()


def is_partitioned_topic_detached(data: bytes, no_source: str) -> bool:
    """Whether a node below ``/admin/partitioned-topics`` names the source that does not exist."""
    return partitioned_topic_shadow_source(data) == no_source


def detached_partitioned_topic(data: bytes, no_source: str) -> bytes:
    """The node with a source that does not exist; its other fields stay as they are."""
    document = json.loads(data)
    properties = document.get("properties") or {}
    return json.dumps({**document, "properties": {**properties, SHADOW_SOURCE: no_source}}).encode()
