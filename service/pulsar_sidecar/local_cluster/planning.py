"""From a specification to members that can be started: ports, configuration files, command lines.

A configuration file is the distribution's own, with our settings and the user's written over it. A command line is what
``bin/pulsar`` would write, with small heaps; the script is not used, because it runs a shell and ``java -version`` per
member and leaves its logs and its unpacked native libraries in places that ``down`` would not know about. Invariants:
everything listens on the loopback address only, the user's settings win over ours, and whatever a member's JVM writes,
it writes below that member's own directory.
"""

import socket
from collections.abc import Mapping
from pathlib import Path

from pulsar_sidecar.local_cluster.processes import LOOPBACK, free_ports
from pulsar_sidecar.local_cluster.software import JavaRuntime, Software, class_path
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
"""The configuration file, the main class, and the option that names the file."""


def plan_member(spec: ClusterSpec, software: Software, name: str, metadata_store_url: str) -> Member:
    """Choose a member's ports and write its configuration; for ZooKeeper itself the store's address means nothing."""
    role = role_of(name)
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


def metadata_setup_argv(
    spec: ClusterSpec, software: Software, metadata_store_url: str, brokers: tuple[Member, ...]
) -> tuple[str, ...]:
    """The official one-time initialisation of a cluster's metadata."""
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
    """Members of one kind share a class archive: ``broker-2`` uses that of ``broker``."""
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
    """Start soon and stay small, which matters more here than speed after an hour."""
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
    """What ``bin/pulsar`` of 3.3.6 and 4.0.8 passes, without memory, logging and functions."""
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


def _wants_admin_server(spec: ClusterSpec, name: str) -> bool:
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
    ZooKeeper's driver and the resolver of racks are BookKeeper's own: Pulsar's each look for something to batch every
    5 ms, which is nearly all that an idle bookie does.
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
        "metadataServiceUri": f"zk+hierarchical://{metadata_store_url.removeprefix('zk:')}/ledgers",
        "reppDnsResolverClass": "org.apache.bookkeeper.net.ScriptBasedMapping",
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
        # Brokers of one machine share its load: moving topics between them relieves none and disturbs what is tried.
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
    """The loopback interface's name: BookKeeper binds to one address only when its configuration names an interface."""
    names = [name for _, name in socket.if_nameindex()]
    return next((name for name in _LOOPBACK_INTERFACES if name in names), "lo0")
