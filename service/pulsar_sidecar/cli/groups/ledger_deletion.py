"""``pulsar-sidecar ledger-deletion``: the operator's verbs; and PIP-186's addition to pulsar-admin's ``broker-stats``.

The service owns the grammar of records; here only the file's form is checked, so that an error can name its line.
Invariant: a record is reported as sent only if the service confirmed it; when a later call fails, every other record
is reported as not sent, with the failure as its reason.
"""

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from pulsar_sidecar.cli import output
from pulsar_sidecar.cli.command_groups import EXIT_CODES, ExitCode, ServiceRefusedError, new_group
from pulsar_sidecar.cli.connecting import Client, Context, LedgerIdArgument, show_answer
from pulsar_sidecar.cli.groups import ledger_watch
from pulsar_sidecar.cli.words import length_of_time
from pulsar_sidecar.model.errors import InvalidInputError, UnreachableError
from pulsar_sidecar.model.ids import MAX_LEDGER_ID
from pulsar_sidecar.model.ledgers import LedgerComponent, LedgerType
from pulsar_sidecar.model.names import java_url_encode, parse_topic_name

Component = Annotated[LedgerComponent, typer.Option(help="Component of the ledgers.")]
Kind = Annotated[LedgerType, typer.Option("--type", help="Storage of the ledgers: BookKeeper or tiered storage.")]
CursorName = Annotated[str | None, typer.Option(help="Subscription, for a cursor's or a bucket's ledger.")]
SchemaId = Annotated[str | None, typer.Option(help="tenant/namespace/topic, for a schema's ledger.")]
OffloadContext = Annotated[
    str | None, typer.Option(metavar="JSON", help='{"msb":..,"lsb":..,"driverName":..,"metadata":{..}}')
]

MAX_BATCH_RECORDS = 10_000
_MAX_BATCH_BYTES = 4 * 1024 * 1024
_BASE = "/admin/v2/ledger-deletion"
DELETIONS = f"{_BASE}/topic-deletions"
_DEAD = ("ledgerId", "topicName", "tries", "deadSinceMs", "reason", "messageId")
_PENDING = ("ledgerId", "topicName", "lengthBytes", "writtenMs", "tries", "nextTryMs", "reason")
app = new_group("ledger-deletion", "Two-phase ledger deletion (PIP-186).")
dead_letters = new_group("dlq", "Dead letters: records that the sidecars no longer retry.")
app.add_typer(dead_letters)
app.add_typer(ledger_watch.app)
broker_stats_app = new_group("broker-stats", "Deletion statistics (PIP-186 BrokerStats).")


@app.command(epilog=EXIT_CODES)
def append(
    ctx: Context,
    ledger_ids: Annotated[
        list[int] | None, typer.Argument(metavar="LEDGER_ID", min=0, max=MAX_LEDGER_ID, help="The ledgers to delete.")
    ] = None,
    topic: Annotated[str | None, typer.Option("--topic", "-t", help="The topic that they belonged to.")] = None,
    component: Component = LedgerComponent.MANAGED_LEDGER,
    kind: Kind = LedgerType.LEDGER,
    cursor_name: CursorName = None,
    schema_id: SchemaId = None,
    offload_context: OffloadContext = None,
    file: Annotated[
        str | None, typer.Option("--file", metavar="FILE", help="Read one JSON record per line; - for stdin.")
    ] = None,
    producer_name: Annotated[
        str | None, typer.Option(help="A stable name, so that the broker drops the records of a repeated call.")
    ] = None,
    first_sequence_id: Annotated[
        int | None, typer.Option(min=0, help="Sequence id of the first record; the others follow.")
    ] = None,
) -> None:
    """Record ledgers for deletion; the sidecar checks each one before it deletes it.

    Exit code 4 if not every record was sent: send those again.

    Example: pulsar-sidecar ledger-deletion append 4711 4712 --topic persistent://public/default/orders
    """
    if (producer_name is None) != (first_sequence_id is None):
        raise InvalidInputError("--producer-name and --first-sequence-id belong together")
    if file is not None and not ledger_ids and topic is None:
        records = _read_records(file)
    elif file is None and ledger_ids and topic is not None:
        name = str(parse_topic_name(topic))
        records = [
            record_document(ledger_id, name, component, kind, cursor_name, schema_id, offload_context)
            for ledger_id in ledger_ids
        ]
    else:
        raise InvalidInputError("give ledger ids and --topic, or --file alone")
    appended = _append_all(ctx.obj.client(), records, producer_name, first_sequence_id)
    output.document(appended, ctx.obj.format)
    if appended["notSent"]:
        raise typer.Exit(ExitCode.NOT_ALL)


@app.command(epilog=EXIT_CODES)
def status(ctx: Context) -> None:
    """Print the state of the service: settings, pending work, registered sidecars.

    Example: pulsar-sidecar --output-format json ledger-deletion status
    """
    show_answer(ctx, "GET", f"{_BASE}/status")


@app.command(epilog=EXIT_CODES)
def pending(
    ctx: Context,
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="Maximum number of records.")] = 100,
    offset: Annotated[int, typer.Option(min=0, max=10_000, help="The next page: number of records to pass over.")] = 0,
) -> None:
    """List the records that wait for deletion.

    They come in order of publishing, and none is consumed.

    Example: pulsar-sidecar ledger-deletion pending --limit 10
    """
    records = ctx.obj.client().call("GET", f"{_BASE}/pending", parameters={"limit": limit, "offset": offset})
    chosen = ctx.obj.format
    output.document(records if chosen is output.Format.JSON else _rows(records, _PENDING), chosen)
    if len(records) == limit:
        output.info(f"there may be more; the next page: --offset {offset + limit}")


@app.command(epilog=EXIT_CODES)
def trend(ctx: Context) -> None:
    """Print the last hour of this sidecar, a minute at a time.

    Also how long the pending records will take.

    Example: pulsar-sidecar ledger-deletion trend
    """
    show_answer(ctx, "GET", f"{_BASE}/trend")


@app.command(epilog=EXIT_CODES)
def pause(ctx: Context, reason: Annotated[str | None, typer.Option(help="Shown by status.")] = None) -> None:
    """Stop deleting on all sidecars; recording continues.

    Example: pulsar-sidecar ledger-deletion pause --reason "bookies are being replaced"
    """
    show_answer(ctx, "POST", f"{_BASE}/pause", {} if reason is None else {"reason": reason})


@app.command(epilog=EXIT_CODES)
def resume(ctx: Context) -> None:
    """Resume deleting on all sidecars.

    Example: pulsar-sidecar ledger-deletion resume
    """
    show_answer(ctx, "POST", f"{_BASE}/resume")


@app.command(epilog=EXIT_CODES)
def rate(
    ctx: Context,
    ledgers_per_second: Annotated[str, typer.Argument(metavar="NUMBER|none", help="none removes the limit.")],
) -> None:
    """Limit how many ledgers each sidecar deletes a second.

    Example: pulsar-sidecar ledger-deletion rate 500
    """
    limit = _rate(ledgers_per_second)
    show_answer(ctx, "PUT", f"{_BASE}/rate", {"ledgersPerSecond": limit})


@app.command("topic-deletions", epilog=EXIT_CODES)
def topic_deletions(
    ctx: Context,
    operation_id: Annotated[str | None, typer.Argument(metavar="[ID]", help="Only this one, with details.")] = None,
) -> None:
    """List the two-phase deletions of topics that are running, or show one: what it waits for, and what it has left.

    Subscriptions and schemas are among them whose broker did not answer; "part" names what of the topic is deleted.

    One that ended in the last 10 minutes is shown with its end.

    Example: pulsar-sidecar ledger-deletion topic-deletions
    """
    show_answer(ctx, "GET", DELETIONS if operation_id is None else _deletion_path(operation_id))


@app.command(epilog=EXIT_CODES)
def abandon(
    ctx: Context,
    operation_id: Annotated[str, typer.Argument(metavar="ID", help="The operationId that topic-deletions shows.")],
) -> None:
    """End a topic deletion that cannot be completed; also one that this version cannot read.

    The sidecars ask no broker any more. They judge what was recorded as ever: a ledger that is still referenced stays.
    The answer names the nodes and the ledgers that are left.

    Example: pulsar-sidecar ledger-deletion abandon 0c2f4c1e9b7d4f0f8a55a1c1b0a3d9e2
    """
    show_answer(ctx, "POST", f"{_deletion_path(operation_id)}/abandon")


def _deletion_path(operation_id: str) -> str:
    return f"{DELETIONS}/{java_url_encode(operation_id)}"


@app.command(epilog=EXIT_CODES)
def undelete(
    ctx: Context,
    ledger_id: LedgerIdArgument,
    force: Annotated[
        bool, typer.Option("--force", help="Restore the metadata even if bookies no longer hold the entries.")
    ] = False,
) -> None:
    """Restore a deleted ledger: while the bookies still hold its entries (gcWaitTime, 15 minutes by default).

    No sidecar deletes it again before protectedUntilMs (twoPhaseDeletionUndeleteProtectionInSeconds, 24 hours by
    default): add it to a topic's ledger list again before then. Records about it wait; status lists protected ledgers.

    Example: pulsar-sidecar ledger-deletion undelete 4711
    """
    show_answer(ctx, "POST", f"{_BASE}/undelete", {"ledgerId": ledger_id, "force": force})


@app.command("end-protection", epilog=EXIT_CODES)
def end_protection(ctx: Context, ledger_id: LedgerIdArgument) -> None:
    """End the protection of a restored ledger, so that it can be deleted.

    A record that waits for the protection's end keeps waiting; to delete the ledger at once, append it again.

    Example: pulsar-sidecar ledger-deletion end-protection 4711
    """
    show_answer(ctx, "POST", f"{_BASE}/end-protection", {"ledgerId": ledger_id})


@dead_letters.command("list", epilog=EXIT_CODES)
def list_dead_letters(
    ctx: Context,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Maximum number of records, oldest first.")] = 100,
    after: Annotated[
        str | None, typer.Option(metavar="MESSAGE_ID", help="The next page: message id of the last record of this one.")
    ] = None,
) -> None:
    """List dead letters with the reason why the sidecar gave up.

    Example: pulsar-sidecar ledger-deletion dlq list --limit 10
    """
    letters = ctx.obj.client().call("GET", f"{_BASE}/dead-letters", parameters={"limit": limit, "after": after})
    chosen = ctx.obj.format
    output.document(letters if chosen is output.Format.JSON else _rows(letters, _DEAD), chosen)
    if len(letters) == limit:
        output.info(output.printable(f"there may be more; the next page: --after {letters[-1]['messageId']}"))


@dead_letters.command(epilog=EXIT_CODES)
def redrive(
    ctx: Context,
    ledger_ids: Annotated[
        list[int] | None,
        typer.Argument(metavar="LEDGER_ID", min=0, max=MAX_LEDGER_ID, help="Only these ledgers; all if none is given."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1_000_000, help="Maximum number of records.")] = 10_000,
) -> None:
    """Send dead letters back to the system topic; their tries count anew.

    Example: pulsar-sidecar ledger-deletion dlq redrive 4711 4712
    """
    body: dict[str, object] = {"limit": limit}
    if ledger_ids:
        body["ledgerIds"] = ledger_ids
    show_answer(ctx, "POST", f"{_BASE}/dead-letters/redrive", body)


@broker_stats_app.command("estimated-inflight-deletion-ledger-count", epilog=EXIT_CODES)
def estimated_inflight_deletion_ledger_count(ctx: Context) -> None:
    """Print how many ledgers wait for deletion; 0 means that none is left.

    Example: pulsar-sidecar broker-stats estimated-inflight-deletion-ledger-count
    """
    estimate = ctx.obj.client().call("GET", "/admin/v2/ledger-deletion/inflight")
    if ctx.obj.format is output.Format.TABLE:
        output.result(str(estimate["count"]))
        output.info(f"measured {length_of_time(estimate['ageMs'])} ago")
    else:
        output.document(estimate, output.Format.JSON)


def _rate(text: str) -> float | None:
    if text == "none":
        return None
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not 0 < rate < float("inf"):
        raise InvalidInputError("write a number of ledgers a second above 0, or none")
    return rate


def _rows(records: list[dict[str, Any]], shown: Sequence[str]) -> list[dict[str, object]]:
    flat = [{**(each["record"] or {}), **each} for each in records]
    return [{name: each.get(name) for name in shown} for each in flat]


def record_document(
    ledger_id: int,
    topic: str,
    component: LedgerComponent,
    ledger_type: LedgerType,
    cursor_name: str | None,
    schema_id: str | None,
    offload_context: str | None,
) -> dict[str, object]:
    """A record with PIP-186's field names."""
    context = None if offload_context is None else _json_object("--offload-context", offload_context)
    document: dict[str, object | None] = {
        "ledgerId": ledger_id,
        "topicName": topic,
        "ledgerComponent": component.value,
        "ledgerType": ledger_type.value,
        "cursorName": cursor_name,
        "schemaId": schema_id,
        "offloadContext": context,
    }
    return {name: value for name, value in document.items() if value is not None}


def _read_records(file: str) -> list[dict[str, object]]:
    """JSON lines from a file, or from standard input for ``-``; empty lines are skipped.

    Raises:
        InvalidInputError: it cannot be read, or a line is not a JSON object; the error names the line.
    """
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"cannot read {file}: {error}") from error
    return [_json_object(f"line {number}", line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]


def _append_all(
    client: Client,
    records: Sequence[dict[str, object]],
    producer_name: str | None,
    first_sequence_id: int | None,
) -> dict[str, list[object]]:
    """Send the records in order; which arrived, and which did not.

    Raises:
        ServiceRefusedError, UnreachableError: the first call failed, so nothing was sent.
    """
    appended: dict[str, list[object]] = {"sent": [], "notSent": []}
    confirmed = 0
    for batch in _batches(records):
        body: dict[str, object] = {"ledgers": batch}
        if producer_name is not None and first_sequence_id is not None:
            body |= {"producerName": producer_name, "firstSequenceId": first_sequence_id + confirmed}
        try:
            answer = client.call("POST", "/admin/v2/ledger-deletion/pending", body)
        except (ServiceRefusedError, UnreachableError) as error:
            if confirmed == 0:
                raise
            appended["notSent"] += [
                {"ledgerId": record.get("ledgerId"), "reason": str(error)} for record in records[confirmed:]
            ]
            break
        if isinstance(answer, dict):
            for what, ledgers in appended.items():
                ledgers.extend(answer.get(what, []))
        confirmed += len(batch)
    return appended


def _batches(records: Iterable[dict[str, object]]) -> Iterator[list[dict[str, object]]]:
    """The records in order, in parts that the service takes in one call."""
    batch: list[dict[str, object]] = []
    size_bytes = 0
    for record in records:
        record_bytes = len(json.dumps(record).encode()) + 2
        if batch and (len(batch) == MAX_BATCH_RECORDS or size_bytes + record_bytes > _MAX_BATCH_BYTES):
            yield batch
            batch, size_bytes = [], 0
        batch.append(record)
        size_bytes += record_bytes
    if batch:
        yield batch


def _json_object(where: str, text: str) -> dict[str, object]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise InvalidInputError(f"{where} is not JSON") from None
    if not isinstance(document, dict):
        raise InvalidInputError(f"{where} is not a JSON object")
    return document
