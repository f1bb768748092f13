"""Sidecars of a replicated topic's clusters; a message's copy has another id, but the same properties.

Invariant: either every cluster of the topic has a sidecar that responds and serves it, or the command changes nothing.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pulsar_sidecar.cli.connecting import GlobalOptions, topic_path
from pulsar_sidecar.model.addresses import sidecars_by_cluster
from pulsar_sidecar.model.errors import InvalidInputError
from pulsar_sidecar.server.callers import CallerRights

if TYPE_CHECKING:
    from pulsar_sidecar.cli.client import SidecarClient


def sidecars_of(options: GlobalOptions, topic: str) -> "Mapping[str, SidecarClient]":
    """Return a client for each cluster that the topic is replicated to, by the cluster's name.

    Raises:
        InvalidInputError: ``cluster_urls`` names no sidecar for a cluster, or one of another cluster.
    """
    own = options.client()
    here = _cluster_of(own)
    clusters = own.call("GET", f"{topic_path(topic)}/replication", parameters={"applied": "true"}) or []
    urls = sidecars_by_cluster(options.settings().get("cluster_urls", "").split(","))
    if missing := sorted(set(clusters) - urls.keys() - {here}):
        raise InvalidInputError(
            f"{topic} is replicated to {', '.join(missing)}, and no sidecar is known there; name it with "
            f"PULSAR_SIDECAR_CLUSTER_URLS={missing[0]}=https://its-address"
        )
    sidecars = {here: own} | {name: options.client(urls[name]) for name in sorted(clusters) if name != here}
    for name, sidecar in sidecars.items():
        if (found := _cluster_of(sidecar)) != name:
            raise InvalidInputError(f"the sidecar at {urls[name]} serves the cluster {found}, not {name}")
    return sidecars


def _cluster_of(sidecar: "SidecarClient") -> str:
    return str(sidecar.result(CallerRights, "GET", "/admin/v2/caller").cluster)
