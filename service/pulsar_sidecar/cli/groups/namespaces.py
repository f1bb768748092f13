"""``pulsar-sidecar namespaces delete``: a whole namespace, followed until it is gone."""

from typing import Annotated, Any

import typer

from pulsar_sidecar.analysis.formatting import format_count
from pulsar_sidecar.cli import output
from pulsar_sidecar.cli.command_groups import EXIT_CODES, ExitCode, ServiceRefusedError
from pulsar_sidecar.cli.connecting import Client, Context, namespace_path
from pulsar_sidecar.cli.groups.topics import namespaces_app
from pulsar_sidecar.ledger_deletion.service import OperationState
from pulsar_sidecar.model.clocks import SystemClock
from pulsar_sidecar.model.errors import UnreachableError

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
    running = client.call("DELETE", path, parameters={"force": "true" if force else None, "wait": "false"})
    if running is None:
        output.info(f"deleted {shown}")
        return
    ended = _followed(client, f"{path}/deletions/{running['operationId']}", shown, wait_seconds)
    if ended is None:
        output.info(f"{shown} is not deleted yet; the sidecars continue, and the same command follows them")
        raise typer.Exit(ExitCode.NOT_ALL)
    if ended["state"] == OperationState.REFUSED.value:
        output.info(output.printable(f"{namespace} is not deleted: {ended['reason']}"))
        raise typer.Exit(ExitCode.FAILED)
    output.info(
        f"deleted {shown}: {format_count(ended['topicsDeleted'], 'topic')}, "
        f"{format_count(ended['recordedLedgers'], 'ledger')} recorded"
    )


def _followed(client: Client, path: str, shown: str, wait_seconds: float | None) -> dict[str, Any] | None:
    """Show the deletion until it has ended; how it ended, None if the time is over before."""
    clock, reported = SystemClock(), None
    give_up = None if wait_seconds is None else clock.monotonic_seconds() + wait_seconds
    with output.ProgressBar(f"topics of {shown} deleted", output.info) as bar:
        while True:
            try:
                answer = client.call("GET", path)
                reason = answer["reason"]
                bar.report(answer["topicsDeleted"], answer["topicsFound"], _more(answer))
                if answer["state"] != OperationState.RUNNING.value:
                    return dict(answer)
            except (ServiceRefusedError, UnreachableError) as error:
                # The deletion goes on while one sidecar, or its metadata store, does not answer.
                if isinstance(error, ServiceRefusedError) and error.status != _TEMPORARY:
                    raise
                reason = str(error)
            if reason is not None and reason != reported:
                reported = reason
                output.info(output.printable(f"waiting: {reason}"))
            if give_up is not None and clock.monotonic_seconds() >= give_up:
                return None
            clock.wait_seconds(_BETWEEN_LOOKS_SECONDS)


def _more(answer: dict[str, Any]) -> str:
    parts = [f"{format_count(answer['recordedLedgers'], 'ledger')} recorded"]
    if answer["topicsPerSecond"] is not None:
        parts.append(f"{answer['topicsPerSecond']:.0f} topics/s")
    if answer["secondsLeft"] is not None:
        parts.append(f"{answer['secondsLeft']:.0f} s left")
    return ", ".join(parts)
