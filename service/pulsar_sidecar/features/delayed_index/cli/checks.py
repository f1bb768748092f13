"""``pulsar-sidecar delayed-index build|fsck|repair``: missing, damaged and dead buckets."""

import shlex
from collections.abc import Iterator, Sequence
from typing import Annotated
from urllib.parse import urlencode

import typer

from pulsar_sidecar.cli import output
from pulsar_sidecar.cli.command_groups import EXIT_CODES, ExitCode
from pulsar_sidecar.cli.connecting import (
    Context,
    Subscription,
    Topic,
    show_result,
    topic_or_namespace_path,
    topic_path,
)
from pulsar_sidecar.cli.words import utc
from pulsar_sidecar.features.delayed_index.cli.show import app
from pulsar_sidecar.features.delayed_index.results.maintenance import (
    BuildReport,
    CheckReport,
    CheckScope,
    FindingKind,
    PointerOutcome,
    RepairAction,
    RepairReport,
    RepairResult,
)
from pulsar_sidecar.model.errors import InvalidInputError
from pulsar_sidecar.reports.formatting import format_count

_REPAIRED = ", ".join(kind.value for kind in FindingKind if kind.step)
_CHECK_EXIT_CODES = (
    "Exit codes: 0 clean; 2 there are findings; 1 the service answered with an error, or wrong usage; 3 no answer came."
)

_Place = Annotated[
    str, typer.Argument(metavar="TOPIC|NAMESPACE", help="persistent://tenant/namespace/topic, or tenant/namespace")
]
_Execute = Annotated[bool, typer.Option("--execute", help="Execute the approved plan.")]
_Plan = Annotated[str | None, typer.Option(metavar="HASH", help="Hash of the approved plan.")]
_Sample = Annotated[
    int, typer.Option(min=0, max=10_000_000, help="Number of messages of each bucket to compare with their index.")
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
    execute: _Execute = False,
    plan: _Plan = None,
) -> None:
    """Write the buckets of an unloaded topic. Without --execute: only show the plan.

    The next topic load then reads them instead of the backlog. Stop the topic's producers and consumers and unload it
    first (pulsar-admin topics unload): a client's lookup makes a broker load the topic again immediately, and the
    sidecar does not change the cursor of a loaded topic. The command does not prevent a broker from loading it; the
    outcome shows whether one did. Every broker has to run the bucket tracker.

    Approve the plan by its hash: --execute needs it as --plan, and refuses if the plan has changed. The backlog is read
    once for the plan and once more for the execution; --request-timeout has to be long enough for that.

    Example: pulsar-sidecar delayed-index build persistent://public/default/orders -s billing

    Then: pulsar-sidecar delayed-index build persistent://public/default/orders -s billing --execute --plan HASH
    """
    _demand_both(plan, execute=execute)
    parameters = {"subscription": subscription, "plan": plan}
    path = f"{topic_path(topic)}/delayedIndex/build"
    report = show_result(ctx, BuildReport, path, _built_lines, parameters, method="POST")
    if not any(each.buckets for each in report.subscriptions):
        output.info("there is nothing to build: no unacknowledged delayed message is without a bucket")
    elif not report.executed:
        only = f" -s {shlex.quote(subscription)}" if subscription is not None else ""
        output.info(
            f"nothing was changed. Build with: pulsar-sidecar delayed-index build {topic}{only} --execute --plan "
            f"{report.plan}"
        )
    if any(each.outcome is PointerOutcome.LOADED_MEANWHILE for each in report.subscriptions):
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
    settings. It reads the metadata store and the bookies, and checks each finding twice, since brokers may change what
    it reads. It loads no topic, and does not compare messages that bookies do not have.

    Example: pulsar-sidecar delayed-index fsck persistent://public/default/orders

    Example: pulsar-sidecar --request-timeout 3600 delayed-index fsck public/default --all-messages --orphans
    """
    parameters = _parameters(sample, settle_seconds, all_messages=all_messages, orphans=orphans)
    path = f"{topic_or_namespace_path(place)}/delayedIndex/fsck"
    if show_result(ctx, CheckReport, path, _lines, parameters).findings:
        raise typer.Exit(ExitCode.FINDINGS)


@app.command(epilog=EXIT_CODES)
def repair(
    ctx: Context,
    place: _Place,
    execute: _Execute = False,
    plan: _Plan = None,
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

    The command removes cursors' pointers to ledgers that do not exist. It enqueues buckets that are damaged, dead or
    overlap others for deletion; the deletion service proves again that nothing references a ledger before it deletes
    it. The command reattaches an orphaned bucket if every bit and every index in it is right, enqueues it for deletion
    if one is wrong, and leaves it as it is while that is unknown. It enqueues sound buckets that brokers with the
    in-memory tracker do not read only with --kind tracker-downgrade.

    A cursor is changed only while no broker has its topic loaded: stop the topic's producers and consumers, and unload
    it. Approve the plan by its hash: --execute needs it as --plan, with the same options; it checks again, and refuses
    if the plan has changed. Exit code 4: not everything was done.

    Example: pulsar-sidecar delayed-index repair persistent://public/default/orders

    Then: pulsar-sidecar delayed-index repair persistent://public/default/orders --execute --plan HASH
    """
    _demand_both(plan, execute=execute)
    parameters = _parameters(sample, settle_seconds, all_messages=all_messages, orphans=orphans)
    path = f"{topic_or_namespace_path(place)}/delayedIndex/repair"
    if kinds:
        path += "?" + urlencode([("kinds", kind.value) for kind in kinds])
    if plan is None:
        _explain(show_result(ctx, RepairReport, path, _planned_lines, parameters))
        return
    repaired = show_result(ctx, list[RepairResult], path, _repaired_lines, {**parameters, "plan": plan}, method="POST")
    if not all(each.done for each in repaired):
        raise typer.Exit(ExitCode.NOT_ALL)


def _demand_both(plan: str | None, *, execute: bool) -> None:
    if execute != (plan is not None):
        raise InvalidInputError("--execute and --plan HASH require each other; omit both to show the plan")


def _parameters(sample: int, settle_seconds: int, *, all_messages: bool, orphans: bool) -> dict[str, int | str | None]:
    return {
        "sample": sample,
        "settleSeconds": settle_seconds,
        "allMessages": "true" if all_messages else None,
        "orphans": "true" if orphans else None,
    }


def _lines(report: CheckReport) -> Iterator[str]:
    for each in report.findings:
        yield "  ".join(filter(None, (each.kind.value, each.topic, each.subscription, each.bucket)))
        for name, text in (("cause", each.cause), ("consequence", each.consequence), ("remedy", each.remedy)):
            yield f"  {name:12}{text}"
    yield _extent(report.checked, clean=not report.findings)


def _extent(checked: CheckScope, *, clean: bool) -> str:
    note = ""
    if checked.unread:
        note = f" ({checked.unread:,} could not be read)"
    elif checked.entries < checked.entries_left:
        note = f" (if all of these are right, at most {checked.wrong_share_bound:.2%} are wrong, with 95 % confidence)"
    ledgers = "" if checked.ledgers is None else f", {format_count(checked.ledgers, 'ledger')} searched for orphans"
    return (
        f"{'clean: ' if clean else ''}{format_count(checked.topics, 'topic')}, "
        f"{format_count(checked.subscriptions, 'subscription')}, {format_count(checked.buckets, 'bucket')}, "
        f"{format_count(checked.indexes, 'index')}, {checked.entries:,} of "
        f"{format_count(checked.entries_left, 'message')} compared{note}{ledgers}"
    )


def _explain(planned: RepairReport) -> None:
    for each in planned.left:
        where = " ".join(filter(None, (each.kind.value, each.topic, each.subscription)))
        output.info(output.printable(f"left: {where}: {each.cause}; {each.remedy}"))
    for one in planned.loaded:
        clients = one.clients
        who = "its clients, which the broker did not name" if clients is None else ", ".join(clients) or "no client"
        unload = f"pulsar-admin topics unload {one.topic}"
        output.info(output.printable(f"broker {one.broker} has {one.topic} loaded. Stop {who}; then: {unload}"))
    if planned.actions:
        output.info(f"nothing was changed. Execute it with the same options and --execute --plan {planned.plan}")
    elif planned.left:
        output.info("nothing can be repaired with these options now; see the remaining findings")
    else:
        output.info("there is nothing to repair")


def _planned_lines(planned: RepairReport) -> Iterator[str]:
    return output.table_lines([{**_row(each), "reason": each.reason} for each in planned.actions])


def _repaired_lines(repaired: Sequence[RepairResult]) -> Iterator[str]:
    return output.table_lines(
        [
            {**_row(each.action), "done": each.done, "enqueued": each.handed_over, "problem": each.problem}
            for each in repaired
        ]
    )


def _row(action: RepairAction) -> dict[str, object]:
    return {
        "step": action.step.value,
        "topic": action.topic,
        "subscription": action.subscription,
        "bucket": action.bucket,
        "ledger id": action.ledger_id,
    }


def _built_lines(report: BuildReport) -> Iterator[str]:
    return output.table_lines(
        [
            {
                "topic": subscription.topic,
                "subscription": subscription.subscription,
                "ledgers": f"{bucket.start_ledger_id}-{bucket.end_ledger_id}",
                "segments": bucket.segments,
                "messages": f"{bucket.indexes:,}",
                "due from (UTC)": utc(bucket.first_due_ms // 1000),
                "due to (UTC)": utc(bucket.last_due_ms // 1000),
                "in ledger": bucket.ledger_id,
                "outcome": "planned" if subscription.outcome is None else subscription.outcome.value,
            }
            for subscription in report.subscriptions
            for bucket in subscription.buckets
        ]
    )
