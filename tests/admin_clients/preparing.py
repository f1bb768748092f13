"""Tenants with a namespace, topics and messages, the same for each side, and what commands name of them."""

from dataclasses import dataclass
from pathlib import Path

import requests
from pulsar_sidecar.local_cluster.state import ClusterAddresses

from tests.cluster.clients import PatientClient
from tests.cluster.patience import OPERATION_SECONDS
from tests.cluster.tokens import token

_MESSAGES = 5
_LONG = b"not a jar" * 400_000
"""More than a sidecar keeps of a body."""
_SCHEMA = '{"type": "AVRO", "schema": "{\\"type\\":\\"record\\",\\"name\\":\\"A\\",\\"fields\\":[]}", "properties": {}}'


@dataclass(frozen=True, slots=True)
class Scene:
    """Objects for a run of the commands; ``fields`` are those of their templates."""

    tenant: str
    fields: dict[str, object]


class Preparing:
    """A superuser at a broker."""

    def __init__(self, addresses: ClusterAddresses, directory: Path) -> None:
        self._addresses = addresses
        self._directory = directory

    def tenant(self, name: str, *admin_roles: str) -> None:
        self._put(f"tenants/{name}", {"adminRoles": admin_roles, "allowedClusters": [self._addresses.cluster_name]})

    def scene(self, kind: str, side: str, *admin_roles: str) -> Scene:
        """Make a tenant ``<kind>-<side>``; its namespace ``ready`` has a topic with messages and a partitioned one."""
        tenant = f"{kind}-{side}"
        self.tenant(tenant, *admin_roles)
        self._put(f"namespaces/{tenant}/ready", {})
        self._put(f"persistent/{tenant}/ready/parted/partitions", 3)
        ready = f"persistent://{tenant}/ready"
        file, schema = self._directory / "file.txt", self._directory / "schema.json"
        file.write_bytes(_LONG)
        schema.write_text(_SCHEMA)
        fields = {
            "side": side,
            "tenant": tenant,
            "ready": ready,
            "ledger": self._filled(f"{ready}/plain"),
            "broker": self._addresses.web_service_urls[0].removeprefix("http://"),
            "file": file,
            "schema": schema,
            "downloaded": self._directory / f"downloaded-{side}",
        }
        return Scene(tenant, fields)

    def _filled(self, topic: str) -> int:
        """Publish to a topic that has a subscription; the ledger of the messages."""
        client = PatientClient(self._addresses)
        try:
            client.subscribe(topic, "reading").close()
            producer = client.create_producer(topic, producer_name="a-producer", batching_enabled=False)
            sent = [producer.send(f"message {number}".encode()) for number in range(_MESSAGES)]
            producer.close()
        finally:
            client.close()
        return int(sent[0].ledger_id())

    def _put(self, path: str, body: object) -> None:
        answer = requests.put(
            f"{self._addresses.web_service_urls[0]}/admin/v2/{path}",
            json=body,
            headers={"Authorization": f"Bearer {token('admin')}"},
            timeout=OPERATION_SECONDS,
        )
        assert answer.status_code < 300, f"{path}: {answer.status_code} {answer.text}"
