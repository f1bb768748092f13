"""Offloads of topics by real brokers (PIP-17), to the destination of their cluster or a namespace."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

import requests
from pulsar_sidecar.model.names import TopicName

from tests.cluster.patience import until
from tests.cluster.running import ClusterUnderTest
from tests.cluster.topics import unique


def offload_closed_ledgers(cluster: ClusterUnderTest, topic: TopicName) -> None:
    """Offload all ledgers but the open one, and wait for the end."""
    url = topic_url(cluster, topic)
    start_offload(url)
    wait_for_offload(url)


def start_offload(url: str, position: str | None = None) -> None:
    """Start the offload of all ledgers before the position's, or before that of the last entry."""
    ledger_id, entry_id = (position or internal_stats(url)["lastConfirmedEntry"]).split(":")
    up_to = {"ledgerId": int(ledger_id), "entryId": int(entry_id), "partitionIndex": -1}
    requests.put(f"{url}/offload", json=up_to, timeout=30).raise_for_status()


def topic_url(cluster: ClusterUnderTest, topic: TopicName) -> str:
    local_name = quote(topic.local_name, safe="")
    return f"{cluster.addresses.web_service_urls[0]}/admin/v2/persistent/{topic.namespace}/{local_name}"


def internal_stats(url: str) -> Mapping[str, Any]:
    answer = requests.get(f"{url}/internalStats", timeout=30)
    answer.raise_for_status()
    return answer.json()


def wait_for_offload(url: str) -> None:
    def ended() -> Any:
        status = requests.get(f"{url}/offload", timeout=30).json()
        return None if status["status"] == "RUNNING" else status

    status = until(ended, "the broker has offloaded")
    assert status["status"] == "SUCCESS", status


def offload_to_directory(
    cluster: ClusterUnderTest, base: str, profile: Path, more: Mapping[str, Any] = MappingProxyType({})
) -> str:
    """Create a namespace that offloads with the filesystem driver; ``profile`` is its Hadoop configuration."""
    profile.write_text("<configuration/>")
    driver = {"managedLedgerOffloadDriver": "filesystem", "fileSystemURI": base, "fileSystemProfilePath": str(profile)}
    return offloading_namespace(cluster, {**driver, **more})


def offloading_namespace(cluster: ClusterUnderTest, policies: Mapping[str, Any]) -> str:
    """Create a namespace with these policies, and the brokers' settings for the rest.

    A namespace's policy without a directory of offloaders means ``./offloaders``, whatever the broker's setting.
    """
    admin = f"{cluster.addresses.web_service_urls[0]}/admin/v2"
    settings = requests.get(f"{admin}/brokers/configuration/runtime", timeout=30).json()
    namespace = f"public/offloading-{unique()}"
    url = f"{admin}/namespaces/{namespace}"
    requests.put(url, timeout=30).raise_for_status()
    policies = {"offloadersDirectory": settings["offloadersDirectory"], **policies}
    requests.post(f"{url}/offloadPolicies", json=policies, timeout=30).raise_for_status()
    return namespace
