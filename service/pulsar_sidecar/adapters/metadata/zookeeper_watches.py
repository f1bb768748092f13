"""Hears what changes in ZooKeeper, by its persistent recursive watches, which kazoo 2.11 has no call for.

An event names a node, never its data. ZooKeeper sends the events of a connection in the order of the changes, and sends
each before any later answer on the same connection; kazoo would hand them to a queue of its own and lose that order, so
they are read where kazoo's connection thread decodes them. The same thread reports every change of the connection's
state, so there is no moment at which events are missing and nothing has been noticed.

Limits that ZooKeeper sets: a broken connection loses events, also where the session survives; a node that the
credential may not read has no events, and ZooKeeper does not report that; neither has a change of an ACL; and a
follower names a change only once it has applied it.
"""

import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from kazoo.client import KazooClient
from kazoo.exceptions import UnimplementedError
from kazoo.protocol.states import KazooState

from pulsar_sidecar.adapters.metadata.session import (
    KazooSession,
    Patience,
    real_path,
    send,
)
from pulsar_sidecar.analysis.formatting import format_count
from pulsar_sidecar.ledger_deletion.watch.ports import Changes, ChangesLostError, UnwatchableError
from pulsar_sidecar.ledger_ownership.paths import ledger_id_of_path
from pulsar_sidecar.model.ids import LedgerId

CANARIES = "/pulsar-sidecar/ledger-deletion/watch/canaries"
"""Below it, each echo makes an ephemeral node that no other client makes, and removes it."""

_PERSISTENT_RECURSIVE = 1
_CREATED, _DELETED = 1, 2
_EVENT = struct.Struct("!iii")
"""``WatcherEvent`` up to its path: type, state, the path's length."""
_INT = struct.Struct("!i")


@dataclass(frozen=True, slots=True)
class Scope:
    """What is heard of.

    Attributes:
        roots: the nodes that are watched, with all below them; they need not exist.
        is_kept: whether an event of this node is kept until it is taken.
        ledgers_root: where to hear of ledgers, if at all; it is one of the roots.
        most_waiting: so many nodes and ledgers wait to be taken; one more, and all are dropped and
            `ChangesLostError` reports it.
    """

    roots: tuple[str, ...]
    is_kept: Callable[[str], bool]
    most_waiting: int
    ledgers_root: str | None = None


class ZooKeeperWatches:
    """Watches on one connection of a session of its own."""

    def __init__(self, session: KazooSession, scope: Scope) -> None:
        self._session = session
        self._scope = scope
        self._hearing: Hearing | None = None

    def arm(self) -> None:
        """Begin to hear of changes; a change just before whose event is still on its way is named as well.

        Raises:
            UnwatchableError: the server has no such watches.
            TemporaryError: it could not be asked.
        """
        try:
            self._session.reading("watch the metadata store", self._listen, answers=(UnimplementedError,))
        except UnimplementedError as error:
            raise UnwatchableError(
                "this ZooKeeper has no persistent recursive watches; upgrade it to 3.6 or later"
            ) from error

    def close(self) -> None:
        """Let go of the connection; idempotent, and may be called by any thread."""
        hearing = self._hearing
        if hearing is not None:
            hearing.end("the connection was closed")
        self._session.close()

    def _armed(self) -> "Hearing":
        if self._hearing is None:
            raise ChangesLostError("the watches are not armed")
        return self._hearing

    def _listen(self, client: KazooClient, patience: Patience) -> None:
        if self._hearing is not None:
            self._hearing.end("the watches were armed again")
        self._hearing = hearing = Hearing(client, self._scope)
        # From here on no change of the connection goes unnoticed, so all of the watches are on one connection.
        hearing.begin()
        asked = [send(client, AddWatch(real_path(client, root).encode())) for root in self._scope.roots]
        for answer in asked:
            patience.answer(answer)
        hearing.note_connection()


@dataclass(frozen=True, slots=True)
class AddWatch:
    """A persistent recursive watch (``ZooDefs.OpCode.addWatch``, ZooKeeper 3.6 and later).

    The node need not exist; a second watch of the same node on the same connection changes nothing.
    """

    type: ClassVar[int] = 106

    path: bytes
    """Chroot included."""

    def serialize(self) -> bytes:
        """What kazoo writes after the request's header."""
        return _INT.pack(len(self.path)) + self.path + _INT.pack(_PERSISTENT_RECURSIVE)

    def deserialize(self, packet: bytes, offset: int) -> None:
        """The answer has nothing more than that there was no error."""


class Hearing:
    """What one connection of one client hears, from `begin` to the first doubt, and never again after it.

    `_on_event` and `_on_state` run on kazoo's connection thread, one at a time and in the order of the stream.
    """

    def __init__(self, client: KazooClient, scope: Scope) -> None:
        self._client = client
        self._scope = scope
        self._chroot_length = len(client.chroot)
        self._canaries = f"{CANARIES}/"
        self._stirred = threading.Condition()
        self._doubt: str | None = None
        self._connection: object = None
        self._nodes: dict[str, None] = {}
        self._ledgers: dict[LedgerId, bool] = {}
        self._canary = ""
        self._echo = threading.Event()

    def begin(self) -> None:
        self._client.add_listener(self._on_state)
        self._client._connection._read_watch_event = self._on_event

    def note_connection(self) -> None:
        """Note which connection it is that has the watches."""
        self._connection = self._client._connection._socket

    def end(self, why: str) -> None:
        self._client.remove_listener(self._on_state)
        self._lose(why)

    def expect(self, canary: str) -> threading.Event:
        """What will be set when an event names this node, or when nothing is heard any more."""
        with self._stirred:
            self._canary, self._echo = canary, threading.Event()
            if self._doubt is not None:
                self._echo.set()
            return self._echo

    def take(self, wait_seconds: float) -> Changes:
        with self._stirred:
            self._stirred.wait_for(lambda: self._doubt or self._nodes or self._ledgers, wait_seconds)
            nodes, self._nodes = self._nodes, {}
            ledgers, self._ledgers = self._ledgers, {}
        self.demand_whole()
        return Changes(tuple(nodes), ledgers)

    def demand_whole(self, cause: Exception | None = None, client: KazooClient | None = None) -> None:
        """Raise `ChangesLostError` where events may have been missed, or where ``client`` is not the one that hears."""
        if self._client._connection._socket is not self._connection or client not in (None, self._client):
            self._lose("the connection is not the one that was armed")
        if self._doubt is not None:
            raise self.lost(self._doubt) from cause

    def lost(self, why: str) -> ChangesLostError:
        """The error to raise; from now on for every call."""
        self._lose(why)
        return ChangesLostError(f"changes in ZooKeeper may have been missed: {self._doubt}")

    def _lose(self, why: str) -> None:
        with self._stirred:
            self._doubt = self._doubt or why
            self._nodes, self._ledgers = {}, {}
            self._echo.set()
            self._stirred.notify_all()

    def _on_state(self, state: str) -> bool:
        # Any change: a connection that has come back has not kept its watches.
        self._lose("the connection came back" if state == KazooState.CONNECTED else f"the connection is {state}")
        # kazoo forgets a listener that answers True.
        return True

    def _on_event(self, packet: bytes, offset: int) -> None:
        kind, _, length = _EVENT.unpack_from(packet, offset)
        start = offset + _EVENT.size
        path = packet[start : start + length].decode()[self._chroot_length :]
        if self._scope.is_kept(path):
            with self._stirred:
                self._nodes.setdefault(path)
                self._heard()
        elif path.startswith(self._canaries):
            with self._stirred:
                if path == self._canary:
                    self._echo.set()
        elif kind in (_CREATED, _DELETED) and self._scope.ledgers_root is not None:
            ledger_id = ledger_id_of_path(path, self._scope.ledgers_root)
            if ledger_id is not None:
                with self._stirred:
                    self._ledgers[ledger_id] = kind == _CREATED
                    self._heard()

    def _heard(self) -> None:
        waiting = len(self._nodes) + len(self._ledgers)
        if self._doubt is not None:
            self._nodes, self._ledgers = {}, {}
        elif waiting == 1:
            self._stirred.notify_all()
        elif waiting > self._scope.most_waiting:
            self._lose(f"more than {format_count(self._scope.most_waiting, 'node')} were waiting to be taken")
