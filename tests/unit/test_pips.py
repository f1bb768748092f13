"""Names, keys, numbers and defaults as the PIPs write them.

Each value here is copied from a PIP's text. Where the product departs from one on purpose, the departure stands here
beside the PIP's value, and `test_departures_are_documented` finds it where a user would look for it.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor
from prometheus_client import CollectorRegistry, generate_latest
from pulsar_sidecar.features.delayed_index.metrics import QUANTILES, DelayedIndexMetrics
from pulsar_sidecar.features.delayed_index.settings import BUCKET_TRACKER_FACTORY, TrackerSettings
from pulsar_sidecar.features.ledger_deletion.metrics import DeletionMetrics
from pulsar_sidecar.features.ledger_deletion.ports import SYSTEM_NAMESPACE, DeletionTopic
from pulsar_sidecar.features.ledger_deletion.record import parse_record
from pulsar_sidecar.features.ledger_deletion.workflow.serving import LEDGER_STILL_IN_USE
from pulsar_sidecar.model.ledgers import LedgerComponent, LedgerType
from pulsar_sidecar.protobuf import DelayedMessageIndexBucketMetadata_pb2 as bucket_metadata
from pulsar_sidecar.protobuf import DelayedMessageIndexBucketSegment_pb2 as bucket_segment
from pulsar_sidecar.protobuf import MLDataFormats_pb2 as managed_ledger
from pulsar_sidecar.settings.fields import LedgerDeletion
from pulsar_sidecar.settings.sources import setting_key

from tests.unit.cli.running import Terminal

DOCS = Path(__file__).parents[2] / "docs"
OPENAPI: dict[str, Any] = json.loads((DOCS / "reference" / "openapi.json").read_text(encoding="utf-8"))
TOPIC = "/admin/v2/persistent/{tenant}/{namespace}/{topic}"
V1_TOPIC = "/admin/persistent/{property}/{cluster}/{namespace}/{topic}"


# --- PIP-186 -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "default"),
    [
        ("topicTwoPhaseDeletionEnabled", False),
        ("twoPhaseDeletionLedgerDeletionParallelism", 4),
        ("twoPhaseDeletionReconsumeLaterInSeconds", 600),
        ("twoPhaseDeletionMaxRetryDeleteCount", 10),
    ],
)
def test_settings_of_two_phase_deletion(name: str, default: object) -> None:
    defaults = {setting_key(field): each.default for field, each in LedgerDeletion.model_fields.items()}
    assert (defaults[name], type(defaults[name])) == (default, type(default))


def test_system_topics() -> None:
    assert SYSTEM_NAMESPACE == "pulsar/system"
    assert {DeletionTopic.PENDING.value, DeletionTopic.RETRY.value, DeletionTopic.DEAD_LETTER.value} == {
        "__ledger_deletion",
        "__ledger_deletion-RETRY",
        "__ledger_deletion-DLQ",
    }


@pytest.mark.parametrize(
    ("spelling", "component", "more"),
    [
        ("Managed-Ledger", LedgerComponent.MANAGED_LEDGER, {}),
        ("Managed-Corsor", LedgerComponent.MANAGED_CURSOR, {"cursorName": "sub"}),
        ("Schema-Storage", LedgerComponent.SCHEMA_STORAGE, {"schemaId": 1}),
    ],
)
def test_fields_of_a_pending_delete_ledger_info(
    spelling: str, component: LedgerComponent, more: dict[str, object]
) -> None:
    document = {"topicName": "persistent://a/b/c", "ledgerComponent": spelling, "ledgerType": "Ledger", "ledgerId": 7}
    record = parse_record(json.dumps(document | more).encode())
    assert (record.component, record.ledger_type) == (component, LedgerType.LEDGER)


def test_an_offload_ledger_has_its_context() -> None:
    context = {"lsb": 1, "msb": 2, "driverName": "aws-s3", "metadata": {"bucket": "b"}}
    document = {
        "topicName": "persistent://a/b/c",
        "ledgerComponent": "Managed-Ledger",
        "ledgerType": "Offload-Ledger",
        "ledgerId": 7,
        "offloadContext": context,
    }
    record = parse_record(json.dumps(document).encode())
    assert (record.ledger_type, record.offload_context is not None) == (LedgerType.OFFLOAD_LEDGER, True)


def test_delete_ledger_payload() -> None:
    schemas = OPENAPI["components"]["schemas"]
    assert set(schemas["DeleteLedgerPayload"]["properties"]) == {
        "ledgerId",
        "topicName",
        "ledgerType",
        "ledgerComponent",
        "schemaId",
        "cursorName",
        "offloadContext",
    }
    assert set(schemas["OffloadContextPayload"]["properties"]) == {"lsb", "msb", "driverName", "metadata"}
    assert "post" in OPENAPI["paths"][f"{TOPIC}/deleteLedger"]
    assert LEDGER_STILL_IN_USE == "ledger still in use"


def test_estimated_inflight_deletion_ledger_count() -> None:
    assert "get" in OPENAPI["paths"]["/admin/v2/broker-stats/estimatedInflightDeletionLedgerCount"]


def test_counters_of_two_phase_deletion() -> None:
    """The PIP describes its nine counters without names; ledger types are a label (`DeletionMetrics`)."""
    registry = CollectorRegistry()
    registry.register(DeletionMetrics("local"))
    names = {line.split("{")[0] for line in generate_latest(registry).decode().splitlines() if line[0] != "#"}
    counters = ("sent", "received", "deleted", "delete_failed", "acknowledged", "max_retry_reached")
    assert names >= {f"pulsar_ledger_deletion_{name}_total" for name in counters}


# --- PIP-195 and PIP-423 -------------------------------------------------------------------------------------------


def test_settings_of_the_bucket_index() -> None:
    assert BUCKET_TRACKER_FACTORY == "org.apache.pulsar.broker.delayed.BucketDelayedDeliveryTrackerFactory"
    settings = TrackerSettings()
    assert settings.min_index_count == 50_000  # delayedDeliveryMinIndexCountPerBucket
    assert settings.time_step_ms == 300 * 1000  # delayedDeliveryMaxTimeStepPerBucketSnapshotSegmentSeconds
    assert settings.max_indexes_per_segment == 5_000  # delayedDeliveryMaxIndexesPerBucketSnapshotSegment
    assert settings.max_num_buckets == -1  # delayedDeliveryMaxNumBuckets
    assert settings.shared_index is False  # delayedDeliverySharedIndexEnabled


def numbers_of(message: Descriptor) -> dict[str, int]:
    return {field.name: field.number for field in message.fields}


def test_bucket_snapshots() -> None:
    assert numbers_of(bucket_metadata.SnapshotSegmentMetadata.DESCRIPTOR) == {
        "delayed_index_bit_map": 1,
        "max_schedule_timestamp": 2,
        "min_schedule_timestamp": 3,
    }
    assert numbers_of(bucket_metadata.SnapshotMetadata.DESCRIPTOR) == {"metadata_list": 1}
    assert numbers_of(bucket_segment.SnapshotSegment.DESCRIPTOR) == {"indexes": 1}
    assert numbers_of(bucket_segment.DelayedIndex.DESCRIPTOR) == {"timestamp": 1, "ledger_id": 2, "entry_id": 3}


def test_metrics_of_the_bucket_index() -> None:
    families = {family.name for family in DelayedIndexMetrics("local").collect()}
    names = ("bucket_total", "loaded", "bucket_op_count", "bucket_snapshot_size_bytes", "bucket_op_latency_ms")
    assert families >= {f"pulsar_sidecar_delayed_message_index_{name}" for name in names}
    assert QUANTILES == ("50", "100", "500", "1000", "5000", "30000", "60000", "overflow")


@pytest.mark.parametrize("path", [f"{TOPIC}/cancelDelayedMessage", f"{V1_TOPIC}/cancelDelayedMessage"])
def test_cancel_delayed_message(path: str) -> None:
    operation = OPENAPI["paths"][path]["post"]
    named = {each["name"] for each in operation["parameters"] if each["in"] == "query"}
    assert named >= {"ledgerId", "entryId", "deliverAt", "subscriptionNames", "authoritative"}
    assert set(operation["responses"]) >= {"204", "401", "403", "404", "405", "412", "500"}


def test_command_that_cancels_a_delayed_message(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = Terminal(capsys, monkeypatch).run("topics", "cancel-delayed-message", "--help").out
    for names in (("-l", "--ledgerId"), ("-e", "--entryId"), ("-t", "--deliverAt"), ("-s", "--subscriptionNames")):
        assert all(name in command for name in names)


# --- PIP-6 and PIP-299 ---------------------------------------------------------------------------------------------


def test_sequence_ids_of_a_cursor() -> None:
    assert numbers_of(managed_ledger.LongProperty.DESCRIPTOR) == {"name": 1, "value": 2}
    properties = managed_ledger.ManagedCursorInfo.DESCRIPTOR.fields_by_name["properties"]
    assert (properties.number, properties.message_type) == (5, managed_ledger.LongProperty.DESCRIPTOR)


def test_policy_of_the_dispatch_pause() -> None:
    assert f"{TOPIC}/dispatcherPauseOnAckStatePersistent" in OPENAPI["paths"]
    states = OPENAPI["components"]["schemas"]
    assert any("blockedOnAckStatePersistent" in schema.get("properties", {}) for schema in states.values())


# --- departures ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("page", "words"),
    [
        ("pip-186.md", "`schemaId` is a number"),
        ("pip-186.md", "`belivedLedgerIdSet`"),
        ("pip-186.md", "records keyed by topic"),
        ("pip-186.md", "sums `backlogSize`"),
        ("delayed-index.md", "Their names begin with `pulsar_sidecar_`"),
        ("delayed-index.md", "`CANCEL` rows in snapshots"),
        ("delayed-messages.md", "307 is never needed"),
    ],
)
def test_departures_are_documented(page: str, words: str) -> None:
    assert words in " ".join((DOCS / page).read_text(encoding="utf-8").split())
