"""How commands connect to the metadata store: as the service does, but with what the environment has of TLS."""

import os
from pathlib import Path

from pulsar_sidecar.adapters.metadata.addressing import ZooKeeperTls, parse_credential
from pulsar_sidecar.adapters.metadata.session import SessionOptions
from pulsar_sidecar.settings.sources import environment_settings


def command_session(auth: str | None) -> SessionOptions:
    """For a command with this ``metadataStoreAuth``; `InvalidInputError` if it cannot be read."""
    return SessionOptions(credential=parse_credential(auth), tls=command_tls())


def command_tls() -> ZooKeeperTls | None:
    """What the variables ``PULSAR_SIDECAR_METADATA_STORE_TLS_...`` name, as the service's settings do."""
    written = environment_settings(os.environ)
    trusted, certificate, key = (
        written.get(f"metadata_store_tls_{name}_file_path") for name in ("trust_certs", "certificate", "key")
    )
    if trusted is None:
        return None
    own = (Path(certificate), Path(key)) if certificate and key else (None, None)
    return ZooKeeperTls(Path(trusted), *own)
