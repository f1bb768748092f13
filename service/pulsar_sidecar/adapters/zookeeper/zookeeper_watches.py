"""Watches of changes in ZooKeeper by its persistent recursive watches, for which kazoo 2.11 has no call.

An event names a node, never its data. ZooKeeper sends the events of a connection in the order of the changes, each
before any later response on the same connection; kazoo would pass them through a queue and lose that order, so the
sidecar reads them where kazoo's connection thread decodes them. The same thread reports every change of the
connection's state, so events are never lost unnoticed.

Limits of ZooKeeper: a broken connection loses events, even if the session survives; a node that the credential may not
read has no events, and ZooKeeper does not report that; a change of an ACL has none either; and a follower names a
change only once it has applied it.
"""

import struct
import threading
from dataclasses import dataclass
from typing import ClassVar

from kazoo.client import KazooClient
from kazoo.exceptions import UnimplementedError
from kazoo.protocol.states import KazooState

from pulsar_sidecar.adapters.heard_changes import HeardChanges, Scope
from pulsar_sidecar.adapters.zookeeper.session import Deadline, KazooSession, real_path, send
from pulsar_sidecar.features.ledger_deletion.watch.ports import ChangesLostError, UnwatchableError

CANARIES = "/pulsar-sidecar/ledger-deletion/watch/canaries"
"""Parent of the ephemeral node that each echo, and no other client, creates and removes."""

_PERSISTENT_RECURSIVE = 1
_CREATED, _DELETED = 1, 2
_EVENT = struct.Struct("!iii")
"""``WatcherEvent`` up to its path: type, state, the path's length."""
_INT = struct.Struct("!i")


class ZooKeeperWatches:
    """Persistent recursive watches with a queue of their events, on one connection of a session of its own."""

    def __init__(self, session: KazooSession, scope: Scope) -> None:
        self._session = session
        self._scope = scope
        self._hearing: Hearing | None = None

    def arm(self) -> None:
        """Start the watches; a change just before, whose event is still in flight, is reported too.

        Raises:
            UnwatchableError: the server has no such watches.
            TemporaryError: the server did not respond.
        """
        try:
            self._session.reading("watch the metadata store", self._listen, answers=(UnimplementedError,))
        except UnimplementedError as error:
            raise UnwatchableError(
                "this ZooKeeper has no persistent recursive watches; upgrade it to 3.6 or later"
            ) from error

    def close(self) -> None:
        """Close the connection; idempotent, and may be called by any thread."""
        hearing = self._hearing
        if hearing is not None:
            hearing.end("the connection was closed")
        self._session.close()

    def _armed(self) -> "Hearing":
        if self._hearing is None:
            raise ChangesLostError("the watches are not armed")
        return self._hearing

    def _listen(self, client: KazooClient, deadline: Deadline) -> None:
        if self._hearing is not None:
            self._hearing.end("the watches were armed again")
        self._hearing = hearing = Hearing(client, self._scope)
        # From here on every change of the connection is noticed, so all watches are on one connection.
        hearing.begin()
        asked = [send(client, AddWatch(real_path(client, root).encode())) for root in self._scope.roots]
        for answer in asked:
            deadline.answer(answer)
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
        """Return the bytes that kazoo writes after the request's header."""
        return _INT.pack(len(self.path)) + self.path + _INT.pack(_PERSISTENT_RECURSIVE)

    def deserialize(self, packet: bytes, offset: int) -> None:
        """Return None: the response shows only that there was no error."""


class Hearing(HeardChanges):
    """Events of one connection of one client, from `begin` to the first doubt, and never after it.

    `_on_event` and `_on_state` run on kazoo's connection thread, one at a time and in the order of the stream.
    """

    def __init__(self, client: KazooClient, scope: Scope) -> None:
        super().__init__(scope, "ZooKeeper")
        self._client = client
        self._chroot_length = len(client.chroot)
        self._canaries = f"{CANARIES}/"
        self._connection: object = None
        self._canary = ""
        self._echo = threading.Event()

    def begin(self) -> None:
        self._client.add_listener(self._on_state)
        self._client._connection._read_watch_event = self._on_event

    def note_connection(self) -> None:
        """Record the connection that has the watches."""
        self._connection = self._client._connection._socket

    def end(self, why: str) -> None:
        self._client.remove_listener(self._on_state)
        self.lose(why)

    def expect(self, canary: str) -> threading.Event:
        """Return an event that is set when an event names this node, or when the watches have ended."""
        with self.stirred:
            self._canary, self._echo = canary, threading.Event()
            if self.doubt is not None:
                self._echo.set()
            return self._echo

    def demand_whole(self, cause: Exception | None = None, client: KazooClient | None = None) -> None:
        """Raise `ChangesLostError` if events may have been missed, or if ``client`` is not the watching one."""
        if self._client._connection._socket is not self._connection or client not in (None, self._client):
            self.lose("the connection is not the one that was armed")
        super().demand_whole(cause)

    def lose(self, why: str) -> None:
        with self.stirred:
            super().lose(why)
            self._echo.set()

    def _on_state(self, state: str) -> bool:
        # Any change: a re-established connection has lost its watches.
        self.lose("the connection came back" if state == KazooState.CONNECTED else f"the connection is {state}")
        # kazoo drops a listener that returns True.
        return True

    def _on_event(self, packet: bytes, offset: int) -> None:
        kind, _, length = _EVENT.unpack_from(packet, offset)
        start = offset + _EVENT.size
        path = packet[start : start + length].decode()[self._chroot_length :]
        if path.startswith(self._canaries):
            with self.stirred:
                if path == self._canary:
                    self._echo.set()
            return
        self.note(path, {_CREATED: True, _DELETED: False}.get(kind))
