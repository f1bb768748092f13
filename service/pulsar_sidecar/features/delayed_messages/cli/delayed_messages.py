"""``pulsar-sidecar topics ...``: cancel delayed messages, singly, in bulk or by selection, and reschedule them."""

import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import IO, Annotated, TypeVar

import typer

from pulsar_sidecar.cli import output
from pulsar_sidecar.cli.command_groups import EXIT_CODES, ExitCode
from pulsar_sidecar.cli.connecting import Client, Context, GlobalOptions, Topic, show_result, topic_path
from pulsar_sidecar.cli.replication import sidecars_of
from pulsar_sidecar.cli.shared_groups import topics_app
from pulsar_sidecar.cli.words import iso_time, parse_time
from pulsar_sidecar.features.delayed_messages.results import (
    DelayedMessage,
    KnownCancellation,
    MessageOutcome,
    Preview,
    RescheduleResult,
)
from pulsar_sidecar.model.errors import InvalidInputError, SidecarError
from pulsar_sidecar.model.ids import MAX_LEDGER_ID
from pulsar_sidecar.model.names import java_url_encode
from pulsar_sidecar.reports.formatting import format_count

_LINES_AT_ONCE = 20_000
_LedgerId = Annotated[
    int, typer.Option("--ledgerId", "--ledger-id", "-l", min=0, max=MAX_LEDGER_ID, help="Ledger id of the message.")
]
_EntryId = Annotated[
    int, typer.Option("--entryId", "--entry-id", "-e", min=0, max=MAX_LEDGER_ID, help="Entry id of the message.")
]
_Wait = Annotated[
    bool, typer.Option("--wait-persisted", help="Wait until the brokers have persisted the acknowledgement.")
]
_Defer = Annotated[
    bool,
    typer.Option(
        "--defer", help="If a subscription already holds too many acknowledged ranges, cancel as soon as it has room."
    ),
]
_Names = Annotated[
    str | None,
    typer.Option(
        "--subscriptionNames",
        "--subscription-names",
        "-s",
        metavar="NAMES",
        help="Comma-separated subscriptions. Default: all Shared and Key_Shared ones.",
    ),
]

_AllClusters = Annotated[
    bool,
    typer.Option(
        "--all-clusters",
        help="Cancel on every cluster that the topic is replicated to; PULSAR_SIDECAR_CLUSTER_URLS "
        "(NAME=URL,NAME=URL) names their sidecars.",
    ),
]

_TIME = "milliseconds since the epoch, or ISO 8601 such as 2026-12-24T18:00:00Z"


def _time(text: str) -> int:
    try:
        return parse_time(text)
    except InvalidInputError as error:
        raise typer.BadParameter(str(error)) from None


@topics_app.command(epilog=EXIT_CODES)
def cancel_delayed_message(
    ctx: Context,
    topic: Topic,
    ledger_id: _LedgerId,
    entry_id: _EntryId,
    deliver_at: Annotated[
        int,
        typer.Option(
            "--deliverAt", "--deliver-at", "-t", metavar="TIME", parser=_time, help=f"Due time of the message: {_TIME}."
        ),
    ],
    subscription_names: _Names = None,
    all_clusters: _AllClusters = False,
    wait: _Wait = False,
    defer: _Defer = False,
) -> None:
    """Cancel a delayed message (PIP-423): on the named subscriptions, or on all Shared and Key_Shared ones.

    A message of a replicated topic is cancelled in this cluster only, and a warning names the other clusters. With
    --all-clusters its copy is cancelled in each of them, too, found by producer, sequence id and times; exit code 4 if
    one does not wait there: it was cancelled before, delivered, or is not replicated yet.

    Example: pulsar-sidecar topics cancel-delayed-message persistent://public/default/orders -l 12 -e 3
    -t 2026-12-24T18:00:00Z
    """
    if all_clusters:
        if wait:
            raise InvalidInputError("--wait-persisted waits in one cluster; leave it out with --all-clusters")
        _cancel_copies(ctx.obj, topic, f"{ledger_id}:{entry_id}", deliver_at, subscription_names, defer=defer)
        return
    message = {"ledgerId": ledger_id, "entryId": entry_id, "deliverAt": deliver_at}
    parameters = message | {"subscriptionNames": subscription_names or None} | _how(wait=wait, defer=defer)
    client = ctx.obj.client()
    accepted = client.call("POST", f"{_path(topic)}/cancelDelayedMessage", parameters=parameters)
    if accepted is None:
        output.info(f"cancelled {ledger_id}:{entry_id}")
        cancellations(ctx, topic, ledger_id, entry_id)
    else:
        output.info("the cancellation is logged; the sidecars acknowledge the message as soon as they can")
        output.document(accepted, ctx.obj.format)


@topics_app.command(epilog=EXIT_CODES)
def skip_messages(
    ctx: Context,
    topic: Topic,
    subscription: Annotated[str, typer.Option("--subscription", "-s", help="The subscription.")],
    message_ids: Annotated[
        list[str], typer.Argument(metavar="MESSAGE_ID...", help="ledgerId:entryId, or base64 of a message id.")
    ],
    wait: _Wait = False,
    defer: _Defer = False,
) -> None:
    """Cancel delayed messages of one subscription by their ids. If some are not cancelled, the reason names them.

    Example: pulsar-sidecar topics skip-messages persistent://public/default/orders -s workers 12:3 12:4
    """
    place = f"{_path(topic)}/subscription/{java_url_encode(subscription)}/skipByMessageIds"
    body = {"messageIds": [_message_id(text) for text in message_ids]}
    accepted = ctx.obj.client().call("POST", place, body, _how(wait=wait, defer=defer))
    output.info(
        f"cancelled {format_count(len(message_ids), 'message')}"
        if accepted is None
        else "all cancellations are logged; the sidecars acknowledge the messages as soon as they can"
    )


@topics_app.command(epilog=EXIT_CODES)
def cancel_delayed_messages(
    ctx: Context,
    topic: Topic,
    file: Annotated[
        str | None,
        typer.Option(
            "--file", metavar="FILE", help="JSON lines with ledgerId, entryId, deliverAt; - for standard input."
        ),
    ] = None,
    due_from: Annotated[
        int | None, typer.Option(metavar="TIME", parser=_time, help=f"Earliest due time, included: {_TIME}.")
    ] = None,
    due_to: Annotated[
        int | None,
        typer.Option(metavar="TIME", parser=_time, help="Latest due time, excluded; written in the same way."),
    ] = None,
    key: Annotated[str | None, typer.Option(help="Only messages with this key.")] = None,
    properties: Annotated[
        list[str] | None,
        typer.Option("--property", metavar="NAME=VALUE", help="Only messages with this property. May be repeated."),
    ] = None,
    subscription_names: _Names = None,
    all_clusters: _AllClusters = False,
    yes: Annotated[bool, typer.Option("--yes", help="Skip the confirmation after the preview.")] = False,
    wait: _Wait = False,
    defer: _Defer = False,
) -> None:
    """Cancel many delayed messages: those in a file, or after a preview those with a due time, key or property.

    The command writes one JSON line for each message to standard output. Exit code 4: some were not cancelled, or an
    entry could not be read and may be one of them.

    With --all-clusters the sidecar of each replication cluster previews the selection, and cancels it after one
    confirmation; each line names its cluster. Nothing is cancelled unless all of these sidecars have responded.

    Examples: pulsar-sidecar topics cancel-delayed-messages persistent://public/default/orders --file ids.jsonl
    ... cancel-delayed-messages persistent://public/default/orders --property customer=4711
    """
    selection = _selection(due_from, due_to, key, properties or [], subscription_names)
    if (file is None) == (not selection.keys() - {"subscriptionNames"}):
        raise InvalidInputError("give --file, or a selection (--due-from, --due-to, --key, --property), not both")
    if file is not None and all_clusters:
        raise InvalidInputError("message ids differ between clusters; give a selection to --all-clusters")
    path = _path(topic)
    if file is not None:
        _report(_of_lines(ctx.obj.client(), path, file, _how(wait=wait, defer=defer)))
        return
    sidecars: dict[str | None, Client] = (
        dict(sidecars_of(ctx.obj, topic).items()) if all_clusters else {None: ctx.obj.client()}
    )
    previews = {cluster: _previewed(client, path, selection, cluster) for cluster, client in sidecars.items()}
    expected = sum(preview.count for preview in previews.values())
    unreadable = sum(preview.unreadable for preview in previews.values())
    confirmed = bool(expected) and (yes or typer.confirm("Cancel them?", err=True))
    outcomes = _of_selections(sidecars, path, previews, defer=defer) if confirmed else ()
    _report(outcomes, unreadable=unreadable, expected=expected if confirmed else 0)


@topics_app.command(epilog=EXIT_CODES)
def cancellations(ctx: Context, topic: Topic, ledger_id: _LedgerId, entry_id: _EntryId) -> None:
    """Show the status of a cancellation on each subscription, and its cause.

    A cancellation ends as EXPIRED (not delivered), RACED or TOO_LATE, or as UNKNOWN if the cursor may have been lost or
    moved near the due time.

    Example: pulsar-sidecar topics cancellations persistent://public/default/orders -l 12 -e 3
    """
    show_result(ctx, list[KnownCancellation], f"{_path(topic)}/cancellations/{ledger_id}:{entry_id}")


@topics_app.command(epilog=EXIT_CODES)
def expedite_delayed_message(ctx: Context, topic: Topic, ledger_id: _LedgerId, entry_id: _EntryId) -> None:
    """Deliver a delayed message now: publish it again without a delay, and cancel the original.

    Example: pulsar-sidecar topics expedite-delayed-message persistent://public/default/orders -l 12 -e 3
    """
    _reschedule(ctx, topic, "expediteDelayedMessage", {"ledgerId": ledger_id, "entryId": entry_id})


@topics_app.command(epilog=EXIT_CODES)
def reschedule_delayed_message(
    ctx: Context,
    topic: Topic,
    ledger_id: _LedgerId,
    entry_id: _EntryId,
    new_deliver_at: Annotated[
        int,
        typer.Option(
            "--newDeliverAt", "--new-deliver-at", metavar="TIME", parser=_time, help=f"New due time: {_TIME}."
        ),
    ],
) -> None:
    """Give a delayed message another due time: publish it again, and cancel the original.

    Example: pulsar-sidecar topics reschedule-delayed-message persistent://public/default/orders -l 12 -e 3
    --new-deliver-at 2026-12-24T18:00:00Z
    """
    body = {"ledgerId": ledger_id, "entryId": entry_id, "newDeliverAt": new_deliver_at}
    _reschedule(ctx, topic, "rescheduleDelayedMessage", body)


def _cancel_copies(
    options: GlobalOptions, topic: str, message_id: str, deliver_at: int, names: str | None, *, defer: bool
) -> None:
    """Cancel a message and its copies in other clusters; nothing is cancelled unless all sidecars have responded."""
    path, sidecars = _path(topic), sidecars_of(options, topic)
    message = next(iter(sidecars.values())).result(DelayedMessage, "GET", f"{path}/delayedMessages/byId/{message_id}")
    if message.deliver_at != deliver_at:
        raise InvalidInputError(f"{message_id} is due at {message.deliver_at}, not at {deliver_at}")
    selection = _selection(deliver_at, deliver_at + 1, None, [], names) | {
        "producerName": message.producer_name,
        "sequenceId": message.sequence_id,
        "publishTime": message.publish_time,
    }
    previews = {cluster: _previewed(client, path, selection, cluster) for cluster, client in sidecars.items()}
    if ambiguous := [cluster for cluster, preview in previews.items() if preview.count > 1]:
        raise InvalidInputError(
            f"several messages in {', '.join(ambiguous)} have its producer, sequence id and times, so nothing was "
            "cancelled; cancel them by their ids"
        )
    for cluster, preview in previews.items():
        if not preview.count:
            output.info(f"{cluster}: it does not wait there: cancelled before, delivered, or not replicated yet")
    _report(_of_selections(sidecars, path, previews, defer=defer), expected=len(sidecars))


def _path(topic: str) -> str:
    return topic_path(topic, of_any_domain=True)


_Cluster = TypeVar("_Cluster", str, str | None)
_Outcome = tuple[str | None, MessageOutcome]
"""Outcome, and its cluster if the topic is replicated."""


def _of_lines(client: Client, path: str, file: str, parameters: Mapping[str, str | None]) -> Iterator[_Outcome]:
    with _lines_of(file) as stream:
        first = 0
        while lines := list(islice(stream, _LINES_AT_ONCE)):
            # In parts, because the service responds while it reads, and this client sends first and then reads.
            body = b"".join(line if line.endswith(b"\n") else line + b"\n" for line in lines)
            for outcome in client.lines(MessageOutcome, "POST", f"{path}/cancelDelayedMessages", body, parameters):
                yield None, replace(outcome, line=(outcome.line or 0) + first)
            first += len(lines)


def _lines_of(file: str) -> AbstractContextManager[IO[bytes]]:
    if file == "-":
        return nullcontext(sys.stdin.buffer)
    try:
        return Path(file).open("rb")
    except OSError as error:
        raise InvalidInputError(f"cannot read {file}: {error}") from error


def _previewed(client: Client, path: str, selection: Mapping[str, object], cluster: str | None) -> Preview:
    preview = client.result(Preview, "POST", f"{path}/delayedMessages/preview", selection)
    of_cluster = "" if cluster is None else f"{cluster}: "
    due = (
        ""
        if preview.first_due is None or preview.last_due is None
        else f", due from {iso_time(preview.first_due)} to {iso_time(preview.last_due)}"
    )
    output.info(f"{of_cluster}{format_count(preview.count, 'message')}{due}")
    for one in preview.sample[:5]:
        due = iso_time(one.deliver_at)
        output.info(output.printable(f"  {one.ledger_id}:{one.entry_id}  due {due}  key {one.key}"))
    if preview.unreadable:
        output.info(f"not included: {format_count(preview.unreadable, 'entry')} that could not be read")
    if preview.published_later:
        later = format_count(preview.published_later, "message")
        output.info(f"published since, by their producers' clocks, so not cancelled: {later}")
    return preview


def _of_selections(
    sidecars: Mapping[_Cluster, Client], path: str, previews: Mapping[_Cluster, Preview], *, defer: bool
) -> Iterator[_Outcome]:
    for cluster, client in sidecars.items():
        preview = previews[cluster]
        if not preview.count:
            continue
        body = json.dumps({**preview.selection, "hash": preview.hash, "defer": defer}).encode()
        try:
            for outcome in client.lines(MessageOutcome, "POST", f"{path}/delayedMessages/cancel", body, {}):
                yield cluster, outcome
        except SidecarError as error:
            if cluster is None:
                raise
            output.info(f"{cluster}: {error}; repeat the command: it selects only what is not cancelled")


def _report(outcomes: Iterable[_Outcome], *, unreadable: int = 0, expected: int = 0) -> None:
    counts: Counter[str] = Counter()
    cancelled = total = 0
    for cluster, outcome in outcomes:
        output.json_line(outcome, {} if cluster is None else {"cluster": cluster})
        total += 1
        cancelled += outcome.cancelled
        counts.update(verdict.proof.value for verdict in outcome.verdicts)
    total = max(total, expected)
    shown = ", ".join(f"{count} {proof}" for proof, count in counts.most_common())
    output.info(f"cancelled {cancelled} of {format_count(total, 'message')}" + (f" ({shown})" if shown else ""))
    if cancelled < total or unreadable:
        raise typer.Exit(ExitCode.NOT_ALL)


def _reschedule(ctx: Context, topic: str, verb: str, body: Mapping[str, object]) -> None:
    done = show_result(ctx, RescheduleResult, f"{_path(topic)}/{verb}", method="POST", body=body)
    if done.message_id is None:
        raise typer.Exit(ExitCode.FAILED)


def _selection(
    due_from: int | None, due_to: int | None, key: str | None, properties: list[str], names: str | None
) -> dict[str, object]:
    pairs = [text.partition("=") for text in properties]
    if not all(equals and name for name, equals, _ in pairs):
        raise InvalidInputError("write --property as NAME=VALUE")
    wanted: dict[str, object] = {
        "dueFrom": due_from,
        "dueTo": due_to,
        "key": key,
        "properties": {name: value for name, _, value in pairs} or None,
        "subscriptionNames": names.split(",") if names else None,
    }
    return {name: value for name, value in wanted.items() if value is not None}


def _message_id(text: str) -> object:
    ledger, colon, entry = text.partition(":")
    if not colon:
        return text
    if not (ledger.isdigit() and entry.partition(":")[0].isdigit()):
        raise InvalidInputError(f"{text[:60]!r} is not a message id; write ledgerId:entryId, or base64")
    return {"ledgerId": int(ledger), "entryId": int(entry.partition(":")[0])}


def _how(*, wait: bool, defer: bool) -> dict[str, str | None]:
    return {"wait": "persisted" if wait else None, "defer": "true" if defer else None}
