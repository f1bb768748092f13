"""Endpoints and keys of clients."""

from pathlib import Path

import pytest
from pulsar_sidecar.adapters.offload.object_stores import (
    AccessKey,
    OffloadCredentials,
    azure_config,
    credentials_from_environment,
    gcs_config,
    open_store,
    s3_config,
)
from pulsar_sidecar.model.errors import InvalidInputError, TemporaryError
from pulsar_sidecar.ownership.offload_locations import offload_target

AWS, GENERIC, ALIYUN = AccessKey("aws", "1"), AccessKey("generic", "2"), AccessKey("aliyun", "3")
CREDENTIALS = OffloadCredentials(AWS, GENERIC, ALIYUN, AccessKey("acme", "NA=="), Path("/keys/google.json"))


@pytest.mark.parametrize(
    ("region", "endpoint"),
    [
        ("eu-west-1", "https://s3.eu-west-1.amazonaws.com"),
        ("cn-north-1", "https://s3.cn-north-1.amazonaws.com.cn"),
    ],
)
def test_without_an_endpoint_it_is_amazon(region: str, endpoint: str) -> None:
    config = s3_config(offload_target("aws-s3", {"bucket": "copies", "region": region}), CREDENTIALS)
    assert (config["endpoint"], config["aws_endpoint_url_s3"], config["region"]) == (endpoint, endpoint, region)


@pytest.mark.parametrize(("driver_name", "key"), [("aws-s3", AWS), ("S3", GENERIC), ("aliyun-oss", ALIYUN)])
def test_each_driver_has_its_own_key(driver_name: str, key: AccessKey) -> None:
    target = offload_target(driver_name, {"bucket": "copies", "serviceEndpoint": "https://store.example"})
    config = s3_config(target, CREDENTIALS)
    assert (config["access_key_id"], config["secret_access_key"]) == (key.key_id, key.secret)


def test_the_generic_driver_falls_back_to_amazons_key() -> None:
    target = offload_target("S3", {"bucket": "copies", "serviceEndpoint": "https://store.example"})
    assert s3_config(target, OffloadCredentials(aws_s3=AWS))["access_key_id"] == "aws"


def test_without_keys_the_chain_decides() -> None:
    target = offload_target("aws-s3", {"bucket": "copies", "region": "eu-west-1"})
    assert "access_key_id" not in s3_config(target, OffloadCredentials())


def test_oss_has_the_bucket_in_the_host() -> None:
    metadata = {"bucket": "copies", "serviceEndpoint": "https://oss-cn-hangzhou.aliyuncs.com"}
    config = s3_config(offload_target("aliyun-oss", metadata), CREDENTIALS)
    assert config["endpoint"] == "https://copies.oss-cn-hangzhou.aliyuncs.com"
    assert config["virtual_hosted_style_request"] is True


def test_google_is_asked_at_its_own_address() -> None:
    config = gcs_config(offload_target("google-cloud-storage", {"bucket": "copies"}), CREDENTIALS)
    assert config["base_url"] == "https://storage.googleapis.com"
    assert config["service_account"] == "/keys/google.json"


def test_an_azure_account_is_the_keys_or_the_hosts() -> None:
    wanted = offload_target("azureblob", {"bucket": "copies", "serviceEndpoint": "https://host-account.example"})
    assert azure_config(wanted, CREDENTIALS)["account_name"] == "acme"
    assert azure_config(wanted, OffloadCredentials())["account_name"] == "host-account"


def test_a_key_file_that_is_missing_is_temporary(tmp_path: Path) -> None:
    credentials = OffloadCredentials(gcs_service_account_key_file=tmp_path / "missing.json")
    with pytest.raises(TemporaryError, match="credentials"):
        open_store(offload_target("google-cloud-storage", {"bucket": "copies"}), credentials)


def test_keys_are_read_as_the_broker_reads_them() -> None:
    environment = {
        "ALIYUN_OSS_ACCESS_KEY_ID": "aliyun",
        "ALIYUN_OSS_ACCESS_KEY_SECRET": "3",
        "AZURE_STORAGE_ACCOUNT": "acme",
        "AZURE_STORAGE_ACCESS_KEY": "NA==",
    }
    found = credentials_from_environment(environment)
    assert found == OffloadCredentials(s3=ALIYUN, aliyun_oss=ALIYUN, azureblob=AccessKey("acme", "NA=="))
    generic = {"ACCESS_KEY_ID": "generic", "ACCESS_KEY_SECRET": "2"}
    assert credentials_from_environment(environment | generic).aliyun_oss == GENERIC
    assert credentials_from_environment({}) == OffloadCredentials()


def test_half_a_pair_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="ACCESS_KEY_SECRET"):
        credentials_from_environment({"ACCESS_KEY_ID": "generic"})
