"""``pulsar-sidecar delayed-index build|fsck|repair``: buckets that are missing or wrong, and what is done about it."""

import shlex
from collections.abc import Iterator, Mapping
from typing import Annotated, Any
from urllib.parse import urlencode

import typer

from pulsar_sidecar.analysis.formatting import format_count
from pulsar_sidecar.cli import output
from pulsar_sidecar.cli.command_groups import EXIT_CODES, ExitCode
from pulsar_sidecar.cli.connecting import (
    Context,
    Subscription,
    Topic,
    show_answer,
    topic_or_namespace_path,
    topic_path,
)
from pulsar_sidecar.cli.groups.delayed_index.show import app
from pulsar_sidecar.cli.groups.waiting_messages import utc
from pulsar_sidecar.delayed_delivery.index.maintenance.findings import FindingKind
from pulsar_sidecar.model.errors import InvalidInputError

_REPAIRED = ", ".join(kind.value for kind in FindingKind if kind.step)
_CHECK_EXIT_CODES = (
    "Exit codes: 0 clean; 2 there are findings; 1 the service answered with an error, or wrong usage; 3 no answer came."
)

_Place = Annotated[
    str, typer.Argument(metavar="TOPIC|NAMESPACE", help="persistent://tenant/namespace/topic, or tenant/namespace")
]
_Sample = Annotated[
    int, typer.Option(min=0, max=10_000_000, help="How many messages of each bucket to compare with their index.")
]
_AllMessages = Annotated[bool, typer.Option("--all-messages", help="Compare every message that is not acknowledged.")]
_Orphans = Annotated[
    bool,
    typer.Option(
        "--orphans",
        help="Search all ledgers for buckets that no cursor points to. Reads the node of every ledger in BookKeeper.",
    ),
]
_Settle = Annotated[
    int,
    typer.Option(
        "--settle-seconds",
        min=0,
        help="Minimum age of an orphaned ledger, and minimum time since the last due time of a dead bucket.",
    ),
]


@app.command("build", epilog=EXIT_CODES)
def build(
    ctx: Context,
    topic: Topic,
    subscription: Subscription = None,
    execute: Annotated[bool, typer.Option("--execute", help="Write the buckets.")] = False,
    plan: Annotated[str | None, typer.Option(metavar="HASH", help="The plan that was approved.")] = None,
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
    chosen = ctx.obj.format
    rows = [row for each in document["subscriptions"] for row in _built(each)]
    output.document(document if chosen is output.Format.JSON else rows, chosen)
    if not any(each["buckets"] for each in document["subscriptions"]):
        output.info("there is nothing to build: no unacknowledged delayed message is without a bucket")
    elif not document["executed"]:
        only = f" -s {shlex.quote(subscription)}" if subscription is not None else ""
        output.info(
            "nothing was changed. Build with: "
            f"pulsar-sidecar delayed-index build {topic}{only} --execute --plan {document['plan']}"
        )
    if any(each["outcome"] == "loaded-meanwhile" for each in document["subscriptions"]):
        output.info(f"a broker loaded the topic meanwhile: run pulsar-admin topics unload {topic} once more")
        raise typer.Exit(ExitCode.NOT_ALL)


@app.command(epilog=_CHECK_EXIT_CODES)
def fsck(
    ctx: Context,
    place: _Place,
    sample: _Sample = 1_000,
    all_messages: _AllMessages = False,
    orphans: _Orphans = False,
    settle_seconds: _Settle = 600,
) -> None:
    """Check delayed indexes, and change nothing.

    The command compares pointers with ledgers, bitmaps with segments, and segments with messages, and checks brokers'
    settings. It reads the metadata store and the bookies, and reads again where it finds something: what brokers change
    in between is not a finding. No topic is loaded: a message that bookies do not have is not compared.

    Example: pulsar-sidecar delayed-index fsck persistent://public/default/orders

    Example: pulsar-sidecar --request-timeout 3600 delayed-index fsck public/default --all-messages --orphans
    """
    parameters = _parameters(sample, settle_seconds, all_messages=all_messages, orphans=orphans)
    path = f"{topic_or_namespace_path(place)}/delayedIndex/fsck"
    answer = show_answer(ctx, "GET", path, parameters=parameters, lines=_lines)
    if answer["findings"]:
        raise typer.Exit(ExitCode.FINDINGS)


@app.command(epilog=EXIT_CODES)
def repair(
    ctx: Context,
    place: _Place,
    execute: Annotated[bool, typer.Option("--execute", help="Carry the plan out.")] = False,
    plan: Annotated[str | None, typer.Option(metavar="HASH", help="The plan that was approved.")] = None,
    sample: _Sample = 1_000,
    all_messages: _AllMessages = False,
    kinds: Annotated[
        list[FindingKind] | None,
        typer.Option(
            "--kind", metavar="KIND", help=f"Repair only findings of this kind; may be repeated. Kinds: {_REPAIRED}."
        ),
    ] = None,
    orphans: _Orphans = False,
    settle_seconds: _Settle = 600,
) -> None:
    """Repair delayed indexes. Without --execute: only show the plan.

    Cursors forget pointers to ledgers that do not exist. Buckets that are damaged, dead or overlap others are handed to
    the deletion service, which proves again that nothing references a ledger before it deletes it. An orphaned bucket
    is attached again if every bit and every index in it is right, handed over if one is wrong, and left as it is while
    that is not known. Sound buckets that brokers with the in-memory tracker do not read are given up only with --kind
    tracker-downgrade.

    A cursor is changed only while no broker has its topic loaded: stop the topic's producers and consumers, and unload
    it. The plan's hash is what is approved: --execute takes it with --plan and the same options, finds everything anew,
    and refuses if the plan is another one by then. Exit code 4: not everything was done.

    Example: pulsar-sidecar delayed-index repair persistent://public/default/orders

    Then: pulsar-sidecar delayed-index repair persistent://public/default/orders --execute --plan HASH
    """
    if execute != (plan is not None):
        raise InvalidInputError("--execute and --plan belong together: give the hash of the plan that was approved")
    parameters = _parameters(sample, settle_seconds, all_messages=all_messages, orphans=orphans)
    path = f"{topic_or_namespace_path(place)}/delayedIndex/repair"
    if kinds:
        path += "?" + urlencode([("kinds", kind.value) for kind in kinds])
    chosen = ctx.obj.format
    if plan is None:
        _show_plan(ctx.obj.client().call("GET", path, parameters=parameters), chosen)
        return
    repaired = ctx.obj.client().call("POST", path, parameters={**parameters, "plan": plan})
    rows = [
        {**_row(each["action"]), "done": each["done"], "handed over": each["handedOver"], "problem": each["problem"]}
        for each in repaired
    ]
    output.document(repaired if chosen is output.Format.JSON else rows, chosen)
    if not all(each["done"] for each in repaired):
        raise typer.Exit(ExitCode.NOT_ALL)


def _parameters(sample: int, settle_seconds: int, *, all_messages: bool, orphans: bool) -> dict[str, Any]:
    return {
        "sample": sample,
        "settleSeconds": settle_seconds,
        "allMessages": "true" if all_messages else None,
        "orphans": "true" if orphans else None,
    }


def _lines(answer: Mapping[str, Any]) -> Iterator[str]:
    for each in answer["findings"]:
        yield "  ".join(_named(each, "kind", "topic", "subscription", "bucket"))
        yield from (f"  {name:12}{each[name]}" for name in ("cause", "consequence", "remedy"))
    yield _extent(answer["checked"], clean=not answer["findings"])


def _named(finding: Mapping[str, Any], *names: str) -> list[str]:
    """Those of its words that it has: a broker's setting is of no topic."""
    return [finding[name] for name in names if finding[name]]


def _extent(checked: Mapping[str, Any], *, clean: bool) -> str:
    note = ""
    if checked["unread"]:
        note = f" ({checked['unread']:,} could not be read)"
    elif checked["entries"] < checked["entriesLeft"]:
        note = f" (if all are right, at most {checked['wrongShareBound']:.2%} are not, with 95 % confidence)"
    ledgers = (
        "" if checked["ledgers"] is None else f", {format_count(checked['ledgers'], 'ledger')} searched for orphans"
    )
    return (
        f"{'clean: ' if clean else ''}{format_count(checked['topics'], 'topic')}, "
        f"{format_count(checked['subscriptions'], 'subscription')}, "
        f"{format_count(checked['buckets'], 'bucket')}, {format_count(checked['indexes'], 'index')}, "
        f"{checked['entries']:,} of "
        f"{format_count(checked['entriesLeft'], 'message')} compared{note}{ledgers}"
    )


def _show_plan(planned: Mapping[str, Any], chosen: output.Format) -> None:
    if chosen is output.Format.JSON:
        output.document(planned, chosen)
    elif planned["actions"]:
        output.document([{**_row(each), "reason": each["reason"]} for each in planned["actions"]], chosen)
    for each in planned["left"]:
        where = " ".join(_named(each, "kind", "topic", "subscription"))
        output.info(output.printable(f"left: {where}: {each['cause']}; {each['remedy']}"))
    for each in planned["loaded"]:
        clients = each["clients"]
        who = "its clients, which the broker did not name" if clients is None else ", ".join(clients) or "no client"
        output.info(
            output.printable(
                f"broker {each['broker']} has {each['topic']} loaded. Stop {who}; then: pulsar-admin topics unload "
                f"{each['topic']}"
            )
        )
    if planned["actions"]:
        output.info(f"nothing was changed. Carry it out with the same options and --execute --plan {planned['plan']}")
    elif planned["left"]:
        output.info("nothing can be repaired with these options now; see what is left")
    else:
        output.info("there is nothing to repair")


def _row(action: Mapping[str, Any]) -> dict[str, object]:
    return {name: action[name] for name in ("step", "topic", "subscription", "bucket", "ledgerId")}


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
