"""``topics delete``: request the deletion of one topic or of many, and follow each until it has ended.

Invariants: every name is checked before the first topic is deleted; a topic is reported as deleted only if the service
reported it.
"""

import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field

from pulsar_sidecar.cli import output
from pulsar_sidecar.cli.command_groups import ServiceRefusedError
from pulsar_sidecar.cli.connecting import Client, topic_path
from pulsar_sidecar.features.ledger_deletion.cli.ledger_deletion import DELETIONS
from pulsar_sidecar.features.ledger_deletion.results import FollowedDeletion, OperationState, TopicDeletionStatus
from pulsar_sidecar.model.clocks import SystemClock
from pulsar_sidecar.model.errors import (
    ConflictError,
    InvalidInputError,
    OutcomeUnknownError,
    SidecarError,
    UnreachableError,
)
from pulsar_sidecar.model.names import parse_topic_name
from pulsar_sidecar.model.progress import Report
from pulsar_sidecar.model.results import result
from pulsar_sidecar.reports.formatting import format_count

_FIRST_PAUSE_SECONDS = 0.3
_LONGEST_PAUSE_SECONDS = 3.0
"""Less than the 5 s after which a sidecar closes an idle connection, perhaps under the next request."""
_LOOKS_FOR_THE_END = 5
"""The sidecar that ends a deletion notes its end right after; the note may come a moment later than the end."""
_NOT_FOUND = 404
_TEMPORARY = 503


@dataclass(frozen=True, slots=True)
class Deletion:
    """Deletion of topics; each running one is followed for ``wait_seconds``, or until ``stop``."""

    client: Client
    partitioned: bool
    parameters: dict[str, str | None]
    wait_seconds: float
    stop: threading.Event = field(default_factory=threading.Event)

    def path(self, topic: str) -> str:
        return topic_path(topic) + ("/partitions" if self.partitioned else "")


def topics_of(arguments: Sequence[str]) -> list[str]:
    """Return the named topics, each once, as written; ``-`` stands for the lines of standard input.

    A line is taken as it is, since a name may begin or end with a space. Empty lines and those that begin with ``#``
    are comments.

    Raises:
        InvalidInputError: one of them is not the name of a topic with ledgers; nothing is deleted.
    """
    named: dict[str, str] = {}
    for argument in arguments:
        for number, name in enumerate(_lines() if argument == "-" else [argument], 1):
            if argument == "-" and (not name.strip() or name.startswith("#")):
                continue
            try:
                topic_path(name)
            except InvalidInputError as error:
                where = f"line {number}: " if argument == "-" else ""
                raise InvalidInputError(f"{where}{error}; nothing was deleted") from error
            named.setdefault(str(parse_topic_name(name)), name)
    if not named:
        raise InvalidInputError("no topics on standard input")
    return list(named.values())


def _lines() -> list[str]:
    try:
        return [line.removesuffix("\r") for line in sys.stdin.read().split("\n")]
    except UnicodeDecodeError as error:
        raise InvalidInputError(f"standard input is not UTF-8: {error}") from error


def delete_one(deletion: Deletion, topic: str, report: Report) -> TopicDeletionStatus | None:
    """Delete a topic and return None once it is deleted.

    Otherwise return the last status: it is not done, or it is done and ``reason`` has a remark.

    Raises:
        ServiceRefusedError, ConflictError: the deletion was refused, or an operator abandoned it.
        UnreachableError: the call got no response, and no sidecar deletes the topic.
        OutcomeUnknownError: the deletion ended with an unknown outcome.
    """
    try:
        running = deletion.client.result_if_any(
            TopicDeletionStatus, "DELETE", deletion.path(topic), deletion.parameters
        )
    except UnreachableError:
        running = _running_deletion(deletion, topic)
        if running is None:
            raise
    return None if running is None else _followed(deletion, running, report)


def _running_deletion(deletion: Deletion, topic: str) -> TopicDeletionStatus | None:
    """Return the newest running deletion of the topic: the call was accepted although its response did not arrive."""
    try:
        running = deletion.client.result(list[TopicDeletionStatus], "GET", DELETIONS)
    except SidecarError:
        return None
    name = str(parse_topic_name(topic))
    return max((each for each in running if each.topic == name), key=lambda each: each.requested_ms, default=None)


def _followed(deletion: Deletion, seen: TopicDeletionStatus, report: Report) -> TopicDeletionStatus | None:
    clock = SystemClock()
    give_up = clock.monotonic_seconds() + deletion.wait_seconds
    pause_seconds, missed, shown = _FIRST_PAUSE_SECONDS, 0, ""
    while seen.state is OperationState.RUNNING and clock.monotonic_seconds() < give_up and not deletion.stop.is_set():
        text = _shown(seen)
        clock.wait_seconds(min(pause_seconds, give_up - clock.monotonic_seconds()), deletion.stop)
        pause_seconds = min(1.5 * pause_seconds, _LONGEST_PAUSE_SECONDS)
        try:
            seen, missed = deletion.client.result(FollowedDeletion, "GET", f"{DELETIONS}/{seen.operation_id}"), 0
        except UnreachableError as error:
            text = f"waiting: {error}"
        except ServiceRefusedError as error:
            missed += error.status == _NOT_FOUND
            if error.status not in (_NOT_FOUND, _TEMPORARY):
                raise
            if missed == _LOOKS_FOR_THE_END:
                raise OutcomeUnknownError(
                    f"it is not known how the deletion of {seen.topic} ended: {error}; check whether the topic exists"
                ) from error
            text = f"waiting: {error}"
        if text != shown:
            report(text)
            shown = text
    if seen.state is OperationState.DONE and seen.reason is None:
        return None
    if seen.state in (OperationState.REFUSED, OperationState.ABANDONED):
        raise ConflictError(f"the deletion of {seen.topic} was {seen.state}: {seen.reason}")
    return seen


def _shown(seen: TopicDeletionStatus) -> str:
    left = seen.left_ledgers if isinstance(seen, FollowedDeletion) else None
    recorded = "" if seen.recorded_ledgers is None else f"; {format_count(seen.recorded_ledgers, 'ledger')} recorded"
    return f"waiting; attempts: {seen.attempts}{recorded}{'' if left is None else f', {left} left'}: {seen.reason}"


@result
class NotDeleted:
    """A topic of many that is not deleted, or whose end has a remark."""

    topic: str
    state: str
    """State of its deletion; ``failed``, or ``unknown`` where no response came."""
    operation_id: str | None
    reason: str | None


def delete_many(deletion: Deletion, topics: Sequence[str], parallel: int) -> list[NotDeleted]:
    """Delete topics, ``parallel`` at a time, with progress; return those that are not simply deleted, in order."""
    results: dict[str, NotDeleted | None] = {}
    threads = ThreadPoolExecutor(min(parallel, len(topics)), "delete-topic")
    with output.ProgressBar("deleting topics", output.info, with_rate=True) as bar:
        try:
            futures = {threads.submit(_result, deletion, topic): topic for topic in topics}
            bar.report(0, len(topics))
            for future in as_completed(futures):
                results[futures[future]] = future.result()
                bar.report(len(results), len(topics))
        except BaseException:
            deletion.stop.set()
            threads.shutdown(wait=False, cancel_futures=True)
            raise
    threads.shutdown()
    return [each for topic in topics if (each := results[topic]) is not None]


def _result(deletion: Deletion, topic: str) -> NotDeleted | None:
    try:
        running = delete_one(deletion, topic, lambda _: None)
    except SidecarError as error:
        is_unknown = isinstance(error, UnreachableError | OutcomeUnknownError)
        return NotDeleted(topic, "unknown" if is_unknown else "failed", None, str(error))
    if running is None:
        return None
    return NotDeleted(topic, running.state, running.operation_id, running.reason)
