"""Locations that the sidecar may use."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pulsar_sidecar.model.errors import InvalidInputError, PermanentError
from pulsar_sidecar.ownership.offload_locations import (
    AllowedLocations,
    OffloadDriver,
    OffloadLocation,
    Storage,
    offload_target,
    parse_location,
)

MINIO = "https://minio.example:9000"


def s3(bucket: str = "copies", region: str = "eu-west-1", endpoint: str = "", driver: str = "AWS_S3") -> dict[str, str]:
    return {
        "managedLedgerOffloadDriver": driver,
        "bucket": bucket,
        "region": region,
        "serviceEndpoint": endpoint,
    }


@pytest.mark.parametrize(
    ("text", "location"),
    [
        ("s3://copies", OffloadLocation(Storage.S3, "copies")),
        (f"s3://copies@{MINIO}", OffloadLocation(Storage.S3, "copies", MINIO)),
        ("s3://copies@HTTPS://Minio.Example:443/", OffloadLocation(Storage.S3, "copies", "https://minio.example")),
        ("s3://copies@http://[::1]:9000", OffloadLocation(Storage.S3, "copies", "http://[::1]:9000")),
        ("gs://copies", OffloadLocation(Storage.GCS, "copies")),
        (
            "oss://copies@https://oss-cn-hangzhou.aliyuncs.com",
            OffloadLocation(Storage.OSS, "copies", "https://oss-cn-hangzhou.aliyuncs.com"),
        ),
        (
            "azure://copies@https://acme.blob.core.windows.net",
            OffloadLocation(Storage.AZURE, "copies", "https://acme.blob.core.windows.net"),
        ),
        ("file:///mnt//copies/", OffloadLocation(Storage.FILES, "/mnt/copies")),
    ],
)
def test_a_location_is_read_and_written(text: str, location: OffloadLocation) -> None:
    assert parse_location(text) == location
    assert parse_location(str(location)) == location


@pytest.mark.parametrize(
    "text",
    [
        "",
        "copies",
        "s3:copies",
        "s3://",
        "s3://*",
        "s3://copies/folder",
        "s3://copies@minio:9000",
        "s3://copies@ftp://minio",
        "s3://copies@https://user:secret@minio",
        "s3://copies@https://minio?x=1",
        "s3://copies@https://minio:port",
        "hdfs://namenode/copies",
        "azure://copies",
        "oss://copies",
        "file://copies",
        "file:///mnt/../etc",
    ],
)
def test_invalid_location_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError):
        parse_location(text)


def test_one_azure_container_at_two_accounts_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="two accounts"):
        AllowedLocations(["azure://copies@https://a.example", "azure://copies@https://b.example"])


@pytest.mark.parametrize(
    ("driver_name", "metadata", "listed"),
    [
        ("aws-s3", s3(), "s3://copies"),
        ("AWS-S3", s3(), "s3://copies"),
        ("S3", s3(region="", endpoint=MINIO + "/", driver="S3"), f"s3://copies@{MINIO}"),
        ("google-cloud-storage", {"bucket": "copies", "region": "", "serviceEndpoint": ""}, "gs://copies"),
        ("azureblob", {"bucket": "copies"}, "azure://copies@https://acme.blob.core.windows.net"),
        (
            "aliyun-oss",
            {"bucket": "copies", "serviceEndpoint": "http://oss.example"},
            "oss://copies@http://oss.example",
        ),
        ("filesystem", {"storageBasePath": "file:///mnt/copies/"}, "file:///mnt/copies"),
        ("filesystem", {"storageBasePath": "/mnt/copies"}, "file:///mnt/copies"),
    ],
)
def test_a_listed_place_is_found(driver_name: str, metadata: Mapping[str, str], listed: str) -> None:
    target = offload_target(driver_name, metadata)
    others = ["s3://other", f"s3://other@{MINIO}", "gs://other", "file:///mnt"]
    assert AllowedLocations([*others, listed]).permitted(target.location) == parse_location(listed)


@pytest.mark.parametrize(
    ("driver_name", "metadata"),
    [
        ("aws-s3", s3(bucket="copies2")),
        ("aws-s3", s3(bucket="Copies")),
        ("aws-s3", s3(endpoint="http://169.254.169.254")),
        ("S3", s3(endpoint="http://minio.example:9000", driver="S3")),
        ("S3", s3(endpoint="https://minio.example", driver="S3")),
        ("S3", s3(endpoint="https://minio.example:9000.evil.example", driver="S3")),
        ("google-cloud-storage", {"bucket": "copies", "serviceEndpoint": "https://evil.example"}),
        ("azureblob", {"bucket": "copies2"}),
        ("aliyun-oss", {"bucket": "copies", "serviceEndpoint": MINIO}),
        ("filesystem", {"storageBasePath": "file:///mnt/copies/deeper"}),
        ("filesystem", {"storageBasePath": "file:///mnt"}),
        ("filesystem", {"storageBasePath": "file:///mnt/copies/../secrets"}),
        ("filesystem", {"storageBasePath": "hdfs://namenode:9000"}),
        ("filesystem", {"storageBasePath": "null"}),
        ("filesystem", {}),
        ("aws-s3", {}),
        ("aws-s3", s3(region="evil.example/")),
        ("aws-s3", s3(region="")),
        ("aws-s3", s3(bucket="copies@evil.example")),
        ("aws-s3", s3(bucket="../copies")),
        ("aws-s3", s3(driver="S3")),
        ("transient", s3()),
        ("", s3()),
    ],
)
def test_everything_else_is_refused(driver_name: str, metadata: Mapping[str, str]) -> None:
    listed = [
        "s3://copies",
        f"s3://copies@{MINIO}",
        "gs://copies",
        "azure://copies@https://acme.blob.core.windows.net",
        "file:///mnt/copies",
    ]
    with pytest.raises(PermanentError):
        AllowedLocations(listed).permitted(offload_target(driver_name, metadata).location)


@given(
    st.sampled_from([driver.value for driver in OffloadDriver]),
    st.dictionaries(
        st.sampled_from(["bucket", "region", "serviceEndpoint", "storageBasePath"]),
        st.one_of(st.text(max_size=40), st.sampled_from(["copies", MINIO, "https://copies@minio.example:9000", "//"])),
    ),
)
def test_only_listed_locations_are_permitted(driver_name: str, metadata: dict[str, str]) -> None:
    listed = [f"s3://copies@{MINIO}", "file:///mnt/copies"]
    try:
        location = AllowedLocations(listed).permitted(offload_target(driver_name, metadata).location)
    except PermanentError:
        return
    assert location in [parse_location(text) for text in listed]


def test_no_location_is_allowed_by_default() -> None:
    with pytest.raises(PermanentError, match="offloadAllowedLocations"):
        AllowedLocations([]).permitted(offload_target("aws-s3", s3()).location)


@pytest.mark.parametrize(
    ("region", "endpoint", "expected"),
    [
        ("eu-west-1", MINIO, "eu-west-1"),
        ("", MINIO, "us-east-1"),
        ("", "https://s3.eu-west-1.amazonaws.com", "eu-west-1"),
        ("", "https://s3-us-gov-west-1.amazonaws.com", "us-gov-west-1"),
        ("", "https://s3.cn-north-1.amazonaws.com.cn", "cn-north-1"),
    ],
)
def test_the_region_is_recorded_or_in_the_endpoint(region: str, endpoint: str, expected: str) -> None:
    assert offload_target("aws-s3", s3(region=region, endpoint=endpoint)).region == expected
