"""Guarded deletions by the hundred: one ZooKeeper ``multi`` deletes many nodes and checks their guards.

A multi is all or nothing and names only its first offender. So after each wave of packets the responses settle the
offenders that they name, one multi-read checks the other nodes of those packets, and deletions that still seem possible
go into the next wave. Every wave settles at least one deletion of each failed packet, so the waves end.

One multi is in flight at a time, and as large as the limit allows: several small ones would cost every member more
processor time for each node, and other clients would wait as long.

Invariants: only a node in a multi that ZooKeeper confirmed is DELETED; a read settles only what is visible (gone,
another version, a broken guard).
"""

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from kazoo.client import KazooClient
from kazoo.exceptions import BadVersionError, NoNodeError, NotEmptyError, RolledBackError, RuntimeInconsistency
from kazoo.protocol.serialization import CheckVersion, Delete, Transaction

from pulsar_sidecar.adapters.zookeeper.multiread import read_nodes
from pulsar_sidecar.adapters.zookeeper.session import CLIENT_ERRORS, Deadline, KazooSession, real_path, send
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.metadata import DeletionLimit, DeletionResult, Guard, GuardedDeletion, Node

_LOG = logging.getLogger(__name__)
_MAX_DELETIONS = 100
_MAX_OPERATIONS = 400
_MAX_REQUEST_BYTES = 256 * 1024
_OPERATION_OVERHEAD_BYTES = 17
BYSTANDERS = (RolledBackError, RuntimeInconsistency)
"""Results in the response to a failed multi for operations that were not at fault."""


@dataclass(slots=True)
class Packet:
    """Deletions of one multi, by their indexes in the caller's sequence, and the guards they share."""

    items: list[int] = field(default_factory=list)
    guards: dict[Guard, None] = field(default_factory=dict)
    size_bytes: int = 0


def take_packet(items: deque[int], deletions: Sequence[GuardedDeletion], most: int = _MAX_DELETIONS) -> Packet:
    """Take the next packet's deletions off ``items``, in order; a guard shared by neighbours is checked once."""
    packet = Packet()
    full = min(most, _MAX_DELETIONS)
    while items and len(packet.items) < full:
        deletion = deletions[items[0]]
        fresh = [guard for guard in deletion.guards if guard not in packet.guards]
        size_bytes = packet.size_bytes + sum(
            len(path.encode()) + _OPERATION_OVERHEAD_BYTES for path in (deletion.path, *(guard.path for guard in fresh))
        )
        operations = len(packet.items) + len(packet.guards) + len(fresh) + 1
        # The first one always fits.
        if packet.items and (operations > _MAX_OPERATIONS or size_bytes > _MAX_REQUEST_BYTES):
            break
        packet.items.append(items.popleft())
        packet.guards.update(dict.fromkeys(fresh))
        packet.size_bytes = size_bytes
    return packet


def result_by_nodes(deletion: GuardedDeletion, seen: Mapping[str, Node | None]) -> DeletionResult | None:
    """Return the result of an unfinished deletion by the nodes just read; None if it is still possible."""
    for guard in deletion.guards:
        node = seen[guard.path]
        if node is None or node.version != guard.version:
            return DeletionResult.CONFLICT
    node = seen[deletion.path]
    if node is None:
        return DeletionResult.GONE
    return None if node.version == deletion.version else DeletionResult.CONFLICT


@dataclass(slots=True)
class GuardedDeletions:
    """Deletions of one call over one session; ``may_send`` is called before each packet."""

    _session: KazooSession
    _deletions: Sequence[GuardedDeletion]
    _limit: DeletionLimit
    _may_send: Callable[[], bool]
    _results: dict[int, DeletionResult] = field(default_factory=dict)
    _has_begun: bool = False
    _is_lost: bool = False
    _refusal: Exception | None = None

    def carry_out(self) -> list[DeletionResult]:
        """Carry out the deletions; return one result each, in order: UNKNOWN if unsettled when the connection was lost.

        Raises:
            TemporaryError: there was no connection at the start, or the store refuses every deletion.
        """
        todo = list(range(len(self._deletions)))
        while todo and not self._is_lost:
            deadline = self._session.deadline()
            try:
                client = self._session.connected(deadline)
                todo = self._sift(self._wave(client, deque(todo), deadline))
            except TemporaryError:
                if not self._has_begun:
                    raise
                self._is_lost = True
        results = [self._results.get(item, DeletionResult.UNKNOWN) for item in range(len(self._deletions))]
        if self._refusal is not None and not self._is_lost and set(results) == {DeletionResult.UNKNOWN}:
            raise TemporaryError(
                f"ZooKeeper refused every deletion ({type(self._refusal).__name__}) and nothing was changed; "
                "give the sidecar a credential that may delete"
            ) from self._refusal
        return results

    def _wave(self, client: KazooClient, items: deque[int], deadline: Deadline) -> list[int]:
        """Send all deletions, one multi after the other; return the unsettled deletions of failed packets."""
        suspects: list[int] = []
        self._has_begun = True
        while items:
            if not self._may_send():
                self._results.update(dict.fromkeys(items, DeletionResult.NOT_SENT))
                break
            packet = take_packet(items, self._deletions, self._limit.most_in_flight())
            try:
                with self._limit.sending():
                    answers = deadline.answer(send(client, self._multi(client, packet)))
            except CLIENT_ERRORS as error:
                _LOG.warning("the answer to %d deletions was lost: %s", len(packet.items), type(error).__name__)
                self._is_lost = True
                return []
            assert isinstance(answers, list)
            suspects += self._apply(packet, answers)
            deadline.renew()
        return suspects

    def _sift(self, suspects: list[int]) -> list[int]:
        """Settle the deletions that a read can settle; return the rest for a retry."""
        deletions = [self._deletions[item] for item in suspects]
        named = ((deletion.path, *(guard.path for guard in deletion.guards)) for deletion in deletions)
        paths = list(dict.fromkeys(chain.from_iterable(named)))
        try:
            seen = dict(zip(paths, read_nodes(self._session, paths), strict=True))
        except TemporaryError:
            # One node that may not be read hides all others; the next waves find the offenders one by one.
            return suspects
        for item, deletion in zip(suspects, deletions, strict=True):
            if result := result_by_nodes(deletion, seen):
                self._results[item] = result
        return [item for item in suspects if item not in self._results]

    def _multi(self, client: KazooClient, packet: Packet) -> Transaction:
        checks = [CheckVersion(real_path(client, guard.path), guard.version) for guard in packet.guards]
        chosen = [self._deletions[item] for item in packet.items]
        deletes = [Delete(real_path(client, deletion.path), deletion.version) for deletion in chosen]
        return Transaction([*checks, *deletes])

    def _apply(self, packet: Packet, answers: list[object]) -> list[int]:
        if not any(isinstance(answer, Exception) for answer in answers):
            self._results.update(dict.fromkeys(packet.items, DeletionResult.DELETED))
            return []
        for position, answer in enumerate(answers):
            if isinstance(answer, Exception) and not isinstance(answer, BYSTANDERS):
                self._blame(packet, position, answer)
                break
        else:
            self._results.update(dict.fromkeys(packet.items, DeletionResult.UNKNOWN))
        return [item for item in packet.items if item not in self._results]

    def _blame(self, packet: Packet, position: int, answer: Exception) -> None:
        guards = tuple(packet.guards)
        is_guard = position < len(guards)
        if is_guard:
            offenders = [item for item in packet.items if guards[position] in self._deletions[item].guards]
        else:
            offenders = [packet.items[position - len(guards)]]
        if isinstance(answer, NoNodeError):
            self._results.update(dict.fromkeys(offenders, DeletionResult.CONFLICT if is_guard else DeletionResult.GONE))
        elif isinstance(answer, (BadVersionError, NotEmptyError)):
            self._results.update(dict.fromkeys(offenders, DeletionResult.CONFLICT))
        else:
            _LOG.warning("ZooKeeper refused a deletion: %s", type(answer).__name__)
            self._refusal = answer
            self._results.update(dict.fromkeys(offenders, DeletionResult.UNKNOWN))
