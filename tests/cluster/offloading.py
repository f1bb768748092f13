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
    ledger_id, entry_id = internal_stats(url)["lastConfirmedEntry"].split(":")
    up_to = {"ledgerId": int(ledger_id), "entryId": int(entry_id), "partitionIndex": -1}
    requests.put(f"{url}/offload", json=up_to, timeout=30).raise_for_status()
    wait_for_offload(url)


def topic_url(cluster: ClusterUnderTest, topic: TopicName) -> str:
    local_name = quote(topic.local_name, safe="")
    return f"{cluster.addresses.web_service_urls[0]}/admin/v2/persistent/{topic.namespace}/{local_name}"


def internal_stats(url: str) -> Mapping[str, str]:
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
    """Create a namespace that offloads with the filesystem driver; ``profile`` is its Hadoop configuration.

    A namespace's policy without a directory of offloaders means ``./offloaders``, whatever the broker's setting.
    """
    profile.write_text("<configuration/>")
    admin = f"{cluster.addresses.web_service_urls[0]}/admin/v2"
    settings = requests.get(f"{admin}/brokers/configuration/runtime", timeout=30).json()
    namespace = f"public/to-files-{unique()}"
    url = f"{admin}/namespaces/{namespace}"
    requests.put(url, timeout=30).raise_for_status()
    policies = {
        "managedLedgerOffloadDriver": "filesystem",
        "fileSystemURI": base,
        "fileSystemProfilePath": str(profile),
        "offloadersDirectory": settings["offloadersDirectory"],
        **more,
    }
    requests.post(f"{url}/offloadPolicies", json=policies, timeout=30).raise_for_status()
    return namespace
