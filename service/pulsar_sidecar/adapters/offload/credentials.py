"""Keys for object stores, named as Pulsar names them and never shown.

Invariant: a secret appears in no ``repr`` and in no error.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pulsar_sidecar.model.errors import InvalidInputError


@dataclass(frozen=True, slots=True)
class AccessKey:
    """An id and its secret: an S3 access key, or an Azure account and its key."""

    key_id: str
    secret: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class OffloadCredentials:
    """Credentials by driver. What is None is left to the provider's own chain (environment, workload identity, ...).

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


def credentials_from_environment(environment: Mapping[str, str]) -> OffloadCredentials:
    """What the broker's offloader would find in the same environment (``JCloudBlobStoreProvider``).

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
