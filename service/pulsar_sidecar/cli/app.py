"""``pulsar-sidecar``: the command line, in the style of pulsar-admin.

Invariant: ``--help`` imports no client, no server and no settings; a command does that when it runs.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from typer.main import get_command, get_group

from pulsar_sidecar.cli import output as say
from pulsar_sidecar.cli.connecting import GlobalOptions
from pulsar_sidecar.cli.exits import EXIT_CODES
from pulsar_sidecar.cli.groups import (
    broker_stats,
    ledger_deletion,
    pausing,
    shadow_topics,  # noqa: F401  it adds its command to those of topics
    subscriptions,
    topics,
    waiting_messages,  # noqa: F401  it adds its commands to those of topics
)
from pulsar_sidecar.cli.groups.audit import AuditPrograms
from pulsar_sidecar.cli.groups.audit_sources import MakeDump, MakeListing
from pulsar_sidecar.cli.groups.demo import Play, Strike
from pulsar_sidecar.cli.lazy import LazyCommand, LazyGroup
from pulsar_sidecar.cli.output import Format

Serve = Callable[[Mapping[str, str | None], Path | None], int]
"""Runs the service until it is told to stop; the exit code."""


@dataclass(frozen=True, slots=True)
class Programs:
    """What the command line starts but cannot build: each comes from the composition root."""

    serve: Serve
    play_demo: Play
    strike_demo: Strike
    make_dump: MakeDump
    make_listing: MakeListing
    audits: AuditPrograms


_HELP = """Operator's tools that run beside unmodified Apache Pulsar brokers.

Options for the connection stand before the command, as with pulsar-admin, and are also read from PULSAR_SIDECAR_*
(PULSAR_SIDECAR_ADMIN_URL, PULSAR_SIDECAR_AUTH_PARAMS, ...) and, for credentials and TLS, from the client.conf that
PULSAR_CLIENT_CONF names.

Example: pulsar-sidecar --admin-url http://127.0.0.1:8750 ledger-deletion status"""


def command_line(programs: Programs) -> LazyGroup:
    """The whole command line."""
    group = get_group(_app())
    assert isinstance(group, LazyGroup)
    group.add_command(
        LazyCommand("serve", "Run the sidecar until it is told to stop.", lambda: _serve_command(programs.serve))
    )
    group.add_command(
        LazyCommand("local-cluster", "Start, look at, break and take down a real Pulsar cluster here.", _local_cluster)
    )
    group.add_command(
        LazyCommand("demo", "See on a real cluster what leaks without the sidecar.", lambda: _demo(programs))
    )
    group.add_command(
        LazyCommand("metadata", "Dump the metadata store's nodes, for an audit.", lambda: _metadata(programs))
    )
    group.add_command(LazyCommand("ledgers", "List BookKeeper's ledgers, for an audit.", lambda: _ledgers(programs)))
    group.add_command(
        LazyCommand("audit", "Find ledgers that nothing references, and have them deleted.", lambda: _audit(programs))
    )
    return group


def _app() -> typer.Typer:
    app = typer.Typer(
        name="pulsar-sidecar",
        cls=LazyGroup,
        help=_HELP,
        epilog=EXIT_CODES,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )
    app.callback()(_global_options)
    app.add_typer(ledger_deletion.app)
    app.add_typer(topics.app)
    app.add_typer(pausing.namespaces_app)
    app.add_typer(subscriptions.app)
    app.add_typer(broker_stats.app)
    return app


def _say_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        say.result(version("pulsar-sidecar"))
        raise typer.Exit


def _global_options(
    ctx: typer.Context,
    admin_url: Annotated[
        str | None, typer.Option(metavar="URL", help="The sidecar's own URL. Default: http://127.0.0.1:8750.")
    ] = None,
    auth_plugin: Annotated[
        str | None, typer.Option(metavar="PLUGIN", help="token, or its Java class as in client.conf.")
    ] = None,
    auth_params: Annotated[
        str | None,
        typer.Option(metavar="PARAMS", help="token:... or file:///path. Others can see it; prefer client.conf."),
    ] = None,
    request_timeout: Annotated[
        float | None, typer.Option(metavar="SECONDS", min=0.001, help="How long to wait for an answer. Default: 60.")
    ] = None,
    tls_allow_insecure: Annotated[
        bool | None, typer.Option("--tls-allow-insecure", help="Accept any certificate. For experiments only.")
    ] = None,
    tls_enable_hostname_verification: Annotated[
        bool | None,
        typer.Option(
            "--tls-enable-hostname-verification/--no-tls-enable-hostname-verification",
            help="Compare the certificate with the host's name. Default: yes.",
        ),
    ] = None,
    tls_trust_cert_path: Annotated[
        str | None, typer.Option(metavar="FILE", help="PEM file of trusted certificate authorities.")
    ] = None,
    output: Annotated[Format, typer.Option("--output", help="How results are written.")] = Format.TABLE,
    _version: Annotated[
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Say the version and end.")
    ] = False,
) -> None:
    ctx.obj = GlobalOptions(
        os.environ,
        output,
        admin_url,
        auth_plugin,
        auth_params,
        request_timeout,
        tls_allow_insecure,
        tls_enable_hostname_verification,
        tls_trust_cert_path,
    )


def _serve_command(serve: Serve) -> object:
    from pulsar_sidecar.cli.groups.serving import serve_app

    return get_command(serve_app(serve))


def _metadata(programs: Programs) -> object:
    from pulsar_sidecar.cli.groups.audit_sources import metadata_app

    return get_group(metadata_app(programs.make_dump))


def _ledgers(programs: Programs) -> object:
    from pulsar_sidecar.cli.groups.audit_sources import ledgers_app

    return get_group(ledgers_app(programs.make_listing))


def _audit(programs: Programs) -> object:
    from pulsar_sidecar.cli.groups.audit import audit_app

    return get_group(audit_app(programs.audits))


def _demo(programs: Programs) -> object:
    from pulsar_sidecar.cli.groups.demo import demo_app

    return get_group(demo_app(programs.play_demo, programs.strike_demo))


def _local_cluster() -> object:
    from pulsar_sidecar.cli.groups.local_cluster import app

    app.rich_markup_mode = None
    return get_group(app)
