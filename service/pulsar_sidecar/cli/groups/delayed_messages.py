"""``pulsar-sidecar topics ...``: cancelling delayed messages, one, many or by what they are (PIP-423)."""

import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from pathlib import Path
from typing import IO, Annotated, Any

import typer

from pulsar_sidecar.analysis.formatting import format_count
from pulsar_sidecar.cli import output
from pulsar_sidecar.cli.command_groups import EXIT_CODES, ExitCode, new_group
from pulsar_sidecar.cli.connecting import Client, Context, Topic, show_answer, topic_path
from pulsar_sidecar.cli.replication import sidecars_of
from pulsar_sidecar.cli.words import iso_time, parse_time
from pulsar_sidecar.model.errors import InvalidInputError, SidecarError
from pulsar_sidecar.model.ids import MAX_LEDGER_ID
from pulsar_sidecar.model.names import java_url_encode

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

_TIME = "milliseconds since the epoch, or ISO 8601 such as 2026-12-24T18:00:00Z"


def _time(text: str) -> int:
    try:
        return parse_time(text)
    except InvalidInputError as error:
        raise typer.BadParameter(str(error)) from None


app = new_group("topics", "Delete topics in two phases, and cancel delayed messages.")


@app.command(epilog=EXIT_CODES)
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
    wait: _Wait = False,
    defer: _Defer = False,
) -> None:
    """Cancel a delayed message (PIP-423): on some subscriptions, or on all that are Shared or Key_Shared.

    Example: pulsar-sidecar topics cancel-delayed-message persistent://public/default/orders -l 12 -e 3
    -t 2026-12-24T18:00:00Z
    """
    message = {"ledgerId": ledger_id, "entryId": entry_id, "deliverAt": deliver_at}
    parameters = message | {"subscriptionNames": subscription_names or None} | _how(wait=wait, defer=defer)
    client = ctx.obj.client()
    path = topic_path(topic, of_any_domain=True)
    accepted = client.call("POST", f"{path}/cancelDelayedMessage", parameters=parameters)
    if accepted is None:
        output.info(f"cancelled {ledger_id}:{entry_id}")
        accepted = client.call("GET", f"{path}/cancellations/{ledger_id}:{entry_id}")
    else:
        output.info("the cancellation is logged; the sidecars acknowledge the message as soon as they can")
    output.document(accepted, ctx.obj.format)


@app.command(epilog=EXIT_CODES)
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
    place = f"{topic_path(topic, of_any_domain=True)}/subscription/{java_url_encode(subscription)}/skipByMessageIds"
    body = {"messageIds": [_message_id(text) for text in message_ids]}
    accepted = ctx.obj.client().call("POST", place, body, _how(wait=wait, defer=defer))
    output.info(
        f"cancelled {format_count(len(message_ids), 'message')}"
        if accepted is None
        else "all cancellations are logged; the sidecars acknowledge the messages as soon as they can"
    )


@app.command(epilog=EXIT_CODES)
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
    all_clusters: Annotated[
        bool,
        typer.Option(
            "--all-clusters",
            help="Cancel on every cluster that the topic is replicated to; PULSAR_SIDECAR_CLUSTER_URLS "
            "(NAME=URL,NAME=URL) names their sidecars.",
        ),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Skip the confirmation after the preview.")] = False,
    wait: _Wait = False,
    defer: _Defer = False,
) -> None:
    """Cancel many delayed messages: those of a file, or those with a due time, key or property after a preview.

    The command writes one JSON line for each message to standard output. Exit code 4: some were not cancelled, or an
    entry could not be read, so that it is not known whether it is one of them.

    With --all-clusters the selection is previewed on the sidecar of each replication cluster, confirmed once, and
    carried out there; each line names its cluster. Nothing is cancelled unless every one of them has answered.

    Examples: pulsar-sidecar topics cancel-delayed-messages persistent://public/default/orders --file ids.jsonl
    ... cancel-delayed-messages persistent://public/default/orders --property customer=4711
    """
    selection = _selection(due_from, due_to, key, properties or [], subscription_names)
    if (file is None) == (not selection.keys() - {"subscriptionNames"}):
        raise InvalidInputError("give --file, or a selection (--due-from, --due-to, --key, --property), not both")
    if file is not None and all_clusters:
        raise InvalidInputError("message ids are one cluster's own; give a selection to --all-clusters")
    path = topic_path(topic, of_any_domain=True)
    if file is not None:
        _report(_of_lines(ctx.obj.client(), path, file, _how(wait=wait, defer=defer)))
        return
    sidecars: dict[str | None, Client] = (
        dict(sidecars_of(ctx.obj, topic).items()) if all_clusters else {None: ctx.obj.client()}
    )
    previews = {cluster: _previewed(client, path, selection, cluster) for cluster, client in sidecars.items()}
    expected = sum(preview["count"] for preview in previews.values())
    unreadable = sum(preview["unreadable"] for preview in previews.values())
    confirmed = bool(expected) and (yes or typer.confirm("Cancel them?", err=True))
    verdicts = _of_selections(sidecars, path, previews, defer=defer) if confirmed else iter(())
    _report(verdicts, unreadable=unreadable, expected=expected if confirmed else 0)


@app.command(epilog=EXIT_CODES)
def cancellations(ctx: Context, topic: Topic, ledger_id: _LedgerId, entry_id: _EntryId) -> None:
    """Show how far a cancellation has come on each subscription, and why.

    A cancellation ends as EXPIRED (not delivered), RACED or TOO_LATE, or as UNKNOWN if the cursor may have been lost or
    moved near the due time.

    Example: pulsar-sidecar topics cancellations persistent://public/default/orders -l 12 -e 3
    """
    path = topic_path(topic, of_any_domain=True)
    show_answer(ctx, "GET", f"{path}/cancellations/{ledger_id}:{entry_id}")


@app.command(epilog=EXIT_CODES)
def expedite_delayed_message(ctx: Context, topic: Topic, ledger_id: _LedgerId, entry_id: _EntryId) -> None:
    """Deliver a delayed message now: publish it again without a delay, and cancel the old one.

    Example: pulsar-sidecar topics expedite-delayed-message persistent://public/default/orders -l 12 -e 3
    """
    _reschedule(ctx, topic, "expediteDelayedMessage", {"ledgerId": ledger_id, "entryId": entry_id})


@app.command(epilog=EXIT_CODES)
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
    """Give a delayed message another due time: publish it again, and cancel the old one.

    Example: pulsar-sidecar topics reschedule-delayed-message persistent://public/default/orders -l 12 -e 3
    --new-deliver-at 2026-12-24T18:00:00Z
    """
    body = {"ledgerId": ledger_id, "entryId": entry_id, "newDeliverAt": new_deliver_at}
    _reschedule(ctx, topic, "rescheduleDelayedMessage", body)


def _of_lines(client: Client, path: str, file: str, parameters: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    with _lines_of(file) as stream:
        first = 0
        while lines := list(islice(stream, _LINES_AT_ONCE)):
            # In parts, because the service answers while it reads, and this client sends first and then reads.
            body = b"".join(line if line.endswith(b"\n") else line + b"\n" for line in lines)
            for verdict in client.lines("POST", f"{path}/cancelDelayedMessages", body, parameters):
                yield {**verdict, "line": int(verdict.get("line") or 0) + first}
            first += len(lines)


def _lines_of(file: str) -> AbstractContextManager[IO[bytes]]:
    if file == "-":
        return nullcontext(sys.stdin.buffer)
    try:
        return Path(file).open("rb")
    except OSError as error:
        raise InvalidInputError(f"cannot read {file}: {error}") from error


def _previewed(client: Client, path: str, selection: Mapping[str, object], cluster: str | None) -> Mapping[str, Any]:
    preview: Mapping[str, Any] = client.call("POST", f"{path}/delayedMessages/preview", selection)
    due = f", due from {iso_time(preview['firstDue'])} to {iso_time(preview['lastDue'])}" if preview["count"] else ""
    output.info(f"{'' if cluster is None else cluster + ': '}{format_count(preview['count'], 'message')}{due}")
    for one in preview["sample"][:5]:
        output.info(
            output.printable(
                f"  {one['ledgerId']}:{one['entryId']}  due {iso_time(one['deliverAt'])}  key {one['key']}"
            )
        )
    if preview["unreadable"]:
        output.info(f"not included: {format_count(preview['unreadable'], 'entry')} that could not be read")
    if preview["publishedLater"]:
        later = preview["publishedLater"]
        output.info(f"published since, by their producers' clocks, so not cancelled: {format_count(later, 'message')}")
    return preview


def _of_selections(
    sidecars: Mapping[str | None, Client], path: str, previews: Mapping[str | None, Mapping[str, Any]], *, defer: bool
) -> Iterator[dict[str, Any]]:
    for cluster, client in sidecars.items():
        preview = previews[cluster]
        if not preview["count"]:
            continue
        body = json.dumps({**preview["selection"], "hash": preview["hash"], "defer": defer}).encode()
        verdicts = client.lines("POST", f"{path}/delayedMessages/cancel", body, {})
        if cluster is None:
            yield from verdicts
            continue
        try:
            yield from ({"cluster": cluster, **verdict} for verdict in verdicts)
        except SidecarError as error:
            output.info(f"{cluster}: {error}; repeat the command: it selects only what is not cancelled")


def _report(verdicts: Iterable[dict[str, Any]], *, unreadable: int = 0, expected: int = 0) -> None:
    counts: Counter[str] = Counter()
    cancelled = total = 0
    for verdict in verdicts:
        output.result(json.dumps(verdict, separators=(",", ":"), ensure_ascii=False))
        total += 1
        cancelled += bool(verdict.get("cancelled"))
        counts.update(one["proof"] for one in verdict["verdicts"])
    total = max(total, expected)
    shown = ", ".join(f"{count} {proof}" for proof, count in counts.most_common())
    output.info(f"cancelled {cancelled} of {format_count(total, 'message')}" + (f" ({shown})" if shown else ""))
    if cancelled < total or unreadable:
        raise typer.Exit(ExitCode.NOT_ALL)


def _reschedule(ctx: Context, topic: str, verb: str, body: Mapping[str, object]) -> None:
    done = show_answer(ctx, "POST", f"{topic_path(topic, of_any_domain=True)}/{verb}", body)
    if done["messageId"] is None:
        raise typer.Exit(ExitCode.FAILED)


def _selection(
    due_from: int | None, due_to: int | None, key: str | None, properties: list[str], names: str | None
) -> dict[str, object]:
    pairs = [text.partition("=") for text in properties]
    if not all(equals and name for name, equals, _ in pairs):
        raise InvalidInputError("write --property as NAME=VALUE")
    wanted: dict[str, object | None] = {
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


def _how(*, wait: bool, defer: bool) -> dict[str, Any]:
    return {"wait": "persisted" if wait else None, "defer": "true" if defer else None}
