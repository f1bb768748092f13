"""The sidecars of the clusters that a topic is replicated to: a copy has another message id, but the same properties.

Invariant: every cluster of the topic has a sidecar that answers and serves that cluster, or nothing is done anywhere.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pulsar_sidecar.cli.connecting import GlobalOptions, topic_path
from pulsar_sidecar.model.errors import InvalidInputError

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
    urls = _urls_of(options.settings().get("cluster_urls", ""))
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
    return str(sidecar.call("GET", "/admin/v2/caller")["cluster"])


def _urls_of(text: str) -> dict[str, str]:
    pairs = [pair.strip().partition("=") for pair in text.split(",") if pair.strip()]
    if not all(name and url for name, _, url in pairs):
        raise InvalidInputError("write PULSAR_SIDECAR_CLUSTER_URLS as NAME=URL,NAME=URL")
    return {name: url for name, _, url in pairs}
