"""Records as the command line builds, reads and sends them.

The service owns the grammar; here only the file's form is checked, so that an error can name its line. Invariant: a
record is reported as sent only if the service said so; when a later call fails, everything that was not confirmed is
reported as not sent, with the failure as its reason.
"""

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pulsar_sidecar.cli.exits import ServiceRefusedError
from pulsar_sidecar.model.errors import InvalidInputError, UnreachableError
from pulsar_sidecar.model.ledgers import LedgerComponent, LedgerType

if TYPE_CHECKING:  # requests takes longer to load than --help to answer
    from pulsar_sidecar.cli.client import SidecarClient

Component = Annotated[LedgerComponent, typer.Option(help="What the ledgers are used for.")]
Kind = Annotated[LedgerType, typer.Option("--type", help="Where their data lives.")]
CursorName = Annotated[str | None, typer.Option(help="Subscription, for a cursor's or a bucket's ledger.")]
SchemaId = Annotated[str | None, typer.Option(help="tenant/namespace/topic, for a schema's ledger.")]
OffloadContext = Annotated[
    str | None, typer.Option(metavar="JSON", help='{"msb":..,"lsb":..,"driverName":..,"metadata":{..}}')
]

MAX_BATCH_RECORDS = 10_000
_MAX_BATCH_BYTES = 4 * 1024 * 1024


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


def read_records(file: str) -> list[dict[str, object]]:
    """JSON lines from a file, or from standard input for ``-``; empty lines are skipped.

    Raises:
        InvalidInputError: it cannot be read, or a line is not a JSON object; the error names the line.
    """
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"cannot read {file}: {error}") from error
    return [_json_object(f"line {number}", line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]


@dataclass(slots=True)
class Appended:
    """What arrived and what did not."""

    sent: list[object] = field(default_factory=list)
    not_sent: list[object] = field(default_factory=list)


def append_all(
    client: "SidecarClient",
    records: Sequence[dict[str, object]],
    producer_name: str | None,
    first_sequence_id: int | None,
) -> Appended:
    """Send the records in order.

    Raises:
        ServiceRefusedError, UnreachableError: the first call failed, so there is nothing to tell apart.
    """
    appended = Appended()
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
            appended.not_sent += [
                {"ledgerId": record.get("ledgerId"), "reason": str(error)} for record in records[confirmed:]
            ]
            break
        if isinstance(answer, dict):
            appended.sent += answer.get("sent", [])
            appended.not_sent += answer.get("notSent", [])
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
