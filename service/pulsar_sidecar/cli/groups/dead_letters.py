"""``pulsar-sidecar ledger-deletion dlq``: the records that were given up."""

from typing import Annotated

import typer

from pulsar_sidecar.cli import output
from pulsar_sidecar.cli.connecting import GlobalOptions, Output
from pulsar_sidecar.cli.exits import EXIT_CODES, exiting
from pulsar_sidecar.model.ids import MAX_LEDGER_ID

_BASE = "/admin/v2/ledger-deletion/dead-letters"
app = typer.Typer(name="dlq", help="The records that were given up.", no_args_is_help=True)


@app.callback(epilog=EXIT_CODES)
def _group() -> None:
    """The records that were given up."""


@app.command("list", epilog=EXIT_CODES)
def list_dead_letters(
    ctx: typer.Context,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many, oldest first.")] = 100,
    form: Output = None,
) -> None:
    """List dead letters with the reason why they were given up.

    Example: pulsar-sidecar ledger-deletion dlq list --limit 10
    """
    options: GlobalOptions = ctx.obj
    with exiting():
        letters = options.client().call("GET", _BASE, parameters={"limit": limit})
        chosen = options.format(form)
        output.document(letters if chosen is output.Format.JSON else _rows(letters), chosen)


@app.command(epilog=EXIT_CODES)
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
    options: GlobalOptions = ctx.obj
    body: dict[str, object] = {"limit": limit}
    if ledger_ids:
        body["ledgerIds"] = ledger_ids
    with exiting():
        output.document(options.client().call("POST", f"{_BASE}/redrive", body), options.format(form))


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
