"""Progress of topic deletions: status of the node, remainder, stuck deletions, and the end.

Invariant: everything reported was read. An ended deletion has no node, so only the outcome topic can show its end.
"""

import dataclasses
import functools
import re
from collections.abc import Callable, Iterable, Sequence

from msgspec.structs import replace

from pulsar_sidecar.features.ledger_deletion.outcomes import Note, notes
from pulsar_sidecar.features.ledger_deletion.ports import SYSTEM_NAMESPACE, DeletionTopic, DeletionTopics
from pulsar_sidecar.features.ledger_deletion.results import FollowedDeletion, OperationState, TopicDeletionStatus
from pulsar_sidecar.features.ledger_deletion.topic_deletion.durable_operations import backoff_ms, operation_nodes
from pulsar_sidecar.features.ledger_deletion.topic_deletion.operation import (
    Operation,
    decode_operation,
    driver_path,
    incarnations,
    may_concern,
    operation_path,
    remaining_nodes,
    remedy_of,
)
from pulsar_sidecar.model.errors import InvalidInputError, NotFoundError, UndecodableError
from pulsar_sidecar.model.ids import LedgerId, NodeVersion, OperationId
from pulsar_sidecar.model.metadata import MetadataStore, Node
from pulsar_sidecar.model.names import TopicName, parse_topic_name
from pulsar_sidecar.ownership.paths import ledger_path
from pulsar_sidecar.ownership.registrations import describe_registered
from pulsar_sidecar.reports.formatting import format_count

END_STEP = "topic-deletion"
"""Step of the outcome topic's note of each end."""
_LEDGERS_AT_ONCE = 1_000
_MOST_WARNINGS = 5
_VARYING = re.compile(r"\S*\d\S*")


# --- failing ---------------------------------------------------------------------------------------------------------


def after_failure(operation: Operation, reason: str, now_ms: int, *, lasting: bool) -> Operation:
    """Return the operation with one more failure and the time of the next attempt.

    Two failures are the same if their reasons are, apart from words with digits: ids, addresses, counts. A failure
    before the due time is not counted: while a caller waits, attempts follow each other within seconds, and a broker's
    restart may cause ten. A ``lasting`` one is permanent, and is retried quickly until it counts as stuck.
    """
    is_same = operation.failures > 0 and _kind(operation.last_reason) == _kind(reason)
    failures = operation.failures + (now_ms >= operation.not_before_ms) if is_same else 1
    since_ms = operation.failing_since_ms if is_same else now_ms
    failed = replace(operation, last_reason=reason, failures=failures, failing_since_ms=since_ms)
    return replace(failed, not_before_ms=now_ms + _backoff_ms(failed, lasting=lasting))


def _kind(reason: str | None) -> str:
    return _VARYING.sub("#", reason or "")


def _backoff_ms(operation: Operation, *, lasting: bool) -> int:
    quickly = lasting and not operation.stuck
    return backoff_ms(operation.attempts if quickly else max(operation.attempts, operation.failures))


# --- running ---------------------------------------------------------------------------------------------------------


KnownStatuses = dict[tuple[str, int, NodeVersion], TopicDeletionStatus]
"""Statuses of deletions that failed last time, by their nodes' paths, orders of creation and versions."""


def running(store: MetadataStore, root: str, known: KnownStatuses) -> list[TopicDeletionStatus]:
    """Return the deletions that have not ended, including those that this version cannot decode.

    Thousands may wait for a broker, and nearly all are as they were: only changed ones are decoded.
    """
    nodes = operation_nodes(store, of_namespaces=False)
    if not nodes:
        known.clear()
        return []
    now_ms, awaited = store.now_ms(), _awaited(store, root)
    found = {key: known.get(key) or status_of(node, awaited) for node in nodes for key in [known_as(node)]}
    known.clear()
    known.update((key, status) for key, status in found.items() if status.failures)
    return [_as_of(now_ms, status) for status in found.values()]


def known_as(node: Node) -> tuple[str, int, NodeVersion]:
    """Return the key of a node's content in `KnownStatuses`."""
    return node.path, node.created_order, node.version


def _awaited(store: MetadataStore, root: str) -> Callable[[], str]:
    return functools.cache(
        lambda: (
            f"brokers or bookies have not answered yet; {describe_registered(store, root)}; the sidecar keeps trying"
        )
    )


def follow(store: MetadataStore, operation_id: OperationId, root: str) -> FollowedDeletion | None:
    """Return a running deletion and what remains; None if no running one has this id."""
    node = store.read(operation_path(operation_id))
    if node is None or not node.data:
        return None
    driver = store.read(driver_path(operation_id))
    nodes, ledgers = remains(store, node, root)
    return _as_of(store.now_ms(), status_of(node, _awaited(store, root))).followed(
        driver=None if driver is None else driver.data.decode("utf-8", "replace"), left_nodes=nodes, left=ledgers
    )


def running_deletion_of(
    store: MetadataStore, topic: TopicName, *, partitioned: bool, force: bool
) -> OperationId | None:
    """Return the running deletion of the topic's current incarnation with the same options; None without one."""
    nodes = operation_nodes(store, of_namespaces=False, wanted=lambda each: may_concern(each, topic))
    for operation in filter(None, map(operation_in, nodes)):
        same = (operation.topic, operation.partitioned, operation.force) == (topic, partitioned, force)
        if same and operation.part is None and operation.incarnations == incarnations(store, operation.node_paths):
            return operation.operation_id
    return None


def operation_in(node: Node) -> Operation | None:
    """Return the deletion of a node; None where this version cannot read it."""
    try:
        return decode_operation(node.data)
    except UndecodableError:
        return None


def _as_of(now_ms: int, status: TopicDeletionStatus) -> TopicDeletionStatus:
    if status.next_attempt_ms is None or status.next_attempt_ms >= now_ms:
        return status
    return dataclasses.replace(status, next_attempt_ms=now_ms)


Remains = tuple[tuple[str, ...] | None, tuple[LedgerId, ...] | None]
"""Marked nodes that still exist, and recorded ledgers that BookKeeper still has; None where they are not known."""


def remains(store: MetadataStore, node: Node, root: str) -> Remains:
    operation = operation_in(node)
    if operation is None:
        return None, None
    left = _existing(store, sorted(_recorded_ledgers(operation.recorded)), root)
    return tuple(remaining_nodes(store, operation.incarnations)), tuple(left)


def status_of(node: Node, awaited: Callable[[], str] | None = None) -> TopicDeletionStatus:
    """Return the status of a deletion's node; ``awaited`` gives the reason until an attempt has failed."""
    try:
        operation = decode_operation(node.data)
    except UndecodableError as error:
        operation_id = OperationId(node.path.rpartition("/")[2])
        return TopicDeletionStatus(
            operation_id,
            topic=None,
            part=None,
            state=OperationState.UNREADABLE,
            recorded_ledgers=None,
            attempts=None,
            requested_ms=node.created_ms,
            reason=str(error),
            remedy=remedy_of(operation_id, OperationState.UNREADABLE),
        )
    return operation.unfinished(awaited)


def warnings_of(deletions: Sequence[TopicDeletionStatus]) -> list[str]:
    """Return warnings, with remedies, about deletions that do not continue on their own."""
    texts = [
        f"the deletion of {each.subject} ({each.operation_id}) is {each.state.value}: {each.reason}; {each.remedy}"
        for each in deletions
        if each.remedy is not None
    ]
    more = len(texts) - _MOST_WARNINGS
    return texts[:_MOST_WARNINGS] + (
        [f"{format_count(more, 'more topic deletion')} cannot continue either"] if more > 0 else []
    )


def _recorded_ledgers(keys: Iterable[str]) -> set[LedgerId]:
    # A key is a ledger's id, followed by "o" and the offload attempt, if any (`record.copy_key`).
    return {LedgerId(int(ledger_id)) for ledger_id in (key.partition("o")[0] for key in keys) if ledger_id.isdigit()}


def _existing(store: MetadataStore, ledger_ids: list[LedgerId], root: str) -> list[LedgerId]:
    found: list[LedgerId] = []
    for start in range(0, len(ledger_ids), _LEDGERS_AT_ONCE):
        some = ledger_ids[start : start + _LEDGERS_AT_ONCE]
        nodes = store.read_many([ledger_path(each, root) for each in some])
        found += [each for each, node in zip(some, nodes, strict=True) if node is not None]
    return found


# --- ended -----------------------------------------------------------------------------------------------------------


def end_document(status: TopicDeletionStatus, abandoned_by: str | None = None) -> dict[str, object]:
    """Return the outcome topic's document about the end of a topic deletion."""
    document: dict[str, object] = {
        "operationId": status.operation_id,
        "topicName": status.topic,
        "state": status.state.value,
        "recordedLedgers": status.recorded_ledgers,
        "attempts": status.attempts,
        "requestedMs": status.requested_ms,
        "reason": status.reason,
    }
    if status.part is not None:
        document["part"] = status.part
    if status.request_id is not None:
        document["requestId"] = status.request_id
    return document | ({"abandonedBy": abandoned_by} if status.state is OperationState.ABANDONED else {})


def end_of(topics: DeletionTopics, operation_id: OperationId, since_ms: int) -> FollowedDeletion:
    """Return the end, after ``since_ms``, of a deletion, as the sidecar that ended it wrote to the outcome topic.

    Raises:
        NotFoundError: the outcome topic has no such end.
        TemporaryError: it cannot be read.
    """
    needle = operation_id.encode()
    for payload in topics.outcomes_since(since_ms, quickly=True):
        for note in notes(payload, END_STEP) if needle in payload else ():
            if note.document.get("operationId") == operation_id and (found := _ended(operation_id, note)) is not None:
                return found
    raise NotFoundError(
        f"no topic deletion {operation_id} is running: either its end was not noted in the last few minutes, or there "
        "never was one with this id. The notes of older ends are on "
        f"{SYSTEM_NAMESPACE}/{DeletionTopic.OUTCOME.value}"
    )


def _ended(operation_id: OperationId, note: Note) -> FollowedDeletion | None:
    document = note.document
    keys = ("topicName", "reason", "abandonedBy", "requestId", "part")
    name, reason, abandoned_by, request_id, part = (document.get(key) for key in keys)
    requested_ms = _number(document.get("requestedMs"))
    if requested_ms is None:
        return None
    try:
        status = TopicDeletionStatus(
            operation_id,
            str(parse_topic_name(name)) if isinstance(name, str) else None,
            part if isinstance(part, str) else None,
            OperationState(str(document.get("state"))),
            _number(document.get("recordedLedgers")),
            _number(document.get("attempts")),
            requested_ms,
            reason if isinstance(reason, str) else None,
            request_id=request_id if isinstance(request_id, str) else None,
        )
    except (ValueError, InvalidInputError):
        return None
    return status.followed(ended_ms=note.at_ms, abandoned_by=abandoned_by if isinstance(abandoned_by, str) else None)


def _number(value: object) -> int | None:
    return value if type(value) is int else None
