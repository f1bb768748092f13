"""Credentials of a client, from the two settings that pulsar-admin takes.

``authPlugin`` and ``authParams`` mean what they mean in ``client.conf``. Invariant: no secret appears in a ``repr``, a
log line or an error, and every use reads a token file again, so a rotated token needs no restart.
"""

import base64
import json
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Final

from pulsar_sidecar.identity.oauth2 import OAuth2Tokens, parse_oauth2
from pulsar_sidecar.model.client_conf import ClientConf
from pulsar_sidecar.model.errors import InvalidInputError, NotAuthenticatedError
from pulsar_sidecar.model.file_urls import path_of

_JAVA_AUTH = "org.apache.pulsar.client.impl.auth"
_AUTH_METHOD: Final = "X-Pulsar-Auth-Method-Name"


class AuthPlugin(Enum):
    """The ways of authenticating that the sidecar knows, by pulsar-admin's short names."""

    NONE = "none"
    TOKEN = "token"  # noqa: S105 - the name of a method, no secret
    OAUTH2 = "oauth2"
    BASIC = "basic"
    TLS = "tls"


_PLUGIN_NAMES: Final[dict[str, AuthPlugin]] = {
    "": AuthPlugin.NONE,
    "disabled": AuthPlugin.NONE,
    f"{_JAVA_AUTH}.AuthenticationDisabled": AuthPlugin.NONE,
    "token": AuthPlugin.TOKEN,
    f"{_JAVA_AUTH}.AuthenticationToken": AuthPlugin.TOKEN,
    "oauth2": AuthPlugin.OAUTH2,
    f"{_JAVA_AUTH}.oauth2.AuthenticationOAuth2": AuthPlugin.OAUTH2,
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
        client_certificate: certificate for brokers that request one, whatever the credentials are.
    """

    trust_certs_file: Path | None = None
    allow_insecure_connection: bool = False
    hostname_verification: bool = False
    client_certificate: ClientCertificate | None = None


@dataclass(frozen=True, slots=True)
class ClientCredentials:
    """Credentials of a client; made by `parse_credentials`.

    Attributes:
        tokens: source of tokens (plugin ``oauth2``).
        token: the token itself, or None if it is in ``token_file``.
        certificate: the client certificate that is the identity (plugin ``tls``).
    """

    plugin: AuthPlugin = AuthPlugin.NONE
    token: str | None = field(default=None, repr=False)
    token_file: Path | None = None
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    certificate: ClientCertificate | None = None
    tokens: OAuth2Tokens | None = None

    @property
    def method(self) -> str:
        """The method's name on the wire: a token is a token, wherever it comes from."""
        return AuthPlugin.TOKEN.value if self.plugin is AuthPlugin.OAUTH2 else self.plugin.value

    @property
    def is_secret(self) -> bool:
        """True if a party that reads the traffic can act with our identity."""
        return self.plugin in (AuthPlugin.TOKEN, AuthPlugin.OAUTH2, AuthPlugin.BASIC)

    def http_headers(self) -> dict[str, str]:
        """Return the headers for the admin REST API; raises as `current_token`.

        They name the plugin, without which brokers of 4.2 with ``strictAuthMethod`` ignore the other headers.
        """
        if self.plugin is AuthPlugin.NONE:
            return {}
        headers = {_AUTH_METHOD: self.method}
        if self.method == AuthPlugin.TOKEN.value:
            headers["Authorization"] = f"Bearer {self.current_token()}"
        if self.plugin is AuthPlugin.BASIC:
            headers["Authorization"] = f"Basic {base64.b64encode(self.binary_data()).decode('ascii')}"
        return headers

    def binary_data(self) -> bytes:
        """Return the ``auth_data`` of the binary protocol, which goes with `method` as ``auth_method_name``."""
        match self.plugin:
            case AuthPlugin.TOKEN | AuthPlugin.OAUTH2:
                return self.current_token().encode()
            case AuthPlugin.BASIC:
                return f"{self.user}:{self.password}".encode()
            case AuthPlugin.NONE | AuthPlugin.TLS:
                return b""

    def shown_certificate(self, tls: TlsOptions) -> ClientCertificate | None:
        return self.certificate or tls.client_certificate

    def current_token(self) -> str:
        """Return the present token; reread its file.

        Raises:
            NotAuthenticatedError: the file cannot be used, or the issuer of tokens refuses the client.
            TemporaryError: the issuer of tokens does not respond.
        """
        if self.tokens is not None:
            return self.tokens.current()
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
        if not _is_token(token):
            raise NotAuthenticatedError(f"the token file {self.token_file} holds more than a token; check authParams")
        return token


def identity_of(conf: ClientConf, certificate: ClientCertificate | None = None) -> tuple[ClientCredentials, TlsOptions]:
    """Return our credentials and TLS options for brokers; ``certificate`` is that of ``tlsCertificateFilePath``.

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

    Tokens: ``token:<jwt>``, ``file:///path``, or the token itself; OAuth2: as `parse_oauth2`; basic:
    ``{"userId": ..., "password": ...}``, each JSON also as ``file:///path``; TLS:
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
        case AuthPlugin.OAUTH2:
            return ClientCredentials(plugin, tokens=OAuth2Tokens(parse_oauth2(_json_object(params))))
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
        return ClientCredentials(AuthPlugin.TOKEN, token_file=_file(params))
    token = params.removeprefix("token:").strip()
    if not _is_token(token):
        raise InvalidInputError(
            "authParams of the token plugin must be token:<token>, file:///path or the token itself"
        )
    return ClientCredentials(AuthPlugin.TOKEN, token=token)


def _file(url: str) -> Path:
    path = path_of(url)
    if path == Path():
        raise InvalidInputError("authParams in a file must be file:///path/to/it")
    return path


def _is_token(text: str) -> bool:
    return bool(text) and text.isascii() and text.isprintable() and " " not in text


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
        document = json.loads(_file(params).read_bytes() if params.startswith("file:") else params)
    except (OSError, ValueError):
        document = None
    if not isinstance(document, dict):
        raise InvalidInputError("authParams must be the JSON object that this authPlugin expects")
    return document


def _text_of(document: dict[str, object], name: str) -> str:
    value = document.get(name)
    if not isinstance(value, str) or not value:
        raise InvalidInputError(f"authParams lack {name}, which this authPlugin needs")
    return value
