"""A command's identity to brokers and its trusted CA certificates, by the names of Pulsar's ``client.conf``."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final


@dataclass(frozen=True, slots=True)
class ClientConf:
    """``authPlugin``, ``authParams`` and the settings of TLS, with the defaults of the commands."""

    auth_plugin: str | None = None
    auth_params: str | None = field(default=None, repr=False)
    tls_trust_certs_file: Path | None = None
    tls_allow_insecure_connection: bool = False
    tls_enable_hostname_verification: bool = True


NO_CLIENT_CONF: Final = ClientConf()
