"""The listener's side of TLS: its certificate, and the client certificates that it trusts."""

import ssl
from dataclasses import dataclass
from pathlib import Path

from pulsar_sidecar.model.tls import load_certificate, load_trusted
from pulsar_sidecar.server.reloading import Reloaded


@dataclass(frozen=True, slots=True)
class ListenerTls:
    """The settings ``listenTls...``.

    Attributes:
        trusted: PEM file with the CA certificates that verify clients; None requests no client certificate.
        client_required: True if the handshake refuses clients without a certificate that these CAs signed.
    """

    certificate: Path
    key: Path
    trusted: Path | None = None
    client_required: bool = False
    minimum_version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_2

    def context(self) -> ssl.SSLContext:
        """Return a context for new connections; raise `InvalidInputError` if a file cannot be used."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = self.minimum_version
        load_certificate(context, self.certificate, self.key)
        if self.trusted is not None:
            load_trusted(context, self.trusted)
            context.verify_mode = ssl.CERT_REQUIRED if self.client_required else ssl.CERT_OPTIONAL
        return context


def reloaded_context(tls: ListenerTls) -> Reloaded[ssl.SSLContext]:
    """Return a context that follows its files; raise `InvalidInputError` if one cannot be used now."""
    files = [file for file in (tls.certificate, tls.key, tls.trusted) if file is not None]
    return Reloaded("listenTlsCertificateFilePath", files, tls.context)
