"""How a topic's deletion is followed: what its node shows, what it has left, when it counts as stuck, how it ended.

Invariant: nothing is reported that was not read. An ended deletion has no node, so its end is known from the outcome
topic or not at all.
"""

import dataclasses
import functools
import re
from collections.abc import Callable, Iterable, Sequence

from msgspec.structs import replace

from pulsar_sidecar.analysis.formatting import format_count
from pulsar_sidecar.ledger_deletion.outcomes import Note, notes
from pulsar_sidecar.ledger_deletion.ports import SYSTEM_NAMESPACE, DeletionTopic, DeletionTopics
from pulsar_sidecar.ledger_deletion.service import FollowedDeletion, OperationState, Remains, TopicDeletionStatus
from pulsar_sidecar.ledger_deletion.topic_deletion.namespace_operation import PREFIX
from pulsar_sidecar.ledger_deletion.topic_deletion.operation import (
    OPERATIONS,
    Operation,
    decode_operation,
    driver_path,
    incarnations,
    no_answer,
    operation_path,
    remaining_nodes,
)
from pulsar_sidecar.ledger_ownership.paths import ledger_path
from pulsar_sidecar.ledger_ownership.registrations import describe_registered
from pulsar_sidecar.model.errors import InvalidInputError, NotFoundError, UndecodableError
from pulsar_sidecar.model.ids import LedgerId, OperationId
from pulsar_sidecar.model.metadata import MetadataStore, Node
from pulsar_sidecar.model.names import TopicName, parse_topic_name

END_STEP = "topic-deletion"
"""The step of the note that the outcome topic keeps of each end."""
_FIRST_BACKOFF_MS = 1_000
_LONGEST_BACKOFF_MS = 60_000
_MOST_DOUBLINGS = 6
_LEDGERS_AT_ONCE = 1_000
_MOST_NAMED = 1_000
_MOST_WARNINGS = 5
_VARYING = re.compile(r"\S*\d\S*")


# --- failing ---------------------------------------------------------------------------------------------------------


def after_failure(operation: Operation, reason: str, now_ms: int, *, lasting: bool) -> Operation:
    """The operation with one more failure, and when it is tried again.

    Two failures are the same if their reasons are, apart from words with digits: ids, addresses, counts. One that comes
    before its time is not counted: while a caller waits, attempts follow each other within seconds, and ten of them are
    no more than a broker's restart. A ``lasting`` one does not pass by itself, and is counted quickly.
    """
    is_same = operation.failures > 0 and _kind(operation.last_reason) == _kind(reason)
    failures = operation.failures + (now_ms >= operation.not_before_ms) if is_same else 1
    since_ms = operation.failing_since_ms if is_same else now_ms
    failed = replace(operation, last_reason=reason, failures=failures, failing_since_ms=since_ms)
    return replace(failed, not_before_ms=now_ms + _backoff_ms(failed, lasting=lasting))


def _kind(reason: str | None) -> str:
    return _VARYING.sub("#", reason or "")


def _backoff_ms(operation: Operation, *, lasting: bool) -> int:
    if operation.stuck:
        return _LONGEST_BACKOFF_MS
    doublings = operation.attempts if lasting else max(operation.attempts, operation.failures)
    return min(_FIRST_BACKOFF_MS << min(doublings, _MOST_DOUBLINGS), _LONGEST_BACKOFF_MS)


# --- running ---------------------------------------------------------------------------------------------------------


def running(store: MetadataStore, root: str) -> list[TopicDeletionStatus]:
    """The deletions that have not ended, those included that this version cannot read."""
    nodes = _promises(store)
    if not nodes:
        return []
    now_ms, awaited = store.now_ms(), _awaited(store, root)
    return [_as_of(now_ms, status_of(node, awaited)) for node in nodes]


def _awaited(store: MetadataStore, root: str) -> Callable[[], str]:
    """Say what attempts wait for that have not failed; bookies' registrations are read once, if at all."""
    return functools.cache(
        lambda: f"brokers or bookies have not answered yet; {describe_registered(store, root)}; the sidecar goes on"
    )


def _promises(store: MetadataStore) -> list[Node]:
    names = [name for name in store.children(OPERATIONS) or [] if not name.startswith(PREFIX)]
    nodes = store.read_many([operation_path(OperationId(name)) for name in names])
    return [node for node in nodes if node is not None and node.data]


def follow(store: MetadataStore, operation_id: OperationId, root: str) -> FollowedDeletion | None:
    """One that has not ended, and what it has left; None if there is none of this id."""
    node = store.read(operation_path(operation_id))
    if node is None or not node.data:
        return None
    driver = store.read(driver_path(operation_id))
    return FollowedDeletion(
        _as_of(store.now_ms(), status_of(node, _awaited(store, root))),
        None if driver is None else driver.data.decode("utf-8", "replace"),
        remains(store, node, root),
    )


def promise_of(store: MetadataStore, topic: TopicName, *, partitioned: bool, force: bool) -> OperationId | None:
    """Return the running deletion of the topic as it is now, on the same terms; None where there is none."""
    for operation in filter(None, map(operation_in, _promises(store))):
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
    """Return the status with an attempt that is due, or under way, as one of now."""
    if status.next_attempt_ms is None or status.next_attempt_ms >= now_ms:
        return status
    return dataclasses.replace(status, next_attempt_ms=now_ms)


def remains(store: MetadataStore, node: Node, root: str) -> Remains | None:
    """What the deletion of this node has left now; None if the node cannot be read."""
    operation = operation_in(node)
    if operation is None:
        return None
    left = _existing(store, sorted(_recorded_ledgers(operation.recorded)), root)
    return Remains(tuple(remaining_nodes(store, operation.incarnations)), len(left), tuple(left[:_MOST_NAMED]))


def status_of(node: Node, awaited: Callable[[], str] = no_answer) -> TopicDeletionStatus:
    """What the node of a deletion shows; ``awaited`` says its reason until an attempt has failed."""
    try:
        operation = decode_operation(node.data)
    except UndecodableError as error:
        operation_id = OperationId(node.path.rpartition("/")[2])
        return TopicDeletionStatus(
            operation_id, None, OperationState.UNREADABLE, None, None, node.created_ms, str(error)
        )
    return operation.unfinished(awaited)


def warnings_of(deletions: Sequence[TopicDeletionStatus]) -> list[str]:
    """Which of them do not continue by themselves, and what to do about it."""
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
    # A key is a ledger's id, with the offload attempt behind an "o" (`record.copy_key`).
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
    """What the outcome topic keeps of the end of a topic deletion."""
    document: dict[str, object] = {
        "operationId": status.operation_id,
        "topicName": None if status.topic is None else str(status.topic),
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
    """How a deletion ended after ``since_ms``, as the outcome topic has it; the sidecar that ended it wrote that down.

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
        f"no topic deletion {operation_id} is running: either it ended and its end was not noted in the last minutes, "
        "or there never was one of this id. The notes of older ends are on "
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
            parse_topic_name(name) if isinstance(name, str) else None,
            OperationState(document.get("state")),
            _number(document.get("recordedLedgers")),
            _number(document.get("attempts")),
            requested_ms,
            reason if isinstance(reason, str) else None,
            request_id=request_id if isinstance(request_id, str) else None,
            part=part if isinstance(part, str) else None,
        )
    except (ValueError, InvalidInputError):
        return None
    return FollowedDeletion(
        status, ended_ms=note.at_ms, abandoned_by=abandoned_by if isinstance(abandoned_by, str) else None
    )


def _number(value: object) -> int | None:
    return value if type(value) is int else None
