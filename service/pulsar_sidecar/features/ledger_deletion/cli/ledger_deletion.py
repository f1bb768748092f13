"""``pulsar-sidecar ledger-deletion``: operators' calls; and PIP-186's addition to pulsar-admin's ``broker-stats``.

The service owns the grammar of records; this module checks only the form of a file, so that an error can name its line.
Invariant: a record is reported as sent only if the service confirmed it; if a later call fails, every other record is
reported as not sent, with the failure as its reason.
"""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from pulsar_sidecar.cli import output
from pulsar_sidecar.cli.command_groups import EXIT_CODES, ExitCode, ServiceRefusedError, new_group
from pulsar_sidecar.cli.connecting import Client, Context, LedgerIdArgument, show_answer, show_made, show_result
from pulsar_sidecar.cli.words import iso_time, length_of_time
from pulsar_sidecar.features.ledger_deletion import results
from pulsar_sidecar.features.ledger_deletion.cli import watch as ledger_watch
from pulsar_sidecar.model.clocks import SystemClock
from pulsar_sidecar.model.errors import InvalidInputError, UnreachableError
from pulsar_sidecar.model.ids import MAX_LEDGER_ID, LedgerId
from pulsar_sidecar.model.ledgers import LedgerComponent, LedgerType
from pulsar_sidecar.model.names import java_url_encode, parse_topic_name
from pulsar_sidecar.reports.formatting import format_age, format_bytes, format_count

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
        raise InvalidInputError("--producer-name and --first-sequence-id require each other")
    if file is not None and not ledger_ids and topic is None:
        records = _read_records(file)
    elif file is None and ledger_ids and topic is not None:
        name = str(parse_topic_name(topic))
        records = [
            record_document(ledger_id, name, component, kind, cursor_name, schema_id, offload_context)
            for ledger_id in ledger_ids
        ]
    else:
        raise InvalidInputError("specify ledger ids and --topic, or --file alone")
    appended = _append_all(ctx.obj.client(), records, producer_name, first_sequence_id)
    show_made(ctx, appended)
    if appended.not_sent:
        raise typer.Exit(ExitCode.NOT_ALL)


@app.command(epilog=EXIT_CODES)
def status(ctx: Context) -> None:
    """Print the state of the service: settings, pending work, registered sidecars.

    The space that bookies have reclaimed from the last day's deletions is a few minutes old; `ledger-deletion
    reclaimed` queries them now.

    Example: pulsar-sidecar --output-format json ledger-deletion status
    """
    reclaim = show_result(ctx, results.ServiceStatus, f"{_BASE}/status").reclaimed
    if reclaim is not None and ctx.obj.format is output.Format.TABLE:
        output.info("\n".join(islice(_of_reclaim(reclaim), 2)))


@app.command(epilog=EXIT_CODES)
def pending(
    ctx: Context,
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="Maximum number of records.")] = 100,
    offset: Annotated[int, typer.Option(min=0, max=10_000, help="The next page: number of records to skip.")] = 0,
) -> None:
    """List the records that wait for deletion.

    Lists them in order of publishing, without consuming any.

    Example: pulsar-sidecar ledger-deletion pending --limit 10
    """
    parameters = {"limit": limit, "offset": offset}
    records = show_result(ctx, list[results.PendingRecord], f"{_BASE}/pending", _of_pending, parameters)
    if len(records) == limit:
        output.info(f"there may be more; the next page: --offset {offset + limit}")


@app.command(epilog=EXIT_CODES)
def reclaimed(
    ctx: Context,
    hours: Annotated[float, typer.Option(min=0.01, help="Include only deletions from the last HOURS hours.")] = 24.0,
) -> None:
    """Show the space that bookies have reclaimed from deleted ledgers.

    These are recorded ledgers that the sidecars, or brokers before them, have deleted. Unrecorded ledgers,
    such as those of a trim, are not counted.

    A bookie has collected a ledger when it no longer has any entry of it (gcWaitTime); each one is queried for the last
    hundred. Its files shrink when an entry log has no ledger left, or by compaction: it counts these bytes since its
    start, for whatever deleted ledgers.

    Example: pulsar-sidecar ledger-deletion reclaimed --hours 4
    """
    show_result(ctx, results.Reclaim, f"{_BASE}/reclaimed", _of_reclaim, {"hours": hours})


@app.command(epilog=EXIT_CODES)
def trend(ctx: Context) -> None:
    """Print this sidecar's per-minute statistics of the last hour.

    Also estimates the time until nothing is pending.

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
    """Limit the number of ledgers that each sidecar deletes per second.

    Example: pulsar-sidecar ledger-deletion rate 500
    """
    limit = _rate(ledgers_per_second)
    show_answer(ctx, "PUT", f"{_BASE}/rate", {"ledgersPerSecond": limit})


@app.command("topic-deletions", epilog=EXIT_CODES)
def topic_deletions(
    ctx: Context,
    operation_id: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="Only this deletion, with details.")
    ] = None,
) -> None:
    """List the running two-phase deletions of topics, or show one: what it waits for, and what remains.

    Also lists subscription and schema deletions whose broker timed out; "part" names what is deleted.

    The details of a deletion that ended in the last 10 minutes include its end.

    Example: pulsar-sidecar ledger-deletion topic-deletions
    """
    show_answer(ctx, "GET", DELETIONS if operation_id is None else _deletion_path(operation_id))


@app.command(epilog=EXIT_CODES)
def abandon(
    ctx: Context,
    operation_id: Annotated[str, typer.Argument(metavar="ID", help="The operationId that topic-deletions shows.")],
) -> None:
    """End a topic deletion that cannot be completed.

    Also ends a deletion that this version cannot read.

    The sidecars send brokers no further requests. They evaluate the records as usual, so referenced ledgers stay. The
    output names the remaining nodes and ledgers.

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
    """Restore a deleted ledger: while bookies still hold its entries (gcWaitTime, 15 minutes by default).

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
    """List dead letters with the reason of each.

    Example: pulsar-sidecar ledger-deletion dlq list --limit 10
    """
    parameters = {"limit": limit, "after": after}
    letters = show_result(ctx, list[results.DeadLetter], f"{_BASE}/dead-letters", _of_dead_letters, parameters)
    if len(letters) == limit:
        output.info(output.printable(f"there may be more; the next page: --after {letters[-1].message_id}"))


@dead_letters.command(epilog=EXIT_CODES)
def redrive(
    ctx: Context,
    ledger_ids: Annotated[
        list[int] | None,
        typer.Argument(metavar="LEDGER_ID", min=0, max=MAX_LEDGER_ID, help="Only these ledgers; all if none is given."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1_000_000, help="Maximum number of records.")] = 10_000,
) -> None:
    """Send dead letters back to the system topic and reset their retry counts.

    Example: pulsar-sidecar ledger-deletion dlq redrive 4711 4712
    """
    body: dict[str, object] = {"limit": limit}
    if ledger_ids:
        body["ledgerIds"] = ledger_ids
    show_answer(ctx, "POST", f"{_BASE}/dead-letters/redrive", body)


@broker_stats_app.command("estimated-inflight-deletion-ledger-count", epilog=EXIT_CODES)
def estimated_inflight_deletion_ledger_count(ctx: Context) -> None:
    """Print the number of ledgers pending deletion.

    Example: pulsar-sidecar broker-stats estimated-inflight-deletion-ledger-count
    """
    estimate = show_result(ctx, results.InflightEstimate, f"{_BASE}/inflight", lambda found: [str(found.count)])
    if ctx.obj.format is output.Format.TABLE:
        output.info(f"measured {length_of_time(estimate.age_ms)} ago")


def _rate(text: str) -> float | None:
    if text == "none":
        return None
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not 0 < rate < float("inf"):
        raise InvalidInputError("specify a positive number of ledgers per second, or none")
    return rate


def _of_reclaim(found: results.Reclaim) -> Iterator[str]:
    hours = f"{round((found.as_of_ms - found.since_ms) / 3_600_000, 2):g} hours"
    if found.last_deleted_ms is None:
        yield f"no recorded ledger was deleted in the last {hours}"
        return
    unmeasured = f" and {found.unmeasured_ledgers:,} of unknown length" if found.unmeasured_ledgers else ""
    deleted = f"{format_count(found.ledgers, 'ledger')}, {format_bytes(found.deleted_bytes)} (one copy){unmeasured}"
    ago = format_age(SystemClock().now_ms() - found.last_deleted_ms)
    yield f"deleted in the last {hours}: {deleted}; the last one {ago} ago"
    bookies = format_count(len(found.bookies), "bookie")
    last = format_count(found.asked_ledgers, "ledger")
    yield f"{found.collected_bookies:,} of {bookies} have collected the last {last}"
    for each in found.bookies:
        waits = (
            f"{format_count(each.waiting_ledgers or 0, 'ledger')}, {format_bytes(each.waiting_bytes)}, not collected"
        )
        state = "unknown" if each.waiting_ledgers is None else waits if each.waiting_ledgers else "collected"
        space = "it is unknown by how much its files have shrunk"
        if each.reclaimed_bytes is not None and each.reclaimed_since_ms is not None:
            since = iso_time(each.reclaimed_since_ms)
            space = f"its files have shrunk by {format_bytes(each.reclaimed_bytes)} since {since}"
        yield f"  {each.bookie}: {state}; {space}"
        yield from (f"    {problem}" for problem in each.problems)


def _of_pending(records: Sequence[results.PendingRecord]) -> Iterator[str]:
    return _table(
        {
            **_recorded(each.record),
            "lengthBytes": each.length_bytes,
            "writtenMs": each.written_ms,
            "tries": each.tries,
            "nextTryMs": each.next_try_ms,
            "reason": each.reason,
        }
        for each in records
    )


def _of_dead_letters(letters: Sequence[results.DeadLetter]) -> Iterator[str]:
    return _table(
        {
            **_recorded(each.record),
            "tries": each.tries,
            "deadSinceMs": each.dead_since_ms,
            "reason": each.reason,
            "messageId": each.message_id,
        }
        for each in letters
    )


def _table(rows: Iterable[dict[str, object]]) -> Iterator[str]:
    found = list(rows)
    if not found:
        output.info("none")
    return output.table_lines(found)


def _recorded(record: Mapping[str, object] | None) -> dict[str, object]:
    return {name: record and record[name] for name in ("ledgerId", "topicName")}


def record_document(
    ledger_id: int,
    topic: str,
    component: LedgerComponent,
    ledger_type: LedgerType,
    cursor_name: str | None,
    schema_id: str | None,
    offload_context: str | None,
) -> dict[str, object]:
    """Return a record with PIP-186's field names."""
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
) -> results.Appended:
    sent, not_sent, confirmed = list[LedgerId](), list[results.NotSent](), 0
    for batch in _batches(records):
        body: dict[str, object] = {"ledgers": batch}
        if producer_name is not None and first_sequence_id is not None:
            body |= {"producerName": producer_name, "firstSequenceId": first_sequence_id + confirmed}
        try:
            answer = client.result(results.Appended, "POST", f"{_BASE}/pending", body)
        except (ServiceRefusedError, UnreachableError) as error:
            if confirmed == 0:
                raise  # nothing was sent
            not_sent += [results.NotSent(_ledger_id(record), str(error)) for record in records[confirmed:]]
            break
        sent += answer.sent
        not_sent += answer.not_sent
        confirmed += len(batch)
    return results.Appended(tuple(sent), tuple(not_sent))


def _ledger_id(record: Mapping[str, object]) -> LedgerId | None:
    ledger_id = record.get("ledgerId")
    return LedgerId(ledger_id) if type(ledger_id) is int else None


def _batches(records: Iterable[dict[str, object]]) -> Iterator[list[dict[str, object]]]:
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
