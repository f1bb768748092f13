"""Which messages may be cancelled on which subscriptions: pure decisions on what was read."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, assert_never

from pulsar_sidecar.delayed_delivery.cancel.facts import Absent, DelayPolicy, EntryAnswer, EntryFacts, Unreadable
from pulsar_sidecar.delayed_delivery.cancel.requests import CancellationStatus, Cause, Target, Verdict
from pulsar_sidecar.model.errors import InvalidInputError
from pulsar_sidecar.model.ids import Position
from pulsar_sidecar.model.topic_stats import SYSTEM_SUBSCRIPTIONS, Subscription, SubscriptionType

EARLIEST_DELIVER_AT_MS: Final = 1_000_000_000_000
"""September 2001 in milliseconds: a smaller number is a time in seconds."""
LATEST_DELIVER_AT_MS: Final = 2**63 - 1
MAX_SUBSCRIPTION_BYTES: Final = 1024


def check_deliver_at(deliver_at_ms: int) -> None:
    """A due time as a caller gives it.

    Raises:
        InvalidInputError: it is no time in milliseconds; the message says what to change.
    """
    if deliver_at_ms <= 0:
        raise InvalidInputError(
            "deliverAt must be positive: milliseconds since the epoch, as the message was sent with"
        )
    if deliver_at_ms < EARLIEST_DELIVER_AT_MS:
        raise InvalidInputError(
            f"deliverAt {deliver_at_ms} is in milliseconds the year 1970 to 2001, so it looks like seconds; "
            f"write {deliver_at_ms}000 if it is"
        )
    if deliver_at_ms > LATEST_DELIVER_AT_MS:
        raise InvalidInputError("deliverAt is larger than any 64-bit number of milliseconds")


def check_subscription_name(name: str) -> str:
    """A subscription's name as a caller gives it.

    Raises:
        InvalidInputError: empty, or beyond what the metadata store can hold.
    """
    if not name.strip():
        raise InvalidInputError("a subscription's name is empty; leave subscriptionNames out for all subscriptions")
    try:
        length = len(name.encode())
    except UnicodeEncodeError:
        raise InvalidInputError("a subscription's name is Unicode text, without lone surrogates") from None
    if length > MAX_SUBSCRIPTION_BYTES:
        raise InvalidInputError(f"a subscription's name is at most {MAX_SUBSCRIPTION_BYTES} bytes long")
    return name


def check_entry(target: Target, answer: EntryAnswer, policy: DelayPolicy, now_ms: int) -> EntryFacts | Verdict:
    """The facts of an entry that may be cancelled, or why it may not.

    Args:
        target: what is asked for.
        answer: what was read of its entry.
        policy: how the topic's delayed messages come due.
        now_ms: the brokers' time, as far as it is known.
    """
    match answer:
        case Absent():
            return _not(CancellationStatus.NOT_FOUND, Cause.NO_ENTRY, f"the topic has no entry {target.position}")
        case Unreadable(reason):
            return _not(
                CancellationStatus.REFUSED, Cause.UNREADABLE, f"the entry could not be read: {reason}; try again"
            )
        case EntryFacts():
            return _check_message(target, answer) or _check_time(answer, policy, now_ms) or answer
        case _:
            assert_never(answer)


def _check_message(target: Target, facts: EntryFacts) -> Verdict | None:
    if facts.marker or facts.transaction:
        what = "one of Pulsar's own markers" if facts.marker else "part of a transaction"
        return _not(CancellationStatus.REFUSED, Cause.MARKER, f"the entry is {what}, which is not cancelled one by one")
    if not facts.deliver_at_ms:
        return _not(CancellationStatus.REFUSED, Cause.NOT_DELAYED, "the message is not delayed: it has no deliverAt")
    if target.deliver_at_ms is not None and target.deliver_at_ms != facts.deliver_at_ms:
        shown = _shown(facts.deliver_at_ms)
        return _not(
            CancellationStatus.REFUSED,
            Cause.OTHER_DELIVER_AT,
            f"the message's deliverAt is {facts.deliver_at_ms} ({shown})",
        )
    if (facts.messages_in_batch or 1) > 1:
        return _not(
            CancellationStatus.REFUSED,
            Cause.BATCH,
            f"the entry is a batch of {facts.messages_in_batch} messages: acknowledging it would drop all of them",
        )
    if target.batch_index not in (None, 0, -1):
        return _not(CancellationStatus.NOT_FOUND, Cause.NO_ENTRY, "the entry is no batch, so it has no such batchIndex")
    return None


def _check_time(facts: EntryFacts, policy: DelayPolicy, now_ms: int) -> Verdict | None:
    assert facts.deliver_at_ms is not None
    if not policy.enabled:
        return _not(
            CancellationStatus.TOO_LATE,
            Cause.DUE,
            "delayed delivery is off for this topic, so the message was delivered at once",
        )
    if facts.deliver_at_ms <= now_ms:
        return _not(CancellationStatus.TOO_LATE, Cause.DUE, f"its due time has passed ({_shown(facts.deliver_at_ms)})")
    return None


@dataclass(frozen=True, slots=True)
class Chosen:
    """Where to cancel, where not, and what the caller should know."""

    admitted: tuple[Subscription, ...]
    others: tuple[Verdict, ...]
    warnings: tuple[str, ...] = ()


def choose_subscriptions(names: Collection[str], existing: Mapping[str, Subscription]) -> Chosen:
    """The subscriptions a target is to be cancelled on.

    Without names: every subscription whose dispatcher holds delayed messages back, and those whose type nobody has set
    since the topic was loaded, because a Shared consumer may come.
    """
    if names:
        return _named(dict.fromkeys(names), existing)
    durable = [found for found in existing.values() if found.durable and found.name not in SYSTEM_SUBSCRIPTIONS]
    admitted, others = [], []
    for found in durable:
        refusal = check_subscription(found)
        if refusal is None:
            admitted.append(found)
        elif found.type.dispatches_to_many:
            others.append(refusal)
    warnings = ["a subscription created later at the earliest message will still receive it"]
    skipped = sorted(found.name for found in durable if _delivers_at_once(found))
    if skipped:
        warnings.append(
            f"not cancelled on {', '.join(skipped)}: Exclusive and Failover deliver delayed messages at once"
        )
    if not admitted and not others:
        return Chosen((), (_no_subscription(skipped),))
    return Chosen(tuple(admitted), tuple(others), tuple(warnings))


def _named(names: Iterable[str], existing: Mapping[str, Subscription]) -> Chosen:
    admitted, others = [], []
    for name in names:
        found = existing.get(name)
        if found is None:
            others.append(
                Verdict(name, CancellationStatus.NOT_FOUND, Cause.NO_SUBSCRIPTION, f"there is no subscription {name!r}")
            )
            continue
        refusal = check_subscription(found)
        if refusal is None:
            admitted.append(found)
        else:
            others.append(refusal)
    return Chosen(tuple(admitted), tuple(others))


def check_subscription(found: Subscription) -> Verdict | None:
    """Why nothing can be cancelled on a subscription, or None when it can."""
    if _delivers_at_once(found):
        reason = (
            f"{found.name!r} is {found.type.value}: it delivers delayed messages at once and admits no second consumer"
        )
        return Verdict(found.name, CancellationStatus.REFUSED, Cause.SUBSCRIPTION_TYPE, reason)
    if not found.durable:
        reason = f"{found.name!r} is a reader's: it is not durable"
        return Verdict(found.name, CancellationStatus.REFUSED, Cause.SUBSCRIPTION_TYPE, reason)
    if found.sticky:
        reason = f"the consumers of {found.name!r} chose their hash ranges (STICKY), which leave no room for another"
        return Verdict(found.name, CancellationStatus.REFUSED, Cause.STICKY_RANGES, reason)
    return None


def with_known_type(found: Subscription) -> SubscriptionType:
    """The type to join with: the one in use, Shared where nobody has set one."""
    return SubscriptionType.SHARED if found.type is SubscriptionType.NONE else found.type


def time_to_live_warning(facts: EntryFacts, policy: DelayPolicy) -> str | None:
    """A warning when the topic's time to live ends before the message is due."""
    if policy.ttl_seconds is None or facts.deliver_at_ms is None:
        return None
    expires_ms = facts.publish_time_ms + policy.ttl_seconds * 1000
    if expires_ms >= facts.deliver_at_ms:
        return None
    return (
        f"the topic's time to live ({policy.ttl_seconds} s) ends before the message is due: brokers would have dropped "
        "it at that time anyway"
    )


def not_before_dispatch(facts: EntryFacts, policy: DelayPolicy, confirmed_ms: int) -> bool:
    """Whether the broker may have dispatched the message before it confirmed the acknowledgement.

    ``confirmed_ms`` is the brokers' time, as far as it is known.
    """
    assert facts.deliver_at_ms is not None
    return confirmed_ms >= facts.deliver_at_ms - policy.earliest_lead_ms


def missing_chunks(facts: EntryFacts, found: Mapping[int, Position]) -> Verdict | None:
    """Why a chunked message cannot be cancelled as a whole, or None when all of its chunks were found."""
    assert facts.chunk is not None
    missing = facts.chunk.total - len(found)
    if missing <= 0:
        return None
    return _not(
        CancellationStatus.REFUSED,
        Cause.CHUNKS,
        f"the message has {facts.chunk.total} chunks and {missing} of them were not found near the entry",
    )


def _delivers_at_once(found: Subscription) -> bool:
    return found.type in (SubscriptionType.EXCLUSIVE, SubscriptionType.FAILOVER)


def _no_subscription(skipped: Collection[str]) -> Verdict:
    more = f" ({', '.join(skipped)} deliver delayed messages at once)" if skipped else ""
    reason = f"the topic has no Shared or Key_Shared subscription{more}"
    return Verdict(None, CancellationStatus.REFUSED, Cause.NO_SUBSCRIPTION, reason)


def _not(status: CancellationStatus, cause: Cause, reason: str) -> Verdict:
    return Verdict(None, status, cause, reason)


def _shown(time_ms: int) -> str:
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError, OSError):
        return "beyond the calendar"
