"""From a specification to members that can be started: ports chosen, configuration written, command lines complete.

Invariant: planning a member again gives it new ports and empty directories, and nothing of the earlier plan is left.
"""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import assert_never

from pulsar_sidecar.local_cluster.class_archives import archive_of, kind_of
from pulsar_sidecar.local_cluster.configuration import (
    bookie_settings,
    broker_settings,
    render,
    wants_admin_server,
    zookeeper_settings,
)
from pulsar_sidecar.local_cluster.java import JavaRuntime, jvm_argv
from pulsar_sidecar.local_cluster.ports import LOOPBACK, free_ports
from pulsar_sidecar.local_cluster.spec import ClusterSpec, Role, role_of
from pulsar_sidecar.local_cluster.state import Member


@dataclass(frozen=True, slots=True)
class Software:
    """What members are made of.

    Attributes:
        java: the runtime.
        distribution: the unpacked server distribution.
        offloaders: directory of the offloader archives (``*.nar``), None without them.
        class_archives: directory of the class archives, None without them.
    """

    java: JavaRuntime
    distribution: Path
    offloaders: Path | None = None
    class_archives: Path | None = None


_PROGRAMS: Mapping[Role, tuple[str, str, tuple[str, ...]]] = {
    Role.ZOOKEEPER: ("zookeeper.conf", "org.apache.zookeeper.server.quorum.QuorumPeerMain", ()),
    Role.BOOKIE: ("bookkeeper.conf", "org.apache.bookkeeper.server.Main", ("--conf",)),
    Role.BROKER: ("broker.conf", "org.apache.pulsar.PulsarBrokerStarter", ("--broker-conf",)),
}
"""The configuration file, the main class, and the option that names the file."""


def plan_member(spec: ClusterSpec, software: Software, name: str, metadata_store_url: str) -> Member:
    """Plan a member by its name; for ZooKeeper itself the store's address means nothing."""
    role = role_of(name)
    conf_name, main_class, option = _PROGRAMS[role]
    wanted = _ports_of(spec, name)
    ports = dict(zip(wanted, free_ports(len(wanted)), strict=True))
    conf = _fresh_directory(spec, name) / conf_name
    distributed = software.distribution / "conf" / conf_name
    match role:
        case Role.ZOOKEEPER:
            text = render("", zookeeper_settings(spec, name, ports))
        case Role.BOOKIE:
            text = render(distributed.read_text(), bookie_settings(spec, name, ports, metadata_store_url))
        case Role.BROKER:
            settings = broker_settings(spec, name, ports, metadata_store_url)
            if software.offloaders is not None:
                settings["offloadersDirectory"] = str(software.offloaders)
            text = render(distributed.read_text(), settings)
        case _:
            assert_never(role)
    conf.write_text(text)
    return Member(name, role, ports, _argv(spec, software, name, main_class, *option, str(conf)))


def _ports_of(spec: ClusterSpec, name: str) -> tuple[str, ...]:
    match role_of(name):
        case Role.ZOOKEEPER:
            return ("client", "admin") if wants_admin_server(spec, name) else ("client",)
        case role:
            return (role.value, "http")


def metadata_setup_argv(
    spec: ClusterSpec, software: Software, metadata_store_url: str, brokers: tuple[Member, ...]
) -> tuple[str, ...]:
    """The official one-time initialisation of a cluster's metadata."""
    _fresh_directory(spec, "metadata-setup")
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


def metadata_store_url(zookeeper: Member) -> str:
    """Pulsar's form of the metadata store's address."""
    return f"zk:{LOOPBACK}:{zookeeper.ports['client']}"


def web_service_url(brokers: tuple[Member, ...]) -> str:
    """Pulsar's form of several brokers' HTTP addresses in one: ``http://host:port,host:port``."""
    return "http://" + ",".join(f"{LOOPBACK}:{broker.ports['http']}" for broker in brokers)


def broker_service_url(brokers: tuple[Member, ...]) -> str:
    """Pulsar's form of several brokers' binary addresses in one: ``pulsar://host:port,host:port``."""
    return "pulsar://" + ",".join(f"{LOOPBACK}:{broker.ports['broker']}" for broker in brokers)


def _argv(spec: ClusterSpec, software: Software, name: str, main_class: str, *arguments: str) -> tuple[str, ...]:
    role = Role.ZOOKEEPER if name == "metadata-setup" else role_of(name)
    jvm = jvm_argv(software.java, role, software.distribution, spec.directory / name)
    shared = archive_of(kind_of(name), software.class_archives)
    return (*jvm, *shared, *spec.java_options, main_class, *arguments)


def _fresh_directory(spec: ClusterSpec, name: str) -> Path:
    directory = spec.directory / name
    if directory.exists():
        shutil.rmtree(directory)
    for needed in (directory, directory / "tmp", directory / "offloaders"):
        needed.mkdir(parents=True)
    return directory
