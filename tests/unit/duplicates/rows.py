"""Rows as topics hold them, for tests."""

from dataclasses import dataclass

from pulsar_sidecar.features.duplicates.rows import NOT_CHUNKED, MessageKind, MessageRow, PayloadState
from pulsar_sidecar.model.ids import EntryId, LedgerId


@dataclass
class Log:
    """Rows of one topic; each has an entry of its own."""

    def __post_init__(self) -> None:
        self.rows: list[MessageRow] = []

    def add(
        self,
        sequence_id: int,
        payload: int = 0,
        *,
        producer: str = "p",
        replicated_from: str | None = None,
        kind: MessageKind = MessageKind.MESSAGE,
        state: PayloadState = PayloadState.READ,
        chunk_id: int = NOT_CHUNKED,
        chunks: int = 1,
    ) -> MessageRow:
        number = len(self.rows)
        row = MessageRow(
            producer,
            sequence_id,
            LedgerId(number // 3),
            EntryId(number % 3),
            0,
            1,
            chunk_id,
            chunks,
            1000 + number,
            payload if state is PayloadState.READ else 0,
            kind,
            state,
            replicated_from,
        )
        self.rows.append(row)
        return row


def log_of(*sequence_ids: int) -> list[MessageRow]:
    log = Log()
    for sequence_id in sequence_ids:
        log.add(sequence_id)
    return log.rows
