"""``pulsar-sidecar topics`` and ``namespaces``: deletions, including those of shadow topics and single ledgers."""

import math
from typing import Annotated

import typer

from pulsar_sidecar.cli import output
from pulsar_sidecar.cli.command_groups import EXIT_CODES, ExitCode, ServiceRefusedError
from pulsar_sidecar.cli.connecting import Client, Context, Topic, namespace_path, show_made, topic_path
from pulsar_sidecar.cli.shared_groups import namespaces_app, topics_app
from pulsar_sidecar.features.ledger_deletion.cli.following import Deletion, delete_many, delete_one, topics_of
from pulsar_sidecar.features.ledger_deletion.cli.ledger_deletion import (
    Component,
    CursorName,
    Kind,
    OffloadContext,
    SchemaId,
    record_document,
)
from pulsar_sidecar.features.ledger_deletion.results import (
    NamespaceDeletionStatus,
    OperationState,
    ShadowDeletionStage,
    ShadowDeletionStatus,
)
from pulsar_sidecar.model.clocks import SystemClock, attempts
from pulsar_sidecar.model.errors import InvalidInputError, UnreachableError
from pulsar_sidecar.model.ids import MAX_LEDGER_ID
from pulsar_sidecar.model.ledgers import LedgerComponent, LedgerType
from pulsar_sidecar.model.names import parse_topic_name
from pulsar_sidecar.reports.formatting import format_count

_BETWEEN_CALLS_SECONDS = 0.3
_BETWEEN_LOOKS_SECONDS = 1.0
_TEMPORARY = 503
_NEXT = {
    ShadowDeletionStage.PROTECTING: "next: set infinite retention, so that brokers trim none of the source's ledgers",
    ShadowDeletionStage.DISCONNECTING: "next: remove it from the source's shadow topics, and unload the source",
    ShadowDeletionStage.DETACHING: "next: remove the source's ledgers from the shadow's list",
    ShadowDeletionStage.REMOVING: "next: have the broker delete the shadow",
    ShadowDeletionStage.VERIFYING: "next: check that every ledger of the source exists",
}


@topics_app.command(epilog=EXIT_CODES)
def delete(
    ctx: Context,
    topics: Annotated[
        list[str],
        typer.Argument(metavar="TOPIC...", help="persistent://tenant/namespace/topic; - reads names from stdin."),
    ],
    partitioned: Annotated[
        bool, typer.Option("--partitioned", help="Delete the topic and all its partitions.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", "-f", help="Delete the topic even if clients are connected.")
    ] = False,
    confirm_source_data_loss: Annotated[
        str | None,
        typer.Option(
            metavar="TOPIC",
            help="The full name of the topic again, to delete a source although its shadow topics lose their data.",
        ),
    ] = None,
    wait_seconds: Annotated[
        float,
        typer.Option("--wait-seconds", min=0, help="Maximum time to follow a deletion that the sidecars continue."),
    ] = 120.0,
    parallel: Annotated[
        int, typer.Option("--parallel", min=1, max=100, help="Number of topics to delete at a time.")
    ] = 10,
) -> None:
    """Delete topics: the sidecar records every ledger that a topic references, then the broker deletes it.

    If a broker does not finish in time, the sidecars continue the deletion, and the command follows it. Exit code 4
    where the command stops waiting, or the deletion is stuck: it prints the state, and the sidecars still continue.
    If one of several topics is not deleted, the command continues with the others, prints it, and exits with 4.
    It also prints remarks on deleted topics, such as that a broker deleted one before the sidecar's request.
    "-" reads one topic per line from standard input; empty lines and lines that begin with # are ignored.
    The sidecar refuses a shadow topic, because brokers delete its source's ledgers with it, and the source of a shadow
    topic unless --confirm-source-data-loss names it.

    Example: pulsar-sidecar topics delete persistent://public/default/orders
    """
    names = topics_of(topics)
    if confirm_source_data_loss is not None and len(names) > 1:
        raise InvalidInputError("--confirm-source-data-loss accepts a single topic; delete the others without it")
    parameters = {"force": "true" if force else None, "confirmSourceDataLoss": confirm_source_data_loss}
    deletion = Deletion(ctx.obj.client(), partitioned, parameters, wait_seconds)
    if len(names) == 1:
        _delete_one(ctx, deletion, names[0])
        return
    left = delete_many(deletion, names, parallel)
    output.info(f"deleted {len(names) - len(left):,} of {format_count(len(names), 'topic')}")
    if left or ctx.obj.format is output.Format.JSON:
        show_made(ctx, left)
    if any(each.state != OperationState.DONE for each in left):
        raise typer.Exit(ExitCode.NOT_ALL)


def _delete_one(ctx: Context, deletion: Deletion, topic: str) -> None:
    running = delete_one(deletion, topic, lambda text: output.info(output.printable(text)))
    if running is None:
        output.info(f"deleted {output.printable(topic)}")
        return
    if running.state is OperationState.DONE:
        output.info(output.printable(f"the deletion of {topic} is done: {running.reason}"))
        return
    show_made(ctx, running)
    follow = f"follow it with: pulsar-sidecar ledger-deletion topic-deletions {running.operation_id}"
    output.info(output.printable(running.remedy or f"the sidecars continue the deletion; {follow}"))
    raise typer.Exit(ExitCode.NOT_ALL)


@topics_app.command("delete-ledger", epilog=EXIT_CODES)
def delete_ledger(
    ctx: Context,
    topic: Topic,
    ledger_id: Annotated[int, typer.Option("--ledger-id", "-l", min=0, max=MAX_LEDGER_ID, help="The ledger.")],
    component: Component = LedgerComponent.MANAGED_LEDGER,
    kind: Kind = LedgerType.LEDGER,
    cursor_name: CursorName = None,
    schema_id: SchemaId = None,
    offload_context: OffloadContext = None,
    authoritative: Annotated[
        bool, typer.Option("--authoritative", help="Check on this sidecar, not on the one beside the owning broker.")
    ] = False,
) -> None:
    """Check one ledger now, and delete it if nothing references it: PIP-186's deleteLedger.

    Example: pulsar-sidecar topics delete-ledger persistent://public/default/orders -l 4711
    """
    path = f"{topic_path(topic)}/deleteLedger"
    record = record_document(
        ledger_id, str(parse_topic_name(topic)), component, kind, cursor_name, schema_id, offload_context
    )
    ctx.obj.client().call("POST", path, record, {"authoritative": "true" if authoritative else None})
    output.info(f"ledger {ledger_id} is deleted")


@topics_app.command("delete-shadow", epilog=EXIT_CODES)
def delete_shadow(
    ctx: Context,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The shadow topic, without -partition-N.")],
    wait_seconds: Annotated[
        float, typer.Option("--wait-seconds", min=0, help="Maximum time to wait; the same command continues later.")
    ] = 120.0,
) -> None:
    """Delete a shadow topic without touching its source's ledgers; partitioned or not.

    Stock brokers delete the source's ledgers together with a shadow topic. Close the shadow's clients first. You
    can stop the command at any time; the same command continues where it stopped. At the end the sidecar checks
    every ledger of the source: exit code 1 if one is missing that was there before, or if a source does not exist.

    Example: pulsar-sidecar topics delete-shadow persistent://public/default/orders-shadow
    """
    answer = _until_deleted(ctx.obj.client(), f"{topic_path(topic)}/deleteShadow", wait_seconds)
    if answer is None:
        output.info(f"{output.printable(topic)} is not deleted yet; run the same command again to continue")
        raise typer.Exit(ExitCode.NOT_ALL)
    show_made(ctx, answer)
    if answer.missing_ledgers:
        output.info(
            f"the source lacks {format_count(len(answer.missing_ledgers), 'ledger')} that it had before; "
            "stop the source's clients and search the bookies for them before these collect garbage"
        )
    for source in answer.missing_sources:
        output.info(output.printable(f"{source} does not exist, so its ledgers could not be checked"))
    if answer.missing_ledgers or answer.missing_sources:
        raise typer.Exit(ExitCode.FAILED)


def _until_deleted(client: Client, path: str, wait_seconds: float) -> ShadowDeletionStatus | None:
    """Request one stage after the other, show each, and return the last status; None if the deadline passes first."""
    reported = ""
    for _ in attempts(SystemClock(), wait_seconds, _BETWEEN_CALLS_SECONDS):
        try:
            status = client.result(ShadowDeletionStatus, "POST", path)
            if status.stage is ShadowDeletionStage.DONE:
                return status
            text = _NEXT[status.stage] if status.waits_for is None else f"waiting: {status.waits_for}"
        except (ServiceRefusedError, UnreachableError) as error:
            # Once the deletion has begun, the command waits for what may work later.
            if not reported or not _may_pass(error):
                raise
            text = f"waiting: {error}"
        if text != reported:
            reported = text
            output.info(output.printable(text))
    return None


def _may_pass(error: ServiceRefusedError | UnreachableError) -> bool:
    return isinstance(error, UnreachableError) or error.status == _TEMPORARY


@namespaces_app.command("delete", epilog=EXIT_CODES)
def delete_namespace(
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
    ended = _namespace_followed(client, f"{path}/deletions/{running.operation_id}", shown, wait_seconds)
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


def _namespace_followed(
    client: Client, path: str, shown: str, wait_seconds: float | None
) -> NamespaceDeletionStatus | None:
    """Show the deletion until it ends, and return its end; None if the deadline passes first."""
    reported = None
    with output.ProgressBar(f"topics of {shown} deleted", output.info) as bar:
        for _ in attempts(SystemClock(), math.inf if wait_seconds is None else wait_seconds, _BETWEEN_LOOKS_SECONDS):
            try:
                status = client.result(NamespaceDeletionStatus, "GET", path)
                reason = status.reason
                bar.report(status.topics_deleted, status.topics_found, _progress(status))
                if status.state is not OperationState.RUNNING:
                    return status
            except (ServiceRefusedError, UnreachableError) as error:
                # The deletion continues while one sidecar, or its metadata store, does not respond.
                if not _may_pass(error):
                    raise
                reason = str(error)
            if reason is not None and reason != reported:
                reported = reason
                output.info(output.printable(f"waiting: {reason}"))
    return None


def _progress(status: NamespaceDeletionStatus) -> str:
    parts = [f"{format_count(status.recorded_ledgers, 'ledger')} recorded"]
    if status.topics_per_second is not None:
        parts.append(f"{status.topics_per_second:.0f} topics/s")
    if status.seconds_left is not None:
        parts.append(f"{status.seconds_left:.0f} s left")
    return ", ".join(parts)
