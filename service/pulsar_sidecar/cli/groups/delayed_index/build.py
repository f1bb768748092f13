"""``pulsar-sidecar delayed-index build``: the buckets of an unloaded topic, planned, approved and written."""

import shlex
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer

from pulsar_sidecar.cli import output
from pulsar_sidecar.cli.command_groups import EXIT_CODES
from pulsar_sidecar.cli.connecting import Context, Output, Subscription, Topic, topic_path
from pulsar_sidecar.cli.groups.delayed_index.show import app
from pulsar_sidecar.cli.groups.waiting_messages import utc
from pulsar_sidecar.model.errors import InvalidInputError


@app.command("build", epilog=EXIT_CODES)
def build(
    ctx: Context,
    topic: Topic,
    subscription: Subscription = None,
    execute: Annotated[bool, typer.Option("--execute", help="Write the buckets.")] = False,
    plan: Annotated[str | None, typer.Option(metavar="HASH", help="The plan that was approved.")] = None,
    form: Output = None,
) -> None:
    """Write the buckets of an unloaded topic. Without --execute: only show the plan.

    The next load then reads them instead of the backlog. Stop the topic's producers and consumers and unload it first
    (pulsar-admin topics unload): a client that asks for the topic has a broker load it again at once, and the cursor of
    a loaded topic is not changed. The command does not prevent a broker from loading it; the outcome shows whether one
    did. Every broker has to run the bucket tracker.

    The plan's hash is what is approved: --execute takes it with --plan, and another plan is refused. The backlog is
    read once for the plan and once more to carry it out; --request-timeout has to be long enough for that.

    Example: pulsar-sidecar delayed-index build persistent://public/default/orders -s billing

    Then: pulsar-sidecar delayed-index build persistent://public/default/orders -s billing --execute --plan HASH
    """
    if execute != (plan is not None):
        raise InvalidInputError("--execute and --plan HASH go together; without both the plan is shown")
    parameters = {"subscription": subscription, "plan": plan}
    document = ctx.obj.client().call("POST", f"{topic_path(topic)}/delayedIndex/build", parameters=parameters)
    chosen = ctx.obj.format(form)
    if chosen is output.Format.JSON:
        output.document(document, chosen)
    else:
        output.document([row for each in document["subscriptions"] for row in _built(each)], chosen)
    if any(each["outcome"] == "loaded-meanwhile" for each in document["subscriptions"]):
        output.info(f"a broker loaded the topic meanwhile: run pulsar-admin topics unload {topic} once more")
    if not any(each["buckets"] for each in document["subscriptions"]):
        output.info("there is nothing to build: no unacknowledged delayed message is without a bucket")
    elif not document["executed"]:
        only = f" -s {shlex.quote(subscription)}" if subscription is not None else ""
        output.info(
            "nothing was changed. Build with: "
            f"pulsar-sidecar delayed-index build {topic}{only} --execute --plan {document['plan']}"
        )


def _built(subscription: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    for bucket in subscription["buckets"]:
        yield {
            "topic": output.printable(subscription["topic"]),
            "subscription": output.printable(subscription["subscription"]),
            "ledgers": f"{bucket['startLedgerId']}-{bucket['endLedgerId']}",
            "segments": str(bucket["segments"]),
            "messages": f"{bucket['indexes']:,}",
            "due from (UTC)": utc(bucket["firstDueMs"] // 1000),
            "due to (UTC)": utc(bucket["lastDueMs"] // 1000),
            "in ledger": "-" if bucket["ledgerId"] is None else str(bucket["ledgerId"]),
            "outcome": subscription["outcome"] or "planned",
        }
