"""``pulsar-sidecar ledger-deletion``: the operator's verbs."""

from typing import Annotated

import typer

from pulsar_sidecar.cli import output
from pulsar_sidecar.cli.command_groups import new_group
from pulsar_sidecar.cli.connecting import GlobalOptions, Output, show_answer
from pulsar_sidecar.cli.exits import EXIT_CODES, ExitCode
from pulsar_sidecar.cli.records import (
    Component,
    CursorName,
    Kind,
    OffloadContext,
    SchemaId,
    append_all,
    read_records,
    record_document,
)
from pulsar_sidecar.model.errors import InvalidInputError
from pulsar_sidecar.model.ids import MAX_LEDGER_ID
from pulsar_sidecar.model.ledgers import LedgerComponent, LedgerType
from pulsar_sidecar.model.names import parse_topic_name

_BASE = "/admin/v2/ledger-deletion"
app = new_group("ledger-deletion", "Two-phase ledger deletion (PIP-186).")
dead_letters = new_group("dlq", "The records that the sidecars gave up.")
app.add_typer(dead_letters)


@app.command(epilog=EXIT_CODES)
def append(
    ctx: typer.Context,
    ledger_ids: Annotated[
        list[int] | None, typer.Argument(metavar="LEDGER_ID", min=0, max=MAX_LEDGER_ID, help="The ledgers.")
    ] = None,
    topic: Annotated[str | None, typer.Option("--topic", "-t", help="The topic they belonged to.")] = None,
    component: Component = LedgerComponent.MANAGED_LEDGER,
    kind: Kind = LedgerType.LEDGER,
    cursor_name: CursorName = None,
    schema_id: SchemaId = None,
    offload_context: OffloadContext = None,
    file: Annotated[
        str | None, typer.Option("--file", metavar="FILE", help="One JSON record per line instead; - for stdin.")
    ] = None,
    producer_name: Annotated[
        str | None, typer.Option(help="A stable name, so that the broker drops the records of a repeated call.")
    ] = None,
    first_sequence_id: Annotated[
        int | None, typer.Option(min=0, help="Sequence id of the first record; the others follow.")
    ] = None,
    form: Output = None,
) -> None:
    """Record ledgers for deletion; the sidecar checks each one before it deletes it.

    Exit code 4 if not every record was sent: send those again.

    Example: pulsar-sidecar ledger-deletion append 4711 4712 --topic persistent://public/default/orders
    """
    options: GlobalOptions = ctx.obj
    if (producer_name is None) != (first_sequence_id is None):
        raise InvalidInputError("--producer-name and --first-sequence-id belong together")
    if file is not None and not ledger_ids and topic is None:
        records = read_records(file)
    elif file is None and ledger_ids and topic is not None:
        name = str(parse_topic_name(topic))
        records = [
            record_document(ledger_id, name, component, kind, cursor_name, schema_id, offload_context)
            for ledger_id in ledger_ids
        ]
    else:
        raise InvalidInputError("give ledger ids and --topic, or --file alone")
    answer = append_all(options.client(), records, producer_name, first_sequence_id)
    output.document({"sent": answer.sent, "notSent": answer.not_sent}, options.format(form))
    if answer.not_sent:
        raise typer.Exit(ExitCode.NOT_ALL)


@app.command(epilog=EXIT_CODES)
def status(ctx: typer.Context, form: Output = None) -> None:
    """Print the state of the service: settings, pending work, registered sidecars.

    Example: pulsar-sidecar --output json ledger-deletion status
    """
    show_answer(ctx, form, "GET", f"{_BASE}/status")


@app.command(epilog=EXIT_CODES)
def pause(
    ctx: typer.Context,
    reason: Annotated[str | None, typer.Option(help="Shown by status.")] = None,
    form: Output = None,
) -> None:
    """Stop deleting on all sidecars; recording continues.

    Example: pulsar-sidecar ledger-deletion pause --reason "bookies are being replaced"
    """
    show_answer(ctx, form, "POST", f"{_BASE}/pause", {} if reason is None else {"reason": reason})


@app.command(epilog=EXIT_CODES)
def resume(ctx: typer.Context, form: Output = None) -> None:
    """Resume deleting on all sidecars.

    Example: pulsar-sidecar ledger-deletion resume
    """
    show_answer(ctx, form, "POST", f"{_BASE}/resume")


@app.command(epilog=EXIT_CODES)
def rate(
    ctx: typer.Context,
    ledgers_per_second: Annotated[str, typer.Argument(metavar="NUMBER|none", help="none lifts the limit.")],
    form: Output = None,
) -> None:
    """Limit how many ledgers each sidecar deletes a second.

    Example: pulsar-sidecar ledger-deletion rate 500
    """
    limit = _rate(ledgers_per_second)
    show_answer(ctx, form, "PUT", f"{_BASE}/rate", {"ledgersPerSecond": limit})


@app.command("topic-deletions", epilog=EXIT_CODES)
def topic_deletions(ctx: typer.Context, form: Output = None) -> None:
    """List the two-phase topic deletions that are running.

    Example: pulsar-sidecar ledger-deletion topic-deletions
    """
    show_answer(ctx, form, "GET", f"{_BASE}/topic-deletions")


@app.command(epilog=EXIT_CODES)
def undelete(
    ctx: typer.Context,
    ledger_id: Annotated[int, typer.Argument(metavar="LEDGER_ID", min=0, max=MAX_LEDGER_ID)],
    force: Annotated[bool, typer.Option("--force", help="Even if bookies no longer hold the entries.")] = False,
    form: Output = None,
) -> None:
    """Restore a deleted ledger while the bookies still hold its entries (gcWaitTime, 15 minutes by default).

    Nothing deletes it again before protectedUntilMs (twoPhaseDeletionUndeleteProtectionInSeconds, 24 hours by default):
    add it to a topic's ledger list again before then. Records about it wait; status lists protected ledgers.

    Example: pulsar-sidecar ledger-deletion undelete 4711
    """
    show_answer(ctx, form, "POST", f"{_BASE}/undelete", {"ledgerId": ledger_id, "force": force})


@app.command("end-protection", epilog=EXIT_CODES)
def end_protection(
    ctx: typer.Context,
    ledger_id: Annotated[int, typer.Argument(metavar="LEDGER_ID", min=0, max=MAX_LEDGER_ID)],
    form: Output = None,
) -> None:
    """End the protection of a ledger that undelete restored, so that it can be deleted.

    A record that waits for the protection's end keeps waiting; to delete the ledger at once, append it again.

    Example: pulsar-sidecar ledger-deletion end-protection 4711
    """
    show_answer(ctx, form, "POST", f"{_BASE}/end-protection", {"ledgerId": ledger_id})


@dead_letters.command("list", epilog=EXIT_CODES)
def list_dead_letters(
    ctx: typer.Context,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many, oldest first.")] = 100,
    form: Output = None,
) -> None:
    """List dead letters with the reason why the sidecar gave up.

    Example: pulsar-sidecar ledger-deletion dlq list --limit 10
    """
    options: GlobalOptions = ctx.obj
    letters = options.client().call("GET", f"{_BASE}/dead-letters", parameters={"limit": limit})
    chosen = options.format(form)
    output.document(letters if chosen is output.Format.JSON else _rows(letters), chosen)


@dead_letters.command(epilog=EXIT_CODES)
def redrive(
    ctx: typer.Context,
    ledger_ids: Annotated[
        list[int] | None,
        typer.Argument(metavar="LEDGER_ID", min=0, max=MAX_LEDGER_ID, help="Only these; all without any."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1_000_000, help="How many at most.")] = 10_000,
    form: Output = None,
) -> None:
    """Send dead letters back to the system topic with a fresh count of tries.

    Example: pulsar-sidecar ledger-deletion dlq redrive 4711 4712
    """
    body: dict[str, object] = {"limit": limit}
    if ledger_ids:
        body["ledgerIds"] = ledger_ids
    show_answer(ctx, form, "POST", f"{_BASE}/dead-letters/redrive", body)


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


def _rows(letters: object) -> list[dict[str, object]]:
    rows = []
    for letter in letters if isinstance(letters, list) else []:
        record = letter.get("record") or {}
        rows.append(
            {
                "ledgerId": record.get("ledgerId"),
                "topicName": record.get("topicName"),
                "tries": letter.get("tries"),
                "reason": letter.get("reason"),
                "messageId": letter.get("messageId"),
            }
        )
    return rows
