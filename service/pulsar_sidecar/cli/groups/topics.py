"""``pulsar-sidecar topics``: the calls that stand beside Pulsar's own ``topics`` commands.

Two-phase deletion, shadow topics, and ``...-dispatcher-pause-on-ack-state-persistent`` of topics and namespaces, by
pulsar-admin's names (PIP-299).
"""

import json
from typing import Annotated, Any

import typer

from pulsar_sidecar.analysis.formatting import format_count
from pulsar_sidecar.cli import output
from pulsar_sidecar.cli.command_groups import EXIT_CODES, ExitCode, ServiceRefusedError, new_group
from pulsar_sidecar.cli.connecting import (
    Client,
    Context,
    NamespaceArgument,
    Topic,
    namespace_path,
    show_answer,
    topic_path,
)
from pulsar_sidecar.cli.groups.delayed_messages import app
from pulsar_sidecar.cli.groups.ledger_deletion import (
    Component,
    CursorName,
    Kind,
    OffloadContext,
    SchemaId,
    record_document,
)
from pulsar_sidecar.cli.groups.topic_deletion import Deletion, delete_many, delete_one, topics_of
from pulsar_sidecar.ledger_deletion.service import ShadowDeletionStage
from pulsar_sidecar.model.clocks import SystemClock
from pulsar_sidecar.model.errors import InvalidInputError, UnreachableError
from pulsar_sidecar.model.ids import MAX_LEDGER_ID
from pulsar_sidecar.model.ledgers import LedgerComponent, LedgerType
from pulsar_sidecar.model.names import parse_topic_name

_BETWEEN_CALLS_SECONDS = 0.3
_TEMPORARY = 503
_NEXT = {
    ShadowDeletionStage.PROTECTING: "next: set infinite retention, so that brokers trim none of the source's ledgers",
    ShadowDeletionStage.DISCONNECTING: "next: remove it from the source's shadow topics, and unload the source",
    ShadowDeletionStage.DETACHING: "next: remove the source's ledgers from the shadow's list",
    ShadowDeletionStage.REMOVING: "next: have the broker delete the shadow",
    ShadowDeletionStage.VERIFYING: "next: check that every ledger of the source exists",
}
_NAME = "dispatcher-pause-on-ack-state-persistent"
_ROUTE = "dispatcherPauseOnAckStatePersistent"
_Applied = Annotated[
    bool,
    typer.Option(
        "--applied", "-ap", help="The policy in effect: the topic's, else the namespace's, else the broker's."
    ),
]
_Force = Annotated[
    bool, typer.Option("--force", "-f", help="Remove it even if the broker then stores a false that overrides a true.")
]

namespaces_app = new_group(
    "namespaces", "Delete namespaces; set deduplication (PIP-6) and pausing of dispatch (PIP-299)."
)


@app.command(epilog=EXIT_CODES)
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
    With several topics one that is not deleted stops no other: the command prints each of these, and ends with 4.
    It also prints what is to be known of one that is gone, such as that a broker deleted it before it was asked.
    "-" reads one topic a line from standard input; empty lines and lines that begin with # are ignored.
    The sidecar refuses a shadow topic, because brokers delete its source's ledgers with it, and the source of a shadow
    topic unless --confirm-source-data-loss names it.

    Example: pulsar-sidecar topics delete persistent://public/default/orders
    """
    names = topics_of(topics)
    if confirm_source_data_loss is not None and len(names) > 1:
        raise InvalidInputError("--confirm-source-data-loss goes with one topic; delete the others without it")
    parameters = {"force": "true" if force else None, "confirmSourceDataLoss": confirm_source_data_loss}
    deletion = Deletion(ctx.obj.client(), partitioned, parameters, wait_seconds)
    chosen = ctx.obj.format
    if len(names) == 1:
        _delete_one(deletion, names[0], chosen)
        return
    left = delete_many(deletion, names, parallel)
    output.info(f"deleted {len(names) - len(left):,} of {format_count(len(names), 'topic')}")
    if left or chosen is output.Format.JSON:
        output.document(left, chosen)
    if any(each["state"] != "done" for each in left):
        raise typer.Exit(ExitCode.NOT_ALL)


def _delete_one(deletion: Deletion, topic: str, form: output.Format) -> None:
    running = delete_one(deletion, topic, lambda text: output.info(output.printable(text)))
    if running is None:
        output.info(f"deleted {output.printable(topic)}")
        return
    if running["state"] == "done":
        output.info(output.printable(f"the deletion of {topic} is done: {running['reason']}"))
        return
    output.document(running, form)
    follow = f"follow it with: pulsar-sidecar ledger-deletion topic-deletions {running['operationId']}"
    output.info(output.printable(running["remedy"] or f"the sidecars continue the deletion; {follow}"))
    raise typer.Exit(ExitCode.NOT_ALL)


@app.command("delete-ledger", epilog=EXIT_CODES)
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


@app.command(f"get-{_NAME}", epilog=EXIT_CODES)
def get_of_topic(ctx: Context, topic: Topic, applied: _Applied = False) -> None:
    """Print whether the topic's own policy is true; with --applied the policy in effect, null if unknown.

    Example: pulsar-sidecar topics get-dispatcher-pause-on-ack-state-persistent persistent://public/default/orders -ap
    """
    show_policy(ctx, f"{topic_path(topic)}/{_ROUTE}", applied=applied)


@app.command(f"set-{_NAME}", epilog=EXIT_CODES)
def set_of_topic(ctx: Context, topic: Topic) -> None:
    """Pause a topic's dispatch while acknowledgements do not fit.

    Example: pulsar-sidecar topics set-dispatcher-pause-on-ack-state-persistent persistent://public/default/orders
    """
    _set(ctx, topic_path(topic))


@app.command(f"remove-{_NAME}", epilog=EXIT_CODES)
def remove_of_topic(ctx: Context, topic: Topic, force: _Force = False) -> None:
    """Remove the topic's own policy. Brokers cannot always remove it; the command prints the result.

    Example: pulsar-sidecar topics remove-dispatcher-pause-on-ack-state-persistent persistent://public/default/orders
    """
    path = f"{topic_path(topic)}/{_ROUTE}"
    show_answer(ctx, "DELETE", path, parameters={"force": "true" if force else None})


@namespaces_app.command(f"get-{_NAME}", epilog=EXIT_CODES)
def get_of_namespace(ctx: Context, namespace: NamespaceArgument) -> None:
    """Print the namespace's policy, or null if it is not set.

    Example: pulsar-sidecar namespaces get-dispatcher-pause-on-ack-state-persistent public/default
    """
    show_policy(ctx, f"{namespace_path(namespace)}/{_ROUTE}")


@namespaces_app.command(f"set-{_NAME}", epilog=EXIT_CODES)
def set_of_namespace(ctx: Context, namespace: NamespaceArgument) -> None:
    """Pause a namespace's dispatch while acknowledgements do not fit; a topic's own policy overrides it.

    Example: pulsar-sidecar namespaces set-dispatcher-pause-on-ack-state-persistent public/default
    """
    _set(ctx, namespace_path(namespace))


@namespaces_app.command(f"remove-{_NAME}", epilog=EXIT_CODES)
def remove_of_namespace(ctx: Context, namespace: NamespaceArgument) -> None:
    """Remove the namespace's policy; its brokers' configuration applies again, and the command prints the result.

    Example: pulsar-sidecar namespaces remove-dispatcher-pause-on-ack-state-persistent public/default
    """
    show_answer(ctx, "DELETE", f"{namespace_path(namespace)}/{_ROUTE}")


def show_policy(ctx: Context, path: str, *, applied: bool = False) -> None:
    """Write a policy's value, or null."""
    policy = ctx.obj.client().call("GET", path, parameters={"applied": "true" if applied else None})
    output.result(json.dumps(policy))


def _set(ctx: Context, place: str) -> None:
    ctx.obj.client().call("POST", f"{place}/{_ROUTE}")
    output.info("set to true")


@app.command("delete-shadow", epilog=EXIT_CODES)
def delete_shadow(
    ctx: Context,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The shadow topic, without -partition-N.")],
    wait_seconds: Annotated[
        float, typer.Option("--wait-seconds", min=0, help="Maximum time to wait; the same command continues later.")
    ] = 120.0,
) -> None:
    """Delete a shadow topic without touching its source's ledgers; partitioned or not.

    Stock brokers delete the source's ledgers together with a shadow topic. Close the shadow's clients first. You
    can stop the command at any time; the same command continues where it stopped. At the end the sidecar looks for
    every ledger of the source: exit code 1 if one is missing that was there before, or if a source does not exist.

    Example: pulsar-sidecar topics delete-shadow persistent://public/default/orders-shadow
    """
    answer = _until_deleted(ctx.obj.client(), f"{topic_path(topic)}/deleteShadow", wait_seconds)
    if answer is None:
        output.info(f"{output.printable(topic)} is not deleted yet; run the same command again to continue")
        raise typer.Exit(ExitCode.NOT_ALL)
    output.document(answer, ctx.obj.format)
    if answer["missingLedgers"]:
        output.info(
            f"the source lacks {format_count(len(answer['missingLedgers']), 'ledger')} that it had before; "
            "stop the source's clients and look for them on the bookies before these collect garbage"
        )
    for source in answer["missingSources"]:
        output.info(output.printable(f"{source} does not exist, so its ledgers could not be checked"))
    if answer["missingLedgers"] or answer["missingSources"]:
        raise typer.Exit(ExitCode.FAILED)


def _until_deleted(client: Client, path: str, wait_seconds: float) -> dict[str, Any] | None:
    """Ask for one stage after the other and show each; the last answer, None if the time is over before."""
    clock = SystemClock()
    give_up = clock.monotonic_seconds() + wait_seconds
    reported = ""
    while True:
        try:
            answer = client.call("POST", path)
            stage = ShadowDeletionStage(answer["stage"])
            if stage is ShadowDeletionStage.DONE:
                return dict(answer)
            text = _NEXT[stage] if answer["waitsFor"] is None else f"waiting: {answer['waitsFor']}"
        except (ServiceRefusedError, UnreachableError) as error:
            # Once the deletion has begun, the command waits for what may work later.
            is_temporary = isinstance(error, UnreachableError) or error.status == _TEMPORARY
            if not reported or not is_temporary:
                raise
            text = f"waiting: {error}"
        if text != reported:
            reported = text
            output.info(output.printable(text))
        if clock.monotonic_seconds() >= give_up:
            return None
        clock.wait_seconds(_BETWEEN_CALLS_SECONDS)
