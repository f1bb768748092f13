"""``pulsar-sidecar``: the command line, in the style of pulsar-admin.

Invariant: ``--help`` imports no client, no server and no settings; a command imports them when it runs.
"""

from collections.abc import Iterable
from typing import Annotated

import typer
from typer.completion import completion_init  # type: ignore[attr-defined]  # typer calls it for its own options only
from typer.core import TyperGroup
from typer.main import get_group

from pulsar_sidecar.cli import output as terminal
from pulsar_sidecar.cli.command_groups import LazyCommand, new_group
from pulsar_sidecar.cli.connecting import GlobalOptions
from pulsar_sidecar.cli.output import Format

_HELP = """Operator's tools that run beside unmodified Apache Pulsar brokers.

Connection options precede the command, as with pulsar-admin, and are also read from PULSAR_SIDECAR_*
(PULSAR_SIDECAR_ADMIN_URL, PULSAR_SIDECAR_AUTH_PARAMS, ...) and, for credentials and TLS, from the client.conf that
PULSAR_CLIENT_CONF names.

Ctrl-C ends every command with exit code 130; the sidecars finish the requests that they have accepted.

Example: pulsar-sidecar --admin-url http://127.0.0.1:8750 ledger-deletion status"""


def command_line(later: Iterable[LazyCommand], groups: Iterable[typer.Typer]) -> TyperGroup:
    """Return the command line of these commands, with ``later`` before the groups; ``obj`` of a call is `Programs`."""
    app = new_group("pulsar-sidecar", _HELP, context_settings={"help_option_names": ["--help", "-h"]})
    app.callback()(_global_options)
    for group in groups:
        app.add_typer(group)
    root = get_group(app)
    completion_init()
    root.commands = {**{str(command.name): command for command in later}, **root.commands}
    return root


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        terminal.result(version("pulsar-sidecar"))
        raise typer.Exit


def _global_options(
    ctx: typer.Context,
    admin_url: Annotated[
        str | None, typer.Option(metavar="URL", help="The sidecar's URL. Default: http://127.0.0.1:8750.")
    ] = None,
    auth_plugin: Annotated[
        str | None, typer.Option(metavar="PLUGIN", help="token, oauth2 or tls, or its Java class, as in client.conf.")
    ] = None,
    auth_params: Annotated[
        str | None,
        typer.Option(
            metavar="PARAMS",
            help="token:... or file:///path. Other users can see it in the process list; prefer client.conf.",
        ),
    ] = None,
    request_timeout: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="Timeout of the sidecar's response, below 86400. Default: 60."),
    ] = None,
    tls_allow_insecure: Annotated[
        bool | None, typer.Option("--tls-allow-insecure", help="Accept any certificate. For experiments only.")
    ] = None,
    tls_enable_hostname_verification: Annotated[
        bool | None,
        typer.Option(
            "--tls-enable-hostname-verification/--no-tls-enable-hostname-verification",
            help="Verify that the certificate names the host. Default: yes.",
        ),
    ] = None,
    tls_trust_cert_path: Annotated[
        str | None, typer.Option(metavar="FILE", help="PEM file with trusted CA certificates.")
    ] = None,
    output_format: Annotated[Format, typer.Option(help="Output format; may also follow the command.")] = Format.TABLE,
    output: Annotated[Format | None, typer.Option(hidden=True)] = None,
    _version: Annotated[
        bool, typer.Option("--version", "-v", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    given = {
        "admin_url": admin_url,
        "auth_plugin": auth_plugin,
        "auth_params": auth_params,
        "request_timeout": request_timeout,
        "tls_allow_insecure_connection": tls_allow_insecure,
        "tls_enable_hostname_verification": tls_enable_hostname_verification,
        "tls_trust_certs_file_path": tls_trust_cert_path,
    }
    ctx.obj = GlobalOptions(
        ctx.obj, output or output_format, {name: str(value) for name, value in given.items() if value not in (None, "")}
    )
