"""Each member's configuration file: the distribution's own, with our settings and the user's written over it.

Invariant: everything listens on the loopback address only, and the user's settings win over ours.
"""

import socket
from collections.abc import Mapping

from pulsar_sidecar.local_cluster.ports import LOOPBACK
from pulsar_sidecar.local_cluster.spec import ClusterSpec

_LOOPBACK_INTERFACES = ("lo", "lo0")


def render(original: str, settings: Mapping[str, str]) -> str:
    """A properties file with settings replaced where they stand, or added at the end.

    A setting that stands commented out is left so and added at the end; a setting that stands twice is replaced twice.
    """
    lines, waiting = [], dict(settings)
    for line in original.splitlines():
        key = line.partition("=")[0].strip()
        if "=" in line and key in settings:
            lines.append(f"{key}={settings[key]}")
            waiting.pop(key, None)
        else:
            lines.append(line)
    lines += [f"{key}={value}" for key, value in waiting.items()]
    return "\n".join(lines) + "\n"


def wants_admin_server(spec: ClusterSpec, name: str) -> bool:
    """Whether the user switched ZooKeeper's AdminServer on; it is off by default, being one more port."""
    wished = {**spec.zookeeper_conf, **spec.member_conf.get(name, {})}
    return wished.get("admin.enableServer", "false").lower() == "true"


def zookeeper_settings(spec: ClusterSpec, name: str, ports: Mapping[str, int]) -> dict[str, str]:
    """The whole ``zookeeper.conf``.

    ``forceSync`` is off: it protects against the loss of the machine, and this data does not outlive it.
    """
    admin = {"admin.serverAddress": LOOPBACK, "admin.serverPort": str(ports["admin"])} if "admin" in ports else {}
    return {
        "tickTime": "2000",
        "dataDir": str(spec.directory / name / "data"),
        "clientPort": str(ports["client"]),
        "clientPortAddress": LOOPBACK,
        "maxClientCnxns": "0",
        "admin.enableServer": "false",
        "forceSync": "no",
        **admin,
        **spec.zookeeper_conf,
        **spec.member_conf.get(name, {}),
    }


def bookie_settings(spec: ClusterSpec, name: str, ports: Mapping[str, int], metadata_store_url: str) -> dict[str, str]:
    """Settings over the distribution's ``bookkeeper.conf``.

    ``journalSyncData`` is off for the reason ``forceSync`` is: what a killed bookie wrote is kept by the system.
    """
    directory = spec.directory / name
    return {
        "bookiePort": str(ports["bookie"]),
        "advertisedAddress": LOOPBACK,
        "listeningInterface": loopback_interface(),
        "allowLoopback": "true",
        "journalDirectory": str(directory / "journal"),
        "ledgerDirectories": str(directory / "ledgers"),
        "indexDirectories": str(directory / "ledgers"),
        "metadataServiceUri": f"metadata-store:{metadata_store_url}",
        "httpServerEnabled": "true",
        "httpServerHost": LOOPBACK,
        "httpServerPort": str(ports["http"]),
        "journalSyncData": "false",
        "journalMaxSizeMB": "256",
        "journalPreAllocSizeMB": "4",
        "diskUsageThreshold": "0.99",
        "diskUsageWarnThreshold": "0.98",
        "dbStorage_writeCacheMaxSizeMb": "32",
        "dbStorage_readAheadCacheMaxSizeMb": "16",
        "dbStorage_rocksDB_blockCacheSize": str(8 * 1024 * 1024),
        "dbStorage_rocksDB_writeBufferSizeMB": "8",
        "allocatorPoolingConcurrency": "2",
        **spec.bookie_conf,
        **spec.member_conf.get(name, {}),
    }


def broker_settings(spec: ClusterSpec, name: str, ports: Mapping[str, int], metadata_store_url: str) -> dict[str, str]:
    """Settings over the distribution's ``broker.conf``; quorums never ask for more bookies than there are."""
    quorum = str(min(2, spec.bookies))
    directory = spec.directory / name
    return {
        "clusterName": spec.cluster_name,
        "metadataStoreUrl": metadata_store_url,
        "configurationMetadataStoreUrl": metadata_store_url,
        "bindAddress": LOOPBACK,
        "advertisedAddress": LOOPBACK,
        "brokerServicePort": str(ports["broker"]),
        "webServicePort": str(ports["http"]),
        "managedLedgerDefaultEnsembleSize": quorum,
        "managedLedgerDefaultWriteQuorum": quorum,
        "managedLedgerDefaultAckQuorum": quorum,
        "managedLedgerCacheSizeMB": "32",
        "brokerDeleteInactiveTopicsEnabled": "false",
        "functionsWorkerEnabled": "false",
        "webSocketServiceEnabled": "false",
        "numHttpServerThreads": "8",
        "offloadersDirectory": str(directory / "offloaders"),
        "narExtractionDirectory": str(directory / "tmp"),
        **spec.broker_conf,
        **spec.member_conf.get(name, {}),
    }


def loopback_interface() -> str:
    """The loopback interface's name: BookKeeper binds to one address only when it is told an interface."""
    names = [name for _, name in socket.if_nameindex()]
    return next((name for name in _LOOPBACK_INTERFACES if name in names), "lo0")
