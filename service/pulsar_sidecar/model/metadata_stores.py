"""Metadata stores that brokers can have, with advice for users of those that the sidecar cannot read."""

from typing import Final

ETCD: Final = "etcd:"
STANDALONE: Final = "PULSAR_STANDALONE_USE_ZOOKEEPER=1 bin/pulsar standalone"
WHERE_TO_FIND_IT: Final = (
    "it is the brokers' own metadataStoreUrl, in broker.conf; `pulsar standalone` has one that others can read "
    f"if it is started as {STANDALONE}: zk:localhost:2181"
)
_ONLY_TWO: Final = "the sidecar supports only clusters that keep their metadata in ZooKeeper or etcd"
_START_AGAIN: Final = f"start it as {STANDALONE}, which starts with no data, and give zk:localhost:2181"
_ADVICE: Final = {
    "rocksdb": f"RocksDB, the default of `pulsar standalone`, can be read by its own process only; {_START_AGAIN}; "
    "or stop it and audit a copy of its files: pulsar-sidecar metadata dump --source rocksdb-copy:DIRECTORY",
    "memory": f"a store in memory can be read by its own process only; for `pulsar standalone`, {_START_AGAIN}",
    "oxia": f"Oxia is not supported; {_ONLY_TWO}, so leave this one to its brokers",
}


def unsupported_store(url: str) -> str | None:
    """Return the advice for the store that a URL names; None for ZooKeeper, etcd, and a store that is not Pulsar's."""
    scheme, _, _ = url.strip().partition(":")
    return _ADVICE.get(scheme.lower()) if ":" in url else None


def is_etcd(url: str) -> bool:
    """Return True if a ``metadataStoreUrl`` names etcd."""
    return url.strip().startswith(ETCD)
