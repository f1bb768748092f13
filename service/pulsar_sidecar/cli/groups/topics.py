"""``pulsar-sidecar topics``: the calls that stand beside Pulsar's own ``topics`` commands."""

from typing import Annotated

import typer

from pulsar_sidecar.cli import output
from pulsar_sidecar.cli.command_groups import new_group
from pulsar_sidecar.cli.connecting import GlobalOptions, Output, Topic
from pulsar_sidecar.cli.exits import EXIT_CODES
from pulsar_sidecar.cli.groups import delayed_messages
from pulsar_sidecar.cli.records import Component, CursorName, Kind, OffloadContext, SchemaId, record_document
from pulsar_sidecar.model.errors import InvalidInputError
from pulsar_sidecar.model.ids import MAX_LEDGER_ID
from pulsar_sidecar.model.ledgers import LedgerComponent, LedgerType
from pulsar_sidecar.model.names import TopicDomain, TopicName, java_url_encode, parse_topic_name

app = new_group("topics", "Delete topics and ledgers in two phases; cancel delayed messages.")

delayed_messages.add_to(app)


@app.command(epilog=EXIT_CODES)
def delete(
    ctx: typer.Context,
    topic: Topic,
    partitioned: Annotated[bool, typer.Option("--partitioned", help="The topic with all its partitions.")] = False,
    force: Annotated[bool, typer.Option("--force", "-f", help="Even if clients are connected.")] = False,
    confirm_source_data_loss: Annotated[
        str | None,
        typer.Option(
            metavar="TOPIC", help="The full name again: delete the source of shadow topics, which lose its data too."
        ),
    ] = None,
    form: Output = None,
) -> None:
    """Delete a topic: every ledger it references is recorded first, then the broker deletes it.

    If the broker does not finish in time, the sidecar continues the deletion, and the command prints its state.
    A shadow topic is refused, because brokers delete its source's ledgers with it; so is the source of a shadow topic
    unless --confirm-source-data-loss names it.

    Example: pulsar-sidecar topics delete persistent://public/default/orders
    """
    options: GlobalOptions = ctx.obj
    path = topic_path(parse_topic_name(topic)) + ("/partitions" if partitioned else "")
    parameters = {"force": "true"} if force else {}
    if confirm_source_data_loss is not None:
        parameters["confirmSourceDataLoss"] = confirm_source_data_loss
    running = options.client().call("DELETE", path, parameters=parameters)
    if running is None:
        output.info(f"deleted {output.printable(topic)}")
    else:
        output.document(running, options.format(form))


@app.command("delete-ledger", epilog=EXIT_CODES)
def delete_ledger(
    ctx: typer.Context,
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
    """Check one ledger now, and delete it if nothing references it (PIP-186 deleteLedger).

    Example: pulsar-sidecar topics delete-ledger persistent://public/default/orders -l 4711
    """
    options: GlobalOptions = ctx.obj
    name = parse_topic_name(topic)
    record = record_document(ledger_id, str(name), component, kind, cursor_name, schema_id, offload_context)
    parameters = {"authoritative": "true"} if authoritative else None
    options.client().call("POST", f"{topic_path(name)}/deleteLedger", record, parameters)
    output.info(f"ledger {ledger_id} is deleted")


def topic_path(topic: TopicName) -> str:
    """The REST path of a persistent topic."""
    if topic.domain is not TopicDomain.PERSISTENT:
        raise InvalidInputError(f"{topic} has no ledgers; write persistent://tenant/namespace/topic")
    version = "/admin" if topic.cluster else "/admin/v2"
    return f"{version}/persistent/{topic.namespace}/{java_url_encode(topic.local_name)}"
