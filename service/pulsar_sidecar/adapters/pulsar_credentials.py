"""The sidecar's identity on connections to brokers."""

import ssl

import pulsar

from pulsar_sidecar.identity.credentials import AuthPlugin, ClientCredentials, TlsOptions
from pulsar_sidecar.model.tls import load_certificate, trusting


def client_authentication(credentials: ClientCredentials) -> pulsar.Authentication | None:
    """Return the identity for the client library."""
    match credentials.plugin:
        case AuthPlugin.TOKEN | AuthPlugin.OAUTH2:
            return pulsar.AuthenticationToken(credentials.current_token)
        case AuthPlugin.BASIC:
            return pulsar.AuthenticationBasic(credentials.user or "", credentials.password or "")
        case AuthPlugin.TLS:
            shown = credentials.certificate
            return None if shown is None else pulsar.AuthenticationTLS(str(shown.file), str(shown.key_file))
        case AuthPlugin.NONE:
            return None


def check_tls_files(credentials: ClientCredentials, tls: TlsOptions) -> None:
    """Raise `InvalidInputError` for a TLS file that cannot be used."""
    if tls.trust_certs_file is not None or credentials.shown_certificate(tls) is not None:
        tls_context(credentials, tls)


def tls_context(credentials: ClientCredentials, tls: TlsOptions) -> ssl.SSLContext:
    """Return the TLS context of connections to brokers; raise `InvalidInputError` for a file that cannot be used."""
    context = trusting(tls.trust_certs_file)
    context.check_hostname = tls.hostname_verification and not tls.allow_insecure_connection
    if tls.allow_insecure_connection:
        context.verify_mode = ssl.CERT_NONE
    certificate = credentials.shown_certificate(tls)
    if certificate is not None:
        load_certificate(context, certificate.file, certificate.key_file)
    return context
