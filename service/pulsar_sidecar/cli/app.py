"""``pulsar-sidecar``: the command line, in the style of pulsar-admin.

Invariant: ``--help`` imports no client, no server and no settings; a command does that when it runs.
"""

from typing import Annotated, Any

import typer
from typer.completion import completion_init  # type: ignore[attr-defined]  # typer calls it for its own options only
from typer.core import TyperGroup
from typer.main import get_group

from pulsar_sidecar.cli import output as terminal
from pulsar_sidecar.cli.command_groups import LazyCommand, new_group
from pulsar_sidecar.cli.connecting import GlobalOptions, Programs
from pulsar_sidecar.cli.groups import (
    audit,
    audit_sources,
    deduplication,
    delayed_index,
    delayed_messages,
    ledger_deletion,
    namespaces,  # noqa: F401  it adds its command to those of namespaces
    pins,
    subscriptions,
    topics,
    waiting_messages,  # noqa: F401  it adds its command to those of topics
)
from pulsar_sidecar.cli.output import Format

_HELP = """Operator's tools that run beside unmodified Apache Pulsar brokers.

Options for the connection stand before the command, as with pulsar-admin, and are also read from PULSAR_SIDECAR_*
(PULSAR_SIDECAR_ADMIN_URL, PULSAR_SIDECAR_AUTH_PARAMS, ...) and, for credentials and TLS, from the client.conf that
PULSAR_CLIENT_CONF names.

Ctrl-C ends every command with exit code 130; what the sidecars were asked before, they do.

Example: pulsar-sidecar --admin-url http://127.0.0.1:8750 ledger-deletion status"""

_IMPORTED_LATER: dict[str, tuple[Any, ...]] = {
    "serve": ("Run the sidecar until a signal stops it.", "serving:app"),
    "doctor": ("Look whether the cluster is as the sidecar needs it.", "doctor:app", True),
    "drained": ("Show what would stay undone if the sidecars were removed now.", "drained:app", True),
    "whoami": ("Show who you are to the sidecar, and what you may do.", "whoami:app", True),
    "local-cluster": ("Start, break and take down a real Pulsar cluster here.", "local_cluster:app"),
    "demo": ("Show what the sidecar is for, on a real cluster.", "local_cluster:demo_app"),
    "publish": (
        "Publish a file's records, each exactly once and in order.",
        "deduplication.publishing:app",
        True,
    ),
    "completion": ("Print a script with which a shell completes commands.", "completion:app"),
}
"""Commands with their short help and place, as `LazyCommand` takes them; they stand before the others."""


def command_line(programs: Programs) -> TyperGroup:
    """The whole command line; its commands stand in the order in which a newcomer needs them."""
    app = new_group("pulsar-sidecar", _HELP, context_settings={"obj": programs, "help_option_names": ["--help", "-h"]})
    app.callback()(_global_options)
    for group in (
        ledger_deletion.app,
        delayed_messages.app,
        delayed_index.app,
        deduplication.app,
        ledger_deletion.broker_stats_app,
        audit_sources.metadata_app,
        audit_sources.ledgers_app,
        audit.app,
        topics.namespaces_app,
        subscriptions.app,
        pins.app,
    ):
        app.add_typer(group)
    root = get_group(app)
    later = {name: LazyCommand(name, *command) for name, command in _IMPORTED_LATER.items()}
    completion_init()
    root.commands = {**later, **root.commands}
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
            help="token:... or file:///path. Other users see it in the process list; prefer client.conf.",
        ),
    ] = None,
    request_timeout: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="How long to wait for the sidecar's answer, below 86400. Default: 60."),
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
        str | None, typer.Option(metavar="FILE", help="PEM file of trusted certificate authorities.")
    ] = None,
    output_format: Annotated[Format, typer.Option(help="Output format, also after the command.")] = Format.TABLE,
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
