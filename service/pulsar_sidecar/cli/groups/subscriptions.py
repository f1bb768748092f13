"""``pulsar-sidecar subscriptions``: what brokers do not tell about subscriptions."""

from typing import Annotated, cast

import typer

from pulsar_sidecar.cli import output
from pulsar_sidecar.cli.ack_states import report
from pulsar_sidecar.cli.command_groups import new_group
from pulsar_sidecar.cli.connecting import GlobalOptions, Output
from pulsar_sidecar.cli.exits import EXIT_CODES
from pulsar_sidecar.cli.groups.topics import topic_path
from pulsar_sidecar.model.names import java_url_encode, parse_topic_name

app = new_group("subscriptions", "Show how full acknowledgement states are (PIP-299).")


@app.command("ack-state", epilog=EXIT_CODES)
def ack_state(
    ctx: typer.Context,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="persistent://tenant/namespace/topic")],
    subscription: Annotated[
        str | None, typer.Option("--subscription", "-s", help="Only this one; all durable ones without it.")
    ] = None,
    ranges: Annotated[int, typer.Option(min=0, max=100_000, help="How many lost ranges --output json lists.")] = 20,
    width: Annotated[int, typer.Option(min=10, max=500, help="How wide the plot is, in characters.")] = 60,
    form: Output = None,
) -> None:
    """Show how many ranges of acknowledgements a cursor holds, how many fit, what is stored, and what would be lost.

    A broker writes down at most managedLedgerMaxUnackedRangesToPersist ranges (10,000 by default); what lies beyond is
    only in its memory, and those messages are delivered again when the broker goes. With
    dispatcherPauseOnAckStatePersistentEnabled it stops dispatching instead, without a sign in its statistics: this
    command shows it. It changes nothing, creates nothing, and loads the topic.

    Example: pulsar-sidecar subscriptions ack-state persistent://public/default/orders -s billing
    """
    options: GlobalOptions = ctx.obj
    path = topic_path(parse_topic_name(topic))
    if subscription is not None:
        path += f"/subscription/{java_url_encode(subscription)}"
    answer = options.client().call("GET", f"{path}/ackState", parameters={"ranges": ranges, "stretches": width})
    if options.format(form) is output.Format.TABLE:
        output.result(report(cast("list[dict[str, object]]", answer)))
    else:
        output.document(answer, output.Format.JSON)
