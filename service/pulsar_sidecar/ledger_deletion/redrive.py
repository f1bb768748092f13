"""Dead letters: looked at, and sent back to the system topic with their tries set to zero."""

from collections.abc import Collection, Sequence

from pulsar_sidecar.ledger_deletion.ports import DeadLetters, Delivery, Publisher
from pulsar_sidecar.ledger_deletion.record import PendingDeleteLedgerInfo, parse_record
from pulsar_sidecar.ledger_deletion.second_phase.retry import REASON, fresh, tries
from pulsar_sidecar.ledger_deletion.service import DeadLetter, Redriven
from pulsar_sidecar.ledger_deletion.steps import Step, Steps
from pulsar_sidecar.model.errors import InvalidInputError
from pulsar_sidecar.model.ids import LedgerId

_SHOWN_BYTES = 2_000


def list_dead(dead_letters: DeadLetters, limit: int) -> list[DeadLetter]:
    """Up to ``limit`` dead letters, oldest first; they stay where they are."""
    return [_dead_letter(delivery) for delivery in dead_letters.receive(limit)]


def redrive(
    dead_letters: DeadLetters,
    publisher: Publisher,
    ledger_ids: Collection[LedgerId] | None,
    limit: int,
    steps: Steps,
) -> Redriven:
    """Send up to ``limit`` dead letters back: the oldest, or those of the given ledgers wherever they wait.

    One leaves the topic only when its copy is stored.
    """
    seen = chosen = redriven = 0
    while chosen < limit:
        deliveries = dead_letters.receive(limit)
        wanted = [delivery for delivery in deliveries if ledger_ids is None or _ledger_id(delivery) in ledger_ids]
        wanted = wanted[: limit - chosen]
        seen, chosen = seen + len(deliveries), chosen + len(wanted)
        redriven += _send_back(dead_letters, publisher, wanted, steps) if wanted else 0
        if ledger_ids is None or not deliveries:
            break
    return Redriven(redriven=redriven, left=seen - redriven)


def _send_back(dead_letters: DeadLetters, publisher: Publisher, wanted: Sequence[Delivery], steps: Steps) -> int:
    with steps.taking(Step.DEAD_LETTERS_REDRIVEN):
        results = publisher.publish([fresh(delivery) for delivery in wanted])
    stored = [delivery for delivery, result in zip(wanted, results, strict=True) if result.stored]
    if stored:
        with steps.taking(Step.DEAD_LETTERS_ACKNOWLEDGED):
            dead_letters.acknowledge(stored)
    return len(stored)


def _dead_letter(delivery: Delivery) -> DeadLetter:
    return DeadLetter(
        message_id=delivery.message_id,
        record=_record(delivery),
        raw=delivery.payload[:_SHOWN_BYTES].decode("utf-8", "replace"),
        reason=delivery.properties.get(REASON, "written by another client without a reason"),
        tries=tries(delivery.properties),
        dead_since_ms=delivery.publish_time_ms,
    )


def _record(delivery: Delivery) -> PendingDeleteLedgerInfo | None:
    try:
        return parse_record(delivery.payload)
    except InvalidInputError:
        return None


def _ledger_id(delivery: Delivery) -> LedgerId | None:
    record = _record(delivery)
    return record.ledger_id if record else None
