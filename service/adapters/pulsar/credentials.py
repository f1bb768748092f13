"""How the sidecar shows brokers who it is, from the two settings that pulsar-admin takes.

``authPlugin`` and ``authParams`` mean what they mean in ``client.conf``. Invariant: no secret appears in a ``repr``, a
log line or an error, and a token file is read again on every use, so a rotated token needs no restart.
"""

import base64
import json
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import pulsar

from service.model.errors import InvalidInputError, NotAuthenticatedError

_JAVA_AUTH = "org.apache.pulsar.client.impl.auth"


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
class TlsOptions:
    """``tlsTrustCertsFilePath``, ``tlsAllowInsecureConnection``, ``tlsEnableHostnameVerification`` of client.conf."""

    trust_certs_file: Path | None = None
    allow_insecure_connection: bool = False
    hostname_verification: bool = False


@dataclass(frozen=True, slots=True)
class ClientCredentials:
    """Who the sidecar is to brokers; make it with `parse_credentials`.

    Attributes:
        token: the token itself, or None when it lives in ``token_file``.
        certificate_file: PEM of the client certificate (plugin ``tls``), with its ``private_key_file``.
    """

    plugin: AuthPlugin = AuthPlugin.NONE
    token: str | None = field(default=None, repr=False)
    token_file: Path | None = None
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    certificate_file: Path | None = None
    private_key_file: Path | None = None

    def http_headers(self) -> dict[str, str]:
        """The ``Authorization`` header for the admin REST API, if the plugin uses one.

        Raises:
            NotAuthenticatedError: the token file cannot be read.
        """
        match self.plugin:
            case AuthPlugin.TOKEN:
                return {"Authorization": f"Bearer {self.current_token()}"}
            case AuthPlugin.BASIC:
                encoded = base64.b64encode(f"{self.user}:{self.password}".encode()).decode("ascii")
                return {"Authorization": f"Basic {encoded}"}
            case AuthPlugin.NONE | AuthPlugin.TLS:
                return {}

    def http_certificate(self) -> tuple[str, str] | None:
        """The client certificate and its key as ``requests`` takes them."""
        if self.certificate_file is None or self.private_key_file is None:
            return None
        return str(self.certificate_file), str(self.private_key_file)

    def client_authentication(self) -> pulsar.Authentication | None:
        """The same identity for the binary protocol."""
        match self.plugin:
            case AuthPlugin.TOKEN:
                return pulsar.AuthenticationToken(self.current_token)
            case AuthPlugin.BASIC:
                return pulsar.AuthenticationBasic(self.user or "", self.password or "")
            case AuthPlugin.TLS:
                return pulsar.AuthenticationTLS(str(self.certificate_file), str(self.private_key_file))
            case AuthPlugin.NONE:
                return None

    def current_token(self) -> str:
        """The token as it is now; a file is read anew.

        Raises:
            NotAuthenticatedError: the file cannot be read or is empty.
        """
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


def parse_credentials(auth_plugin: str | None, auth_params: str | None) -> ClientCredentials:
    """Read ``authPlugin`` and ``authParams`` as ``client.conf`` spells them.

    Tokens: ``token:<jwt>``, ``file:///path``, or the token itself; basic: ``{"userId": ..., "password": ...}``; TLS:
    ``tlsCertFile:/path,tlsKeyFile:/path`` or the same as JSON (``AuthenticationToken/Basic/Tls.configure``).

    Raises:
        InvalidInputError: the plugin is unknown, or its parameters are not of that form.
    """
    name = (auth_plugin or "").strip()
    plugin = _PLUGIN_NAMES.get(name)
    if plugin is None:
        supported = ", ".join(known for known in _PLUGIN_NAMES if known)
        raise InvalidInputError(f"authPlugin {name[:120]!r} is not supported; use one of {supported}")
    params = (auth_params or "").strip()
    match plugin:
        case AuthPlugin.NONE:
            return ClientCredentials()
        case AuthPlugin.TOKEN:
            return _token_credentials(params)
        case AuthPlugin.BASIC:
            return _basic_credentials(params)
        case AuthPlugin.TLS:
            return _tls_credentials(params)


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


def _basic_credentials(params: str) -> ClientCredentials:
    document = _json_object(params)
    return ClientCredentials(
        AuthPlugin.BASIC, user=_text_of(document, "userId"), password=_text_of(document, "password")
    )


def _tls_credentials(params: str) -> ClientCredentials:
    values = _json_object(params) if params.startswith("{") else _pairs(params)
    certificate, key = _text_of(values, "tlsCertFile"), _text_of(values, "tlsKeyFile")
    return ClientCredentials(AuthPlugin.TLS, certificate_file=Path(certificate), private_key_file=Path(key))


def _pairs(params: str) -> dict[str, object]:
    pairs = (part.partition(":") for part in params.split(",") if part.strip())
    return {name.strip(): value.strip() for name, _, value in pairs}


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
