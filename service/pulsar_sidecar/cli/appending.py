"""Sending many records in several calls, and saying exactly which ones arrived.

Invariant: a record is reported as sent only if the service said so; when a later call fails, everything that was not
confirmed is reported as not sent, with the failure as its reason.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pulsar_sidecar.cli.exits import ServiceRefusedError
from pulsar_sidecar.cli.records import batches
from pulsar_sidecar.model.errors import UnreachableError

if TYPE_CHECKING:
    from pulsar_sidecar.cli.client import SidecarClient


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
    for batch in batches(records):
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
