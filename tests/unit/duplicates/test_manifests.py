"""Only the manifest of a complete extract is one."""

import pytest
from pulsar_sidecar.features.duplicates.manifests import ExtractManifest, UnseenCount, parse_manifest
from pulsar_sidecar.model.errors import InvalidInputError
from pulsar_sidecar.reports.documents import FileDigest

MANIFEST = ExtractManifest(
    tool_version="1",
    scope="public/default",
    source="zk:zookeeper:2181",
    instance_id="id",
    topics=2,
    gone=1,
    ledgers=3,
    entries=9,
    messages=20,
    unseen={"offloaded": UnseenCount(1, 50, 0), "unreadable": UnseenCount(2, 0, 1)},
    files=(
        FileDigest("messages/part-00000.parquet", 20, 500, "ab"),
        FileDigest("ledgers/part-00000.parquet", 3, 500, "cd"),
        FileDigest("unseen/part-00000.parquet", 3, 500, "ef"),
    ),
    machine_times=(5, 6),
)


def test_round_trip() -> None:
    assert parse_manifest(MANIFEST.document()) == MANIFEST


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("kind", "metadata-dump"),
        ("formatVersion", 2),
        ("complete", False),
        ("messages", 21),
        ("more", 1),
        ("files", None),
        ("unseen", {"offloaded": {"ranges": 1}}),
    ],
)
def test_everything_else_is_refused(name: str, value: object) -> None:
    with pytest.raises(InvalidInputError):
        parse_manifest(MANIFEST.document() | {name: value})


@pytest.mark.parametrize("name", sorted(MANIFEST.document()))
def test_missing_manifest_field_is_refused(name: str) -> None:
    with pytest.raises(InvalidInputError):
        parse_manifest({key: value for key, value in MANIFEST.document().items() if key != name})


@pytest.mark.parametrize("document", [None, [], "text", {}])
def test_other_documents_are_not_manifests(document: object) -> None:
    with pytest.raises(InvalidInputError):
        parse_manifest(document)
