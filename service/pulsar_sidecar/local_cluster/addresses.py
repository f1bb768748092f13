"""How to reach a cluster: the one JSON line that ``up --json`` prints and that tests and the demo read back.

Invariant: reading what was written gives the same addresses; keys keep Pulsar's spelling.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from pulsar_sidecar.local_cluster.planning import broker_service_url, metadata_store_url
from pulsar_sidecar.local_cluster.ports import LOOPBACK
from pulsar_sidecar.local_cluster.spec import Role
from pulsar_sidecar.local_cluster.state import ClusterState, Member
from pulsar_sidecar.model.errors import InvalidInputError


class ClusterAddresses(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Where a cluster listens and what it consists of.

    Attributes:
        web_service_urls: one per broker, in the brokers' order.
        broker_service_url: all brokers in Pulsar's one-URL form.
        metadata_store_url: Pulsar's form, ``zk:host:port``.
        bookie_http_urls: one per bookie, in the bookies' order.
        directory: the cluster's directory; None for a cluster that is not on this machine.
        version: Pulsar's version.
        cluster_name: Pulsar's name for the cluster.
        members: process ids by member name; empty for a cluster that is not on this machine.
        member_urls: the address of each member by its name.
        zookeeper_admin_url: ZooKeeper's AdminServer, None unless ``admin.enableServer=true`` was asked for.
    """

    web_service_urls: tuple[str, ...]
    broker_service_url: str
    metadata_store_url: str
    bookie_http_urls: tuple[str, ...] = ()
    directory: Path | None = msgspec.field(name="dir", default=None)
    version: str = "unknown"
    cluster_name: str = "unknown"
    members: Mapping[str, int] = msgspec.field(default_factory=dict)
    member_urls: Mapping[str, str] = msgspec.field(default_factory=dict)
    zookeeper_admin_url: str | None = None

    def json_line(self, **more: object) -> str:
        """One line of JSON, without a line break; ``more`` are further keys and their values."""
        return msgspec.json.encode({**msgspec.to_builtins(self, enc_hook=str), **more}).decode()


def addresses_of(state: ClusterState) -> ClusterAddresses:
    """The addresses of a cluster that was started here."""
    brokers = tuple(member for member in state.members if member.role is Role.BROKER)
    bookies = tuple(member for member in state.members if member.role is Role.BOOKIE)
    (zookeeper,) = (member for member in state.members if member.role is Role.ZOOKEEPER)
    return ClusterAddresses(
        web_service_urls=tuple(_url(broker) for broker in brokers),
        broker_service_url=broker_service_url(brokers),
        metadata_store_url=metadata_store_url(zookeeper),
        bookie_http_urls=tuple(_url(bookie) for bookie in bookies),
        directory=state.directory,
        version=state.version,
        cluster_name=state.cluster_name,
        members={member.name: member.process.pid for member in state.members if member.process},
        member_urls={member.name: _url(member) for member in state.members},
        zookeeper_admin_url=f"http://{LOOPBACK}:{zookeeper.ports['admin']}" if "admin" in zookeeper.ports else None,
    )


def _url(member: Member) -> str:
    if member.role is Role.ZOOKEEPER:
        return metadata_store_url(member)
    return f"http://{LOOPBACK}:{member.ports['http']}"


def parse_addresses(text: str) -> ClusterAddresses:
    """Read a line written by ``json_line``; keys that do not say how to reach the cluster may be absent.

    Raises:
        InvalidInputError: it is not JSON, or an address is missing.
    """
    try:
        return msgspec.json.decode(text, type=ClusterAddresses, dec_hook=_path)
    except msgspec.DecodeError as error:
        raise InvalidInputError(f"this is not what up --json prints: {error}") from error


def _path(kind: type[Any], value: Any) -> Any:
    return kind(value)
