"""How the sidecar shows brokers who it is, from the two settings that pulsar-admin takes.

``authPlugin`` and ``authParams`` mean what they mean in ``client.conf``. Invariant: no secret appears in a ``repr``, a
log line or an error, and a token file is read again on every use, so a rotated token needs no restart.
"""

import base64
import json
import ssl
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import pulsar

from pulsar_sidecar.model.client_conf import ClientConf
from pulsar_sidecar.model.errors import InvalidInputError, NotAuthenticatedError
from pulsar_sidecar.model.tls import load_certificate, trusting

_JAVA_AUTH = "org.apache.pulsar.client.impl.auth"
_AUTH_METHOD: Final = "X-Pulsar-Auth-Method-Name"


class AuthPlugin(Enum):
    """The ways of authenticating that the sidecar knows, by pulsar-admin's short names."""

    NONE = "none"
    TOKEN = "token"  # noqa: S105 - the name of a method, no secret
    BASIC = "basic"
    TLS = "tls"


_PLUGIN_NAMES: Final[dict[str, AuthPlugin]] = {
    "": AuthPlugin.NONE,
    "disabled": AuthPlugin.NONE,
    f"{_JAVA_AUTH}.AuthenticationDisabled": AuthPlugin.NONE,
    "token": AuthPlugin.TOKEN,
    f"{_JAVA_AUTH}.AuthenticationToken": AuthPlugin.TOKEN,
    "basic": AuthPlugin.BASIC,
    f"{_JAVA_AUTH}.AuthenticationBasic": AuthPlugin.BASIC,
    "tls": AuthPlugin.TLS,
    f"{_JAVA_AUTH}.AuthenticationTls": AuthPlugin.TLS,
}


@dataclass(frozen=True, slots=True)
class ClientCertificate:
    """PEM files of a certificate and its key."""

    file: Path
    key_file: Path


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """The settings of TLS in client.conf: ``tlsTrustCertsFilePath``, ``tlsAllowInsecureConnection`` and so on.

    Attributes:
        client_certificate: shown to brokers that ask for one, whatever the credentials are.
    """

    trust_certs_file: Path | None = None
    allow_insecure_connection: bool = False
    hostname_verification: bool = False
    client_certificate: ClientCertificate | None = None


@dataclass(frozen=True, slots=True)
class ClientCredentials:
    """Who the sidecar is to brokers; make it with `parse_credentials`.

    Attributes:
        token: the token itself, or None when it lives in ``token_file``.
        certificate: the client certificate that is the identity (plugin ``tls``).
    """

    plugin: AuthPlugin = AuthPlugin.NONE
    token: str | None = field(default=None, repr=False)
    token_file: Path | None = None
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    certificate: ClientCertificate | None = None

    @property
    def is_secret(self) -> bool:
        """Whether a party that reads the traffic can act with our identity."""
        return self.plugin in (AuthPlugin.TOKEN, AuthPlugin.BASIC)

    def http_headers(self) -> dict[str, str]:
        """The headers for the admin REST API; raises as `current_token`.

        They name the plugin, without which brokers of 4.2 with ``strictAuthMethod`` look at nothing else.
        """
        if self.plugin is AuthPlugin.NONE:
            return {}
        headers = {_AUTH_METHOD: self.plugin.value}
        if self.plugin is AuthPlugin.TOKEN:
            headers["Authorization"] = f"Bearer {self.current_token()}"
        if self.plugin is AuthPlugin.BASIC:
            headers["Authorization"] = f"Basic {base64.b64encode(self.binary_data()).decode('ascii')}"
        return headers

    def binary_data(self) -> bytes:
        """What the binary protocol sends as ``auth_data``, with the plugin's value as ``auth_method_name``."""
        match self.plugin:
            case AuthPlugin.TOKEN:
                return self.current_token().encode()
            case AuthPlugin.BASIC:
                return f"{self.user}:{self.password}".encode()
            case AuthPlugin.NONE | AuthPlugin.TLS:
                return b""

    def shown_certificate(self, tls: TlsOptions) -> ClientCertificate | None:
        return self.certificate or tls.client_certificate

    def client_authentication(self) -> pulsar.Authentication | None:
        """The same identity for the binary protocol."""
        match self.plugin:
            case AuthPlugin.TOKEN:
                return pulsar.AuthenticationToken(self.current_token)
            case AuthPlugin.BASIC:
                return pulsar.AuthenticationBasic(self.user or "", self.password or "")
            case AuthPlugin.TLS:
                shown = self.certificate
                return None if shown is None else pulsar.AuthenticationTLS(str(shown.file), str(shown.key_file))
            case AuthPlugin.NONE:
                return None

    def current_token(self) -> str:
        """The token as it is now; a file is read anew, and if it is unusable, NotAuthenticatedError is raised."""
        if self.token_file is None:
            return self.token or ""
        try:
            token = self.token_file.read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise NotAuthenticatedError(
                f"the token file {self.token_file} cannot be read ({type(error).__name__}); check authParams"
            ) from error
        if not token:
            raise NotAuthenticatedError(f"the token file {self.token_file} is empty; check authParams")
        return token


def check_tls_files(credentials: ClientCredentials, tls: TlsOptions) -> None:
    """`InvalidInputError` for a file that cannot be used; reads nothing where none is named."""
    if tls.trust_certs_file is not None or credentials.shown_certificate(tls) is not None:
        tls_context(credentials, tls)


def tls_context(credentials: ClientCredentials, tls: TlsOptions) -> ssl.SSLContext:
    """How a connection to a broker is secured; a file that cannot be used is an `InvalidInputError`."""
    context = trusting(tls.trust_certs_file)
    context.check_hostname = tls.hostname_verification and not tls.allow_insecure_connection
    if tls.allow_insecure_connection:
        context.verify_mode = ssl.CERT_NONE
    certificate = credentials.shown_certificate(tls)
    if certificate is not None:
        load_certificate(context, certificate.file, certificate.key_file)
    return context


def identity_of(conf: ClientConf, certificate: ClientCertificate | None = None) -> tuple[ClientCredentials, TlsOptions]:
    """Who we are to brokers and how we connect to them; ``certificate`` is that of ``tlsCertificateFilePath``.

    Raises:
        InvalidInputError: as `parse_credentials`.
    """
    return parse_credentials(conf.auth_plugin, conf.auth_params, certificate), TlsOptions(
        trust_certs_file=conf.tls_trust_certs_file,
        allow_insecure_connection=conf.tls_allow_insecure_connection,
        hostname_verification=conf.tls_enable_hostname_verification,
        client_certificate=certificate,
    )


def parse_credentials(
    auth_plugin: str | None, auth_params: str | None, certificate: ClientCertificate | None = None
) -> ClientCredentials:
    """Read ``authPlugin`` and ``authParams`` as ``client.conf`` spells them.

    Tokens: ``token:<jwt>``, ``file:///path``, or the token itself; basic: ``{"userId": ..., "password": ...}``; TLS:
    ``tlsCertFile:/path,tlsKeyFile:/path`` or the same as JSON (``AuthenticationToken/Basic/Tls.configure``), or nothing
    where ``certificate`` is the one of ``tlsCertificateFilePath``.

    Raises:
        InvalidInputError: the plugin is unknown or not named, or its parameters are not of that form.
    """
    name = (auth_plugin or "").strip()
    plugin = _PLUGIN_NAMES.get(name)
    if plugin is None:
        supported = ", ".join(known for known in _PLUGIN_NAMES if known)
        raise InvalidInputError(f"authPlugin {name[:120]!r} is not supported; use one of {supported}")
    params = (auth_params or "").strip()
    if params and not name:
        raise InvalidInputError("authParams are set and authPlugin is not; write for example authPlugin=token")
    match plugin:
        case AuthPlugin.NONE:
            return ClientCredentials()
        case AuthPlugin.TOKEN:
            return _token_credentials(params)
        case AuthPlugin.BASIC:
            document = _json_object(params)
            user, password = _text_of(document, "userId"), _text_of(document, "password")
            return ClientCredentials(AuthPlugin.BASIC, user=user, password=password)
        case AuthPlugin.TLS:
            return _tls_credentials(params, certificate)


def _token_credentials(params: str) -> ClientCredentials:
    if params.startswith("{"):
        params = "token:" + _text_of(_json_object(params), "token")
    if params.startswith("file:"):
        path = unquote(urlsplit(params).path)
        if not path:
            raise InvalidInputError("authParams of a token file are file:///path/to/token")
        return ClientCredentials(AuthPlugin.TOKEN, token_file=Path(path))
    token = params.removeprefix("token:").strip()
    if not token:
        raise InvalidInputError("authParams of the token plugin are token:<token>, file:///path or the token itself")
    return ClientCredentials(AuthPlugin.TOKEN, token=token)


def _tls_credentials(params: str, certificate: ClientCertificate | None) -> ClientCredentials:
    if not params and certificate is not None:
        return ClientCredentials(AuthPlugin.TLS, certificate=certificate)
    pairs = (part.partition(":") for part in params.split(",") if part.strip())
    values: dict[str, object] = {name.strip(): value.strip() for name, _, value in pairs}
    if params.startswith("{"):
        values = _json_object(params)
    named = ClientCertificate(Path(_text_of(values, "tlsCertFile")), Path(_text_of(values, "tlsKeyFile")))
    return ClientCredentials(AuthPlugin.TLS, certificate=named)


def _json_object(params: str) -> dict[str, object]:
    # The text may hold a secret, so neither it nor the parser's message goes into the error.
    try:
        document = json.loads(params)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise InvalidInputError("authParams are not the JSON object that this authPlugin takes")
    return document


def _text_of(document: dict[str, object], name: str) -> str:
    value = document.get(name)
    if not isinstance(value, str) or not value:
        raise InvalidInputError(f"authParams lack {name}, which this authPlugin needs")
    return value
