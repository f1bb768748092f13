"""``pulsar-sidecar whoami``: whether a credential is the one that was meant, and what it is good for."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import typer

from pulsar_sidecar.cli.command_groups import EXIT_CODES, CommandGroup
from pulsar_sidecar.cli.connecting import Context, show_answer

_RIGHTS: Final = {
    "superUser": ("super user", "everything"),
    "operator": ("operator", "pause, limit and redrive deletions, command the watch, name any ledger"),
    "viewer": ("viewer", "see the state of the cluster and of every topic, without messages"),
}

app = typer.Typer(cls=CommandGroup, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command(epilog=EXIT_CODES)
def whoami(ctx: Context) -> None:
    """Show who you are to the sidecar, and what you may do.

    The role is that of --auth-plugin and --auth-params, of PULSAR_SIDECAR_AUTH_PLUGIN and PULSAR_SIDECAR_AUTH_PARAMS,
    or of client.conf, in this order. superUserRoles, operatorRoles and viewerRoles of the sidecar's settings give the
    rights shown; admin roles of tenants and permissions in namespaces give further ones on their topics.

    Without a credential that the sidecar accepts, the exit code is 1 (HTTP 401).

    Example: pulsar-sidecar --auth-plugin token --auth-params file:///etc/pulsar/token whoami
    """
    show_answer(ctx, "GET", "/admin/v2/caller", lines=_lines)


def _lines(caller: Mapping[str, Any]) -> Iterator[str]:
    if caller["authenticatedBy"] == "none":
        yield "no role: the sidecar asks for no credential (authenticationEnabled=false)"
    else:
        yield f"{caller['role']}, by {caller['authenticatedBy']}"
    for name, (word, meaning) in _RIGHTS.items():
        yield f"  {word:12}{'yes' if caller[name] else 'no':5}{meaning}"
