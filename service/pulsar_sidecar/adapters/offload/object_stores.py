"""Object-store clients of buckets, from the captured location only, with keys named as Pulsar names them.

The client also reads its configuration from the environment. Invariant: the client's address is the location's,
whatever the environment has; only credentials may come from the environment. A secret appears in no ``repr`` and in no
error.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, assert_never
from urllib.parse import urlsplit

from obstore.exceptions import BaseError
from obstore.store import AzureStore, GCSStore, S3Store

from pulsar_sidecar.model.errors import InvalidInputError, TemporaryError
from pulsar_sidecar.model.file_urls import content_of
from pulsar_sidecar.ownership.offload_locations import OffloadDriver, OffloadTarget, Storage

if TYPE_CHECKING:
    from obstore.store import AzureConfig, ClientConfig, GCSConfig, ObjectStore, RetryConfig, S3Config

_GCS_ENDPOINT = "https://storage.googleapis.com"
_RETRY: "RetryConfig" = {"max_retries": 3, "retry_timeout": timedelta(seconds=30)}


@dataclass(frozen=True, slots=True)
class AccessKey:
    """An id and its secret: an S3 access key, or an Azure account and its key."""

    key_id: str
    secret: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class OffloadCredentials:
    """Credentials by driver; None leaves them to the provider's own chain (environment, workload identity, ...).

    Attributes:
        aws_s3: ``s3ManagedLedgerOffloadCredentialId`` and ``...Secret``; also for driver ``S3`` if ``s3`` is None.
        s3: for driver ``S3``; the broker's environment has it as ``ACCESS_KEY_ID`` and ``ACCESS_KEY_SECRET``.
        aliyun_oss: ``ALIYUN_OSS_ACCESS_KEY_ID`` and ``ALIYUN_OSS_ACCESS_KEY_SECRET`` (or those of ``s3``).
        azureblob: ``AZURE_STORAGE_ACCOUNT`` and ``AZURE_STORAGE_ACCESS_KEY``.
        gcs_service_account_key_file: ``gcsManagedLedgerOffloadServiceAccountKeyFile``.
    """

    aws_s3: AccessKey | None = None
    s3: AccessKey | None = None
    aliyun_oss: AccessKey | None = None
    azureblob: AccessKey | None = None
    gcs_service_account_key_file: Path | None = None


def credentials_of(
    environment: Mapping[str, str], s3_key_id: str | None, s3_secret: str | None, gcs_key_file: Path | None
) -> OffloadCredentials:
    """Return the credentials of the settings, and those of `credentials_from_environment`.

    Raises:
        InvalidInputError: half of a pair is set, or a secret's file cannot be read.
    """
    secret = None if s3_secret is None else content_of(s3_secret, "s3ManagedLedgerOffloadCredentialSecret")
    return replace(
        credentials_from_environment(environment),
        aws_s3=AccessKey(s3_key_id, secret) if s3_key_id and secret else None,
        gcs_service_account_key_file=gcs_key_file,
    )


def credentials_from_environment(environment: Mapping[str, str]) -> OffloadCredentials:
    """Return the credentials that the broker's offloader would find in this environment (``JCloudBlobStoreProvider``).

    Amazon's and Google's own variables are left to their chains.

    Raises:
        InvalidInputError: half of a pair is set.
    """
    generic = _pair(environment, "ACCESS_KEY_ID", "ACCESS_KEY_SECRET")
    aliyun = _pair(environment, "ALIYUN_OSS_ACCESS_KEY_ID", "ALIYUN_OSS_ACCESS_KEY_SECRET")
    return OffloadCredentials(
        s3=generic or aliyun,
        aliyun_oss=generic or aliyun,
        azureblob=_pair(environment, "AZURE_STORAGE_ACCOUNT", "AZURE_STORAGE_ACCESS_KEY"),
    )


def _pair(environment: Mapping[str, str], id_name: str, secret_name: str) -> AccessKey | None:
    key_id, secret = environment.get(id_name, "").strip(), environment.get(secret_name, "").strip()
    if bool(key_id) != bool(secret):
        raise InvalidInputError(f"set both {id_name} and {secret_name}, or neither")
    return AccessKey(key_id, secret) if key_id else None


def open_store(target: OffloadTarget, credentials: OffloadCredentials) -> "ObjectStore":
    """Return a client of the bucket; this sends no request.

    Raises:
        TemporaryError: the client refuses its configuration, for example a credential from the environment.
    """
    try:
        return _open(target, credentials)
    except (BaseError, OSError, ValueError) as error:
        raise TemporaryError(
            f"no client for {target.location} ({type(error).__name__}); check the offload credentials and the "
            "environment variables of its provider"
        ) from error


def _open(target: OffloadTarget, credentials: OffloadCredentials) -> "ObjectStore":
    bucket = target.location.container
    match target.location.storage:
        case Storage.S3 | Storage.OSS:
            s3 = s3_config(target, credentials)
            return S3Store(bucket, config=s3, client_options=_client(s3["endpoint"]), retry_config=_RETRY)
        case Storage.GCS:
            gcs = gcs_config(target, credentials)
            return GCSStore(bucket, config=gcs, client_options=_client(gcs["base_url"]), retry_config=_RETRY)
        case Storage.AZURE:
            azure = azure_config(target, credentials)
            return AzureStore(bucket, config=azure, client_options=_client(azure["endpoint"]), retry_config=_RETRY)
        case Storage.FILES:
            raise ValueError("directories are not opened as buckets")
        case _:
            assert_never(target.location.storage)


def s3_config(target: OffloadTarget, credentials: OffloadCredentials) -> "S3Config":
    """Return settings for Amazon S3, compatible stores, and OSS, which needs the bucket in the host name."""
    location = target.location
    top_level_domain = "com.cn" if target.region.startswith("cn-") else "com"
    endpoint = location.endpoint or f"https://s3.{target.region}.amazonaws.{top_level_domain}"
    oss = location.storage is Storage.OSS
    if oss:
        parts = urlsplit(endpoint)
        endpoint = parts._replace(netloc=f"{location.container}.{parts.netloc}").geturl()
    config: S3Config = {
        "endpoint": endpoint,
        "aws_endpoint_url_s3": endpoint,
        "region": target.region,
        "virtual_hosted_style_request": oss,
        "disable_bulk_delete": True,
        "skip_signature": False,
    }
    key = _s3_key(target.driver, credentials)
    if key is not None:
        config |= {"access_key_id": key.key_id, "secret_access_key": key.secret}
    return config


def gcs_config(target: OffloadTarget, credentials: OffloadCredentials) -> "GCSConfig":
    """Return settings for Google Cloud Storage."""
    config: GCSConfig = {"base_url": target.location.endpoint or _GCS_ENDPOINT, "skip_signature": False}
    if credentials.gcs_service_account_key_file is not None:
        config["service_account"] = str(credentials.gcs_service_account_key_file)
    return config


def azure_config(target: OffloadTarget, credentials: OffloadCredentials) -> "AzureConfig":
    """Return settings for Azure Blob Storage; without a key the account is the first label of the endpoint's host."""
    endpoint = target.location.endpoint or ""
    key = credentials.azureblob
    config: AzureConfig = {
        "endpoint": endpoint,
        "account_name": key.key_id if key else (urlsplit(endpoint).hostname or "").partition(".")[0],
        "skip_signature": False,
    }
    if key is not None:
        config["account_key"] = key.secret
    return config


def _s3_key(driver: OffloadDriver, credentials: OffloadCredentials) -> AccessKey | None:
    if driver is OffloadDriver.ALIYUN_OSS:
        return credentials.aliyun_oss
    if driver is OffloadDriver.S3:
        return credentials.s3 or credentials.aws_s3
    return credentials.aws_s3


def _client(endpoint: str) -> "ClientConfig":
    return {"allow_http": endpoint.startswith("http://"), "connect_timeout": "5s", "timeout": "20s"}
