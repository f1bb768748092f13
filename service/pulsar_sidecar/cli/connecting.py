"""The global options, by pulsar-admin's names, and what they become: one client and one format.

Precedence: flag, then ``PULSAR_SIDECAR_*``, then ``client.conf``. The address is the sidecar's own, so the broker's
``webServiceUrl`` in ``client.conf`` is not used for it. Invariant: the token appears in no message.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import unquote, urlsplit

import typer

from pulsar_sidecar.cli import output
from pulsar_sidecar.cli.output import Format
from pulsar_sidecar.model.errors import InvalidInputError
from pulsar_sidecar.model.tls import is_loopback
from pulsar_sidecar.settings.sources import client_conf_settings, environment_settings

if TYPE_CHECKING:
    from pulsar_sidecar.cli.client import SidecarClient

DEFAULT_ADMIN_URL = "http://127.0.0.1:8750"
DEFAULT_REQUEST_TIMEOUT_SECONDS = 60.0

_TOKEN_PLUGINS = frozenset({"token", "org.apache.pulsar.client.impl.auth.AuthenticationToken"})

Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="persistent://tenant/namespace/topic")]
Output = Annotated[Format | None, typer.Option("--output", help="json or table; overrides the global option.")]


@dataclass(frozen=True, slots=True)
class GlobalOptions:
    """The global options as given; None means "look elsewhere"."""

    environment: Mapping[str, str] = field(repr=False)
    output: Format = Format.TABLE
    admin_url: str | None = None
    auth_plugin: str | None = None
    auth_params: str | None = field(default=None, repr=False)
    request_timeout_seconds: float | None = None
    tls_allow_insecure: bool | None = None
    tls_enable_hostname_verification: bool | None = None
    tls_trust_cert_path: str | None = None

    def format(self, chosen: Format | None) -> Format:
        """The command's own choice, or the global one."""
        return chosen or self.output

    def written(self) -> Mapping[str, str]:
        """The settings in ``client.conf`` and the environment; read only now, so ``--help`` never fails over them."""
        return {**client_conf_settings(self.environment), **environment_settings(self.environment)}

    def client(self) -> "SidecarClient":
        """A client with these options."""
        from pulsar_sidecar.cli.client import SidecarClient, Tls

        written = self.written()
        trusted = self.tls_trust_cert_path or written.get("tls_trust_certs_file_path")
        admin_url = self.admin_url or written.get("admin_url") or DEFAULT_ADMIN_URL
        token = token_of(self.auth_plugin or written.get("auth_plugin"), self.auth_params or written.get("auth_params"))
        client = SidecarClient(
            admin_url,
            token,
            self.request_timeout_seconds or _seconds(written.get("request_timeout")),
            Tls(
                Path(trusted) if trusted else None,
                chosen(self.tls_allow_insecure, written.get("tls_allow_insecure_connection"), False),
                chosen(self.tls_enable_hostname_verification, written.get("tls_enable_hostname_verification"), True),
            ),
        )
        parts = urlsplit(admin_url)
        host = parts.hostname or ""
        if token is not None and parts.scheme == "http" and not is_loopback(host):
            output.info(
                f"the token travels in clear to {output.printable(host)}; serve the sidecar with TLS and use https://"
            )
        return client


def show_answer(
    ctx: typer.Context,
    form: Format | None,
    method: str,
    path: str,
    body: object = None,
    parameters: Mapping[str, str | int] | None = None,
) -> None:
    """Call the sidecar and write its answer."""
    options: GlobalOptions = ctx.obj
    output.document(options.client().call(method, path, body, parameters), options.format(form))


def chosen(flag: bool | None, text: str | None, default: bool) -> bool:
    """A flag, else what is written, else the default."""
    if flag is not None:
        return flag
    return default if text is None else text.strip().lower() == "true"


def _seconds(text: str | None) -> float:
    if text is None:
        return DEFAULT_REQUEST_TIMEOUT_SECONDS
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 86_400:
        raise InvalidInputError("PULSAR_SIDECAR_REQUEST_TIMEOUT must be a number of seconds above 0, such as 60")
    return seconds


def token_of(auth_plugin: str | None, auth_params: str | None) -> str | None:
    """The token that ``authPlugin`` and ``authParams`` stand for (``AuthenticationToken.configure``).

    Raises:
        InvalidInputError: the plugin is not the token's, or the token cannot be read.
    """
    if auth_plugin and auth_plugin not in _TOKEN_PLUGINS:
        raise InvalidInputError(
            f"the sidecar accepts tokens only, and {auth_plugin} is not the token plugin; use --auth-plugin token"
        )
    if not auth_params:
        return None
    token = _token(auth_params).strip()
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise InvalidInputError("authParams contain no token; write token:... or file:///path/to/token")
    return token


def _token(auth_params: str) -> str:
    if auth_params.startswith("token:"):
        return auth_params.removeprefix("token:")
    if auth_params.startswith("file:"):
        return _token_in_file(Path(unquote(urlsplit(auth_params).path)))
    if auth_params.lstrip().startswith("{"):
        return _token_in_json(auth_params)
    return auth_params


def _token_in_file(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"the token's file {path} cannot be read ({type(error).__name__})") from error


def _token_in_json(text: str) -> str:
    try:
        document = json.loads(text)
    except ValueError:
        raise InvalidInputError(
            'authParams start like JSON and cannot be parsed; write {"token": "..."}, token:... or file:///path/to/token'
        ) from None
    return str(document.get("token", "")) if isinstance(document, dict) else ""
