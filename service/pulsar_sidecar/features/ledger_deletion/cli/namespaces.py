"""``pulsar-sidecar namespaces delete``: a whole namespace, followed until it is gone."""

import math
from typing import Annotated

import typer

from pulsar_sidecar.cli import output
from pulsar_sidecar.cli.command_groups import EXIT_CODES, ExitCode, ServiceRefusedError
from pulsar_sidecar.cli.connecting import Client, Context, namespace_path
from pulsar_sidecar.cli.shared_groups import namespaces_app
from pulsar_sidecar.features.ledger_deletion.results import NamespaceDeletionStatus, OperationState
from pulsar_sidecar.model.clocks import SystemClock, attempts
from pulsar_sidecar.model.errors import UnreachableError
from pulsar_sidecar.reports.formatting import format_count

_BETWEEN_LOOKS_SECONDS = 1.0
_TEMPORARY = 503


@namespaces_app.command(epilog=EXIT_CODES)
def delete(
    ctx: Context,
    namespace: Annotated[
        str, typer.Argument(metavar="NAMESPACE", help="tenant/namespace, or tenant/cluster/namespace (V1)")
    ],
    force: Annotated[bool, typer.Option("--force", "-f", help="Delete the namespace even if it has topics.")] = False,
    wait_seconds: Annotated[
        float | None,
        typer.Option("--wait-seconds", min=0, help="Maximum time to wait. Default: until the namespace is gone."),
    ] = None,
) -> None:
    """Delete a namespace: the sidecars record every ledger in it, then the brokers delete it.

    Brokers need forceDeleteNamespaceAllowed=true for --force. The command shows how far the sidecars are; they continue
    if you stop it, and the same command follows them again. The sidecars refuse a namespace with a shadow topic whose
    source lies elsewhere, or with the source of a shadow topic elsewhere.

    Example: pulsar-sidecar namespaces delete public/old --force
    """
    client, path = ctx.obj.client(), namespace_path(namespace, of_any_kind=True)
    shown = output.printable(namespace)
    parameters = {"force": "true" if force else None, "wait": "false"}
    running = client.result_if_any(NamespaceDeletionStatus, "DELETE", path, parameters)
    if running is None:
        output.info(f"deleted {shown}")
        return
    ended = _followed(client, f"{path}/deletions/{running.operation_id}", shown, wait_seconds)
    if ended is None:
        output.info(f"{shown} is not deleted yet; the sidecars continue, and the same command follows them")
        raise typer.Exit(ExitCode.NOT_ALL)
    if ended.state is OperationState.REFUSED:
        output.info(output.printable(f"{namespace} is not deleted: {ended.reason}"))
        raise typer.Exit(ExitCode.FAILED)
    output.info(
        f"deleted {shown}: {format_count(ended.topics_deleted, 'topic')}, "
        f"{format_count(ended.recorded_ledgers, 'ledger')} recorded"
    )


def _followed(client: Client, path: str, shown: str, wait_seconds: float | None) -> NamespaceDeletionStatus | None:
    """Show the deletion until it ends, and return its end; None if the deadline passes first."""
    reported = None
    with output.ProgressBar(f"topics of {shown} deleted", output.info) as bar:
        for _ in attempts(SystemClock(), math.inf if wait_seconds is None else wait_seconds, _BETWEEN_LOOKS_SECONDS):
            try:
                status = client.result(NamespaceDeletionStatus, "GET", path)
                reason = status.reason
                bar.report(status.topics_deleted, status.topics_found, _more(status))
                if status.state is not OperationState.RUNNING:
                    return status
            except (ServiceRefusedError, UnreachableError) as error:
                # The deletion continues while one sidecar, or its metadata store, does not answer.
                if isinstance(error, ServiceRefusedError) and error.status != _TEMPORARY:
                    raise
                reason = str(error)
            if reason is not None and reason != reported:
                reported = reason
                output.info(output.printable(f"waiting: {reason}"))
    return None


def _more(status: NamespaceDeletionStatus) -> str:
    parts = [f"{format_count(status.recorded_ledgers, 'ledger')} recorded"]
    if status.topics_per_second is not None:
        parts.append(f"{status.topics_per_second:.0f} topics/s")
    if status.seconds_left is not None:
        parts.append(f"{status.seconds_left:.0f} s left")
    return ", ".join(parts)
