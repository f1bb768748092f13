"""The global options, by pulsar-admin's names, and what they become: one client and one format.

Precedence: flag, then ``PULSAR_SIDECAR_*``, then ``client.conf``. The address is the sidecar's own, so the broker's
``webServiceUrl`` in ``client.conf`` is not used for it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from pulsar_sidecar.cli import output
from pulsar_sidecar.cli.output import Format
from pulsar_sidecar.model.addresses import is_loopback
from pulsar_sidecar.model.errors import InvalidInputError
from pulsar_sidecar.settings.sources import client_conf_layer, environment_layer

if TYPE_CHECKING:
    from pulsar_sidecar.cli.client import SidecarClient

DEFAULT_ADMIN_URL = "http://127.0.0.1:8750"
DEFAULT_REQUEST_TIMEOUT_SECONDS = 60.0

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

    def client(self) -> "SidecarClient":
        """A client with these options; reads ``client.conf`` only now, so ``--help`` never fails over it."""
        from pathlib import Path

        from pulsar_sidecar.cli.client import SidecarClient, Tls
        from pulsar_sidecar.cli.credentials import token_of

        written = {**client_conf_layer(self.environment).values, **environment_layer(self.environment).values}
        trusted = self.tls_trust_cert_path or written.get("tls_trust_certs_file_path")
        admin_url = self.admin_url or written.get("admin_url") or DEFAULT_ADMIN_URL
        token = token_of(self.auth_plugin or written.get("auth_plugin"), self.auth_params or written.get("auth_params"))
        client = SidecarClient(
            admin_url,
            token,
            self.request_timeout_seconds or _seconds(written.get("request_timeout")),
            Tls(
                Path(trusted) if trusted else None,
                _chosen(self.tls_allow_insecure, written.get("tls_allow_insecure_connection"), False),
                _chosen(self.tls_enable_hostname_verification, written.get("tls_enable_hostname_verification"), True),
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


def _chosen(flag: bool | None, text: str | None, default: bool) -> bool:
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
