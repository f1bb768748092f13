"""``pulsar-sidecar whoami``: the role and the rights of the credential in use."""

from collections.abc import Iterator

import typer

from pulsar_sidecar.cli.command_groups import EXIT_CODES, CommandGroup
from pulsar_sidecar.cli.connecting import Context, show_result
from pulsar_sidecar.server.callers import CallerRights

app = typer.Typer(cls=CommandGroup, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command(epilog=EXIT_CODES)
def whoami(ctx: Context) -> None:
    """Show your role and your rights on the sidecar.

    The role is that of --auth-plugin and --auth-params, of PULSAR_SIDECAR_AUTH_PLUGIN and PULSAR_SIDECAR_AUTH_PARAMS,
    or of client.conf, in this order. The rights shown come from the sidecar's settings superUserRoles, operatorRoles
    and viewerRoles; admin roles of tenants and permissions in namespaces give further ones on their topics.

    Without a credential that the sidecar accepts, the exit code is 1 (HTTP 401).

    Example: pulsar-sidecar --auth-plugin token --auth-params file:///etc/pulsar/token whoami
    """
    show_result(ctx, CallerRights, "/admin/v2/caller", _lines)


def _lines(caller: CallerRights) -> Iterator[str]:
    if caller.authenticated_by == "none":
        yield "no role: the sidecar requires no credential (authenticationEnabled=false)"
    else:
        yield f"{caller.role}, by {caller.authenticated_by}"
    for is_granted, right, meaning in (
        (caller.super_user, "super user", "everything"),
        (caller.operator, "operator", "pause, limit and redrive deletions, control the watch, name any ledger"),
        (caller.viewer, "viewer", "see the state of the cluster and of every topic, without messages"),
    ):
        yield f"  {right:12}{'yes' if is_granted else 'no':5}{meaning}"
