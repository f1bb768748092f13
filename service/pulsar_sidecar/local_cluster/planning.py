"""Plans of members from a specification: ports, configuration files, command lines.

A configuration file is the distribution's own, with the local cluster's settings and the user's on top. A command line
is the one of ``bin/pulsar``, with small heaps; the script itself would run a shell and ``java -version`` per member,
and leave logs and unpacked native libraries in places unknown to ``down``. Invariants: everything listens on the
loopback address only, the user's settings win, and a member's JVM writes only below that member's own directory.
"""

import socket
from collections.abc import Mapping
from pathlib import Path

from pulsar_sidecar.local_cluster.processes import LOOPBACK, free_ports
from pulsar_sidecar.local_cluster.software import JavaRuntime, Software, class_path, find_etcd
from pulsar_sidecar.local_cluster.spec import ClusterSpec, Role, role_of
from pulsar_sidecar.local_cluster.state import Member, broker_service_url, web_service_url

_FIRST_JAVA_THAT_WARNS_ABOUT_UNSAFE = 23
_PULSAR_METADATA = "org.apache.pulsar.metadata.bookkeeper"
_OPENED_PACKAGES = (
    "java.base/java.io",
    "java.base/java.util.zip",
    "java.management/sun.management",
    "jdk.management/com.sun.management.internal",
    "java.base/java.nio",
    "java.base/jdk.internal.misc",
    "java.base/jdk.internal.platform",
)
_MEMORY: Mapping[Role, tuple[str, ...]] = {
    Role.ZOOKEEPER: ("-Xms32m", "-Xmx128m", "-XX:MaxDirectMemorySize=32m"),
    Role.BOOKIE: ("-Xms48m", "-Xmx160m", "-XX:MaxDirectMemorySize=192m"),
    Role.BROKER: ("-Xms96m", "-Xmx320m", "-XX:MaxDirectMemorySize=256m"),
}
_LOOPBACK_INTERFACES = ("lo", "lo0")
_PROGRAMS: Mapping[Role, tuple[str, str, tuple[str, ...]]] = {
    Role.ZOOKEEPER: ("zookeeper.conf", "org.apache.zookeeper.server.quorum.QuorumPeerMain", ()),
    Role.BOOKIE: ("bookkeeper.conf", "org.apache.bookkeeper.server.Main", ("--conf",)),
    Role.BROKER: ("broker.conf", "org.apache.pulsar.PulsarBrokerStarter", ("--broker-conf",)),
}
"""Configuration file, main class, and the option that names the file."""


def plan_member(spec: ClusterSpec, software: Software, name: str, metadata_store_url: str) -> Member:
    """Choose a member's ports and write its configuration; metadata stores ignore ``metadata_store_url``."""
    role = role_of(name)
    if role is Role.ETCD:
        return _plan_etcd(spec, name)
    wanted: tuple[str, ...] = (role.value, "http")
    if role is Role.ZOOKEEPER:
        wanted = ("client", "admin") if _wants_admin_server(spec, name) else ("client",)
    ports = dict(zip(wanted, free_ports(len(wanted)), strict=True))
    conf_name, main_class, option = _PROGRAMS[role]
    conf = _new_directory(spec, name) / conf_name
    if role is Role.ZOOKEEPER:
        original, settings = "", zookeeper_settings(spec, name, ports)
    else:
        original = (software.distribution / "conf" / conf_name).read_text()
        settings_of = bookie_settings if role is Role.BOOKIE else broker_settings
        settings = settings_of(spec, name, ports, metadata_store_url)
    if role is Role.BROKER and software.offloaders is not None:
        settings["offloadersDirectory"] = str(software.offloaders)
    conf.write_text(render(original, settings))
    return Member(name, role, ports, _argv(spec, software, name, main_class, *option, str(conf)))


def _plan_etcd(spec: ClusterSpec, name: str) -> Member:
    """Plan etcd, which takes no configuration file; like ZooKeeper's data, its own does not outlive the machine."""
    ports = dict(zip(("client", "peer"), free_ports(2), strict=True))
    client, peer = (f"http://{LOOPBACK}:{port}" for port in ports.values())
    options = {
        "data-dir": str(_new_directory(spec, name) / "data"),
        "listen-client-urls": client,
        "advertise-client-urls": client,
        "listen-peer-urls": peer,
        "initial-advertise-peer-urls": peer,
        "initial-cluster": f"default={peer}",
        "unsafe-no-fsync": "true",
    }
    return Member(name, Role.ETCD, ports, (find_etcd(), *(f"--{key}={value}" for key, value in options.items())))


def metadata_setup_argv(
    spec: ClusterSpec, software: Software, metadata_store_url: str, brokers: tuple[Member, ...]
) -> tuple[str, ...]:
    """Return the command line of Pulsar's one-time initialisation of a cluster's metadata."""
    _new_directory(spec, "metadata-setup")
    return _argv(
        spec,
        software,
        "metadata-setup",
        "org.apache.pulsar.PulsarClusterMetadataSetup",
        *("--cluster", spec.cluster_name),
        *("--metadata-store", metadata_store_url),
        *("--configuration-metadata-store", metadata_store_url),
        *("--web-service-url", web_service_url(brokers)),
        *("--broker-service-url", broker_service_url(brokers)),
    )


def kind_of(member_name: str) -> str:
    """Return the kind of a member, whose class archive it shares: ``broker`` for ``broker-2``."""
    return member_name.rstrip("0123456789").removesuffix("-")


def _new_directory(spec: ClusterSpec, name: str) -> Path:
    directory = spec.directory / name
    for needed in (directory, directory / "tmp", directory / "offloaders"):
        needed.mkdir(parents=True)
    return directory


def _argv(spec: ClusterSpec, software: Software, name: str, main_class: str, *arguments: str) -> tuple[str, ...]:
    role = Role.ZOOKEEPER if name == "metadata-setup" else role_of(name)
    shared = software.class_archives and software.class_archives / f"{kind_of(name)}.jsa"
    return (
        str(software.java.executable),
        *_MEMORY[role],
        *_quick_start_options(spec.directory / name),
        *_options_of_bin_pulsar(software.java),
        *("-cp", class_path(software.distribution)),
        *([f"-XX:SharedArchiveFile={shared}"] if shared and shared.exists() else []),
        *spec.java_options,
        main_class,
        *arguments,
    )


def _quick_start_options(directory: Path) -> list[str]:
    """Return options for a fast start and little memory, which matter more here than speed after an hour."""
    return [
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        "-XX:-UsePerfData",
        "-XX:+ExitOnOutOfMemoryError",
        "-XX:-HeapDumpOnOutOfMemoryError",
        f"-XX:ErrorFile={directory}/hs_err.log",
        f"-Djava.io.tmpdir={directory / 'tmp'}",
        f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.xml').as_uri()}",
        "-Dlog4j.shutdownHookEnabled=false",
        "-Dlog4j2.is.webapp=false",
    ]


def _options_of_bin_pulsar(java: JavaRuntime) -> list[str]:
    """Return the options of ``bin/pulsar`` of 3.3.6 and 4.0.8, without memory, logging and functions."""
    options = [f"--add-opens={package}=ALL-UNNAMED" for package in _OPENED_PACKAGES]
    if java.major_version >= _FIRST_JAVA_THAT_WARNS_ABOUT_UNSAFE:
        options.append("--sun-misc-unsafe-memory-access=allow")
    return [
        *options,
        "--enable-native-access=ALL-UNNAMED",
        "-Djava.net.preferIPv4Stack=true",
        "-Djute.maxbuffer=10485760",
        "-Dzookeeper.clientTcpKeepAlive=true",
        "-Dio.netty.tryReflectionSetAccessible=true",
        "-Dorg.apache.pulsar.shade.io.netty.tryReflectionSetAccessible=true",
        "-Dio.netty.leakDetection.level=disabled",
        "-Dio.netty.recycler.maxCapacityPerThread=4096",
        "-Dpulsar.allocator.exit_on_oom=true",
        "-Dzookeeper.4lw.commands.whitelist=*",
        "-Dzookeeper.snapshot.trust.empty=true",
        "-Dzookeeper.tcpKeepAlive=true",
        f"-Dbookkeeper.metadata.bookie.drivers={_PULSAR_METADATA}.PulsarMetadataBookieDriver",
        f"-Dbookkeeper.metadata.client.drivers={_PULSAR_METADATA}.PulsarMetadataClientDriver",
    ]


def render(original: str, settings: Mapping[str, str]) -> str:
    """Return a properties file with settings replaced in place, or added at the end.

    A commented setting stays and the new one is added at the end; a repeated setting is replaced each time.
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


def _wants_admin_server(spec: ClusterSpec, name: str) -> bool:
    """Return True if the user enabled ZooKeeper's AdminServer, off by default because it takes a port."""
    wished = {**spec.zookeeper_conf, **spec.member_conf.get(name, {})}
    return wished.get("admin.enableServer", "false").lower() == "true"


def zookeeper_settings(spec: ClusterSpec, name: str, ports: Mapping[str, int]) -> dict[str, str]:
    """Return the whole ``zookeeper.conf``.

    ``forceSync`` is off: it protects against the loss of the machine, which this data does not outlive.
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
    """Return the settings on top of the distribution's ``bookkeeper.conf``.

    ``journalSyncData`` is off like ``forceSync``: the system keeps a killed bookie's writes. ZooKeeper's driver and
    the resolver of racks are BookKeeper's own: Pulsar's each look for batches every 5 ms, nearly all work of an idle
    bookie.
    """
    directory = spec.directory / name
    return {
        "bookiePort": str(ports["bookie"]),
        "advertisedAddress": LOOPBACK,
        "listeningInterface": _loopback_interface(),
        "allowLoopback": "true",
        "journalDirectory": str(directory / "journal"),
        "ledgerDirectories": str(directory / "ledgers"),
        "indexDirectories": str(directory / "ledgers"),
        **_bookie_metadata(metadata_store_url),
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


def _bookie_metadata(metadata_store_url: str) -> dict[str, str]:
    if not metadata_store_url.startswith("zk:"):
        return {"metadataServiceUri": f"metadata-store:{metadata_store_url}"}
    return {
        "metadataServiceUri": f"zk+hierarchical://{metadata_store_url.removeprefix('zk:')}/ledgers",
        "reppDnsResolverClass": "org.apache.bookkeeper.net.ScriptBasedMapping",
    }


def broker_settings(spec: ClusterSpec, name: str, ports: Mapping[str, int], metadata_store_url: str) -> dict[str, str]:
    """Return the settings on top of the distribution's ``broker.conf``, with quorums of at most all bookies."""
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
        # Ten milliseconds by default, a sixth of what an idle broker does.
        "managedLedgerCacheEvictionIntervalMs": "1000",
        "brokerDeleteInactiveTopicsEnabled": "false",
        # Brokers on one machine share its load: moving topics between them relieves none and disturbs tests.
        "loadBalancerSheddingEnabled": "false",
        "loadBalancerAutoBundleSplitEnabled": "false",
        "functionsWorkerEnabled": "false",
        "webSocketServiceEnabled": "false",
        "numHttpServerThreads": "8",
        "offloadersDirectory": str(directory / "offloaders"),
        "narExtractionDirectory": str(directory / "tmp"),
        **spec.broker_conf,
        **spec.member_conf.get(name, {}),
    }


def _loopback_interface() -> str:
    """Return the loopback interface's name, without which BookKeeper does not bind to one address only."""
    names = [name for _, name in socket.if_nameindex()]
    return next((name for name in _LOOPBACK_INTERFACES if name in names), "lo0")
