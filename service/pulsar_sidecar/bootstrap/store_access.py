"""Commands' access to the metadata store and to tiered storage: like the service's, from environment variables."""

import os
from collections.abc import Mapping
from pathlib import Path

from pulsar_sidecar.adapters.metadata_access import SessionOptions, StoreTls, parse_credential
from pulsar_sidecar.adapters.offload.object_stores import OffloadCredentials, credentials_of
from pulsar_sidecar.settings.sources import environment_settings


def command_session(auth: str | None) -> SessionOptions:
    """Return session options for this ``metadataStoreAuth``; raise `InvalidInputError` if it cannot be parsed."""
    return SessionOptions(credential=parse_credential(auth), tls=command_tls())


def command_tls() -> StoreTls | None:
    """Return the TLS files of the variables ``PULSAR_SIDECAR_METADATA_STORE_TLS_...``, like the service's settings."""
    written = environment_settings(os.environ)
    trusted, certificate, key = (
        written.get(f"metadata_store_tls_{name}_file_path") for name in ("trust_certs", "certificate", "key")
    )
    if trusted is None:
        return None
    own = (Path(certificate), Path(key)) if certificate and key else (None, None)
    return StoreTls(Path(trusted), *own)


def offload_credentials(environment: Mapping[str, str]) -> OffloadCredentials:
    """Return the credentials of the variables that the service has, and of those that the broker's offloader reads.

    Raises:
        InvalidInputError: half of a pair is set, or a secret's file cannot be read.
    """
    written = environment_settings(environment)
    key_file = written.get("gcs_managed_ledger_offload_service_account_key_file")
    return credentials_of(
        environment,
        written.get("s3_managed_ledger_offload_credential_id"),
        written.get("s3_managed_ledger_offload_credential_secret"),
        Path(key_file) if key_file else None,
    )
