"""Records as the command line builds or reads them.

The service owns the grammar; here only the file's form is checked, so that an error can name its line.
"""

import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from pulsar_sidecar.model.errors import InvalidInputError
from pulsar_sidecar.model.ledgers import LedgerComponent, LedgerType

Component = LedgerComponent
Kind = LedgerType

MAX_BATCH_RECORDS = 10_000
_MAX_BATCH_BYTES = 4 * 1024 * 1024


class _StandardInput(Enum):
    NAME = "-"


@dataclass(frozen=True, slots=True)
class RecordOptions:
    """What is the same for all records of one call."""

    topic: str
    component: LedgerComponent
    ledger_type: LedgerType
    cursor_name: str | None = None
    schema_id: str | None = None
    offload_context: str | None = None


def record_document(ledger_id: int, options: RecordOptions) -> dict[str, object]:
    """A record with PIP-186's field names."""
    document: dict[str, object | None] = {
        "ledgerId": ledger_id,
        "topicName": options.topic,
        "ledgerComponent": options.component.value,
        "ledgerType": options.ledger_type.value,
        "cursorName": options.cursor_name,
        "schemaId": options.schema_id,
        "offloadContext": _offload_context(options.offload_context),
    }
    return {name: value for name, value in document.items() if value is not None}


def read_records(file: str) -> list[dict[str, object]]:
    """JSON lines from a file, or from standard input for ``-``; empty lines are skipped.

    Raises:
        InvalidInputError: it cannot be read, or a line is no JSON object; the text names the line.
    """
    try:
        text = sys.stdin.read() if file == _StandardInput.NAME.value else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"cannot read {file}: {error}") from error
    return [_record(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]


def batches(records: Iterable[dict[str, object]]) -> Iterator[list[dict[str, object]]]:
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


def _record(number: int, line: str) -> dict[str, object]:
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        raise InvalidInputError(f"line {number} is no JSON: write one record per line") from None
    if not isinstance(document, dict):
        raise InvalidInputError(f"line {number} is no JSON object: write one record per line")
    return document


def _offload_context(text: str | None) -> dict[str, object] | None:
    if text is None:
        return None
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise InvalidInputError("--offload-context is no JSON") from None
    if not isinstance(document, dict):
        raise InvalidInputError("--offload-context is no JSON object")
    return document
