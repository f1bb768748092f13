"""The metadata stores that brokers can have and the sidecar cannot read, and what their users do about it."""

from typing import Final

STANDALONE: Final = "PULSAR_STANDALONE_USE_ZOOKEEPER=1 bin/pulsar standalone"
WHERE_TO_FIND_IT: Final = (
    "it is the brokers' own metadataStoreUrl, in broker.conf; `pulsar standalone` has one that others can read "
    f"if it is started as {STANDALONE}: zk:localhost:2181"
)
_ONLY_ZOOKEEPER: Final = "the sidecar works only for clusters that keep their metadata in ZooKeeper"
_START_AGAIN: Final = f"start it as {STANDALONE}, which begins with no data, and give zk:localhost:2181"
_ADVICE: Final = {
    "rocksdb": f"RocksDB, the default of `pulsar standalone`, can be read by its own process only; {_START_AGAIN}",
    "memory": f"a store in memory can be read by its own process only; for `pulsar standalone`, {_START_AGAIN}",
    "etcd": f"etcd is not supported; {_ONLY_ZOOKEEPER}, so leave this one to its brokers",
    "oxia": f"Oxia is not supported; {_ONLY_ZOOKEEPER}, so leave this one to its brokers",
}


def unsupported_store(url: str) -> str | None:
    """What to do with the store that a URL names; None where it is ZooKeeper, or no store of Pulsar's."""
    scheme, _, _ = url.strip().partition(":")
    return _ADVICE.get(scheme.lower()) if ":" in url else None
