"""What a broker says of a message in headers of its admin API (``PersistentTopicsBase.generateResponseWithEntry``)."""

import json
from collections.abc import Mapping
from datetime import datetime

from pulsar_sidecar.delayed_delivery.cancel.facts import Chunk, EntryFacts
from pulsar_sidecar.model.errors import UndecodableError

_PREFIX = "X-Pulsar-"


def entry_facts_in_headers(headers: Mapping[str, str]) -> EntryFacts:
    """The same as `entry_facts` reads from the entry; times are exact to the millisecond.

    Raises:
        UndecodableError: they are not what brokers send.
    """
    try:
        return _facts({name.lower(): value for name, value in headers.items()})
    except (KeyError, TypeError, ValueError) as error:
        raise UndecodableError(f"a broker described a message in headers that cannot be read ({error})") from error


def _facts(headers: Mapping[str, str]) -> EntryFacts:
    def header(name: str) -> str | None:
        return headers.get(f"{_PREFIX}{name}".lower())

    batch = int(header("num-batch-message") or 1)
    properties = json.loads(header("PROPERTY") or "{}")
    return EntryFacts(
        deliver_at_ms=_milliseconds(header("deliver-at-time")),
        publish_time_ms=_milliseconds(headers[f"{_PREFIX}publish-time".lower()]) or 0,
        messages_in_batch=batch if batch > 1 else None,
        chunk=_chunk(header("uuid"), header("chunk-id"), header("num-chunks-from-msg")),
        key=header("partition-key"),
        properties={str(name): str(value) for name, value in properties.items()},
        producer_name=header("producer-name") or "",
        sequence_id=int(header("sequence-id") or 0),
        event_time_ms=_milliseconds(header("event-time")),
        marker=header("marker-type") is not None,
        transaction=header("txnid-most-bits") is not None,
    )


def _chunk(uuid: str | None, chunk_id: str | None, total: str | None) -> Chunk | None:
    if uuid is None or chunk_id is None or total is None or int(total) < 2:
        return None
    return Chunk(uuid, int(chunk_id), int(total))


def _milliseconds(text: str | None) -> int | None:
    if text is None:
        return None
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"{text!r:.60} has no time zone")
    return round(moment.timestamp() * 1000)
