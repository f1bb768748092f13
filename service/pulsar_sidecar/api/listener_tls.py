"""The listener's side of TLS: its certificate, and whom it trusts to be a client."""

import ssl
from dataclasses import dataclass
from pathlib import Path

from pulsar_sidecar.api.reloading import Reloaded
from pulsar_sidecar.model.tls import load_certificate, load_trusted


@dataclass(frozen=True, slots=True)
class ListenerTls:
    """What the settings ``listenTls...`` describe.

    Attributes:
        trusted: PEM file of the authorities of client certificates; None asks clients for none.
        client_required: a client without a certificate of those is refused in the handshake.
    """

    certificate: Path
    key: Path
    trusted: Path | None = None
    client_required: bool = False
    minimum_version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_2

    def context(self) -> ssl.SSLContext:
        """For connections that begin now; `InvalidInputError` if a file cannot be used."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = self.minimum_version
        load_certificate(context, self.certificate, self.key)
        if self.trusted is not None:
            load_trusted(context, self.trusted)
            context.verify_mode = ssl.CERT_REQUIRED if self.client_required else ssl.CERT_OPTIONAL
        return context


def reloaded_context(tls: ListenerTls) -> Reloaded[ssl.SSLContext]:
    """A context that follows its files; `InvalidInputError` if one cannot be used now."""
    files = [file for file in (tls.certificate, tls.key, tls.trusted) if file is not None]
    return Reloaded("listenTlsCertificateFilePath", files, tls.context)
