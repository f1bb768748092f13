"""Hears what changes in ZooKeeper, by its persistent recursive watches, which kazoo 2.11 has no call for.

An event names a node, never its data. ZooKeeper sends the events of a connection in the order of the changes, and sends
each before any later answer on the same connection; kazoo would hand them to a queue of its own and lose that order, so
they are read where kazoo's connection thread decodes them. The same thread reports every change of the connection's
state, so there is no moment at which events are missing and nothing has been noticed.

Limits that ZooKeeper sets: a broken connection loses events, also where the session survives; a node that the
credential may not read has no events, and ZooKeeper does not report that; neither has a change of an ACL; and a
follower names a change only once it has applied it. What `StoreChanges.echo_seconds` waits for is behind every earlier
change in the order of the stream, so the next `StoreChanges.take` has them all.
"""

import secrets
import struct
import threading
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError, UnimplementedError
from kazoo.protocol.states import KazooState

from pulsar_sidecar.adapters.metadata.session import (
    DEFAULT_OPTIONS,
    KazooSession,
    Patience,
    SessionOptions,
    real_path,
    send,
)
from pulsar_sidecar.adapters.metadata.zookeeper import create_parents
from pulsar_sidecar.ledger_deletion.watch.ports import Changes, ChangesLostError, UnwatchableError
from pulsar_sidecar.ledger_ownership.paths import DEFAULT_LEDGERS_ROOT, MANAGED_LEDGERS, SCHEMAS, ledger_id_of_path
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import OutcomeUnknownError, TemporaryError
from pulsar_sidecar.model.ids import LedgerId

CANARIES = "/pulsar-sidecar/ledger-deletion/watch/canaries"
"""Below it, each echo makes an ephemeral node that no other client makes, and removes it."""
MOST_WAITING = 1_000_000

_PERSISTENT_RECURSIVE = 1
_CREATED, _DELETED = 1, 2
_EVENT = struct.Struct("!iii")
"""``WatcherEvent`` up to its path: type, state, the path's length."""
_INT = struct.Struct("!i")


class ZooKeeperChanges:
    """`ledger_deletion.watch.ports.StoreChanges` on a ZooKeeper session of its own.

    At most `MOST_WAITING` nodes and ledgers (about 200 MB) wait to be taken; one more, and all are dropped and
    `ChangesLostError` reports it. `close` may be called by any thread, the other methods by one at a time.
    """

    def __init__(
        self,
        url: str,
        clock: Clock,
        ledgers_root: str = DEFAULT_LEDGERS_ROOT,
        *,
        options: SessionOptions = DEFAULT_OPTIONS,
        most_waiting: int = MOST_WAITING,
    ) -> None:
        """Returns at once; see `KazooSession`. An echo is waited for as long as any other answer."""
        self._session = KazooSession(url, clock, options)
        self._clock = clock
        self._ledgers_root = ledgers_root
        self._most_waiting = most_waiting
        self._hearing: _Hearing | None = None

    def arm(self) -> None:
        """See `StoreChanges.arm`; a change just before whose event is still on its way is named as well."""
        try:
            self._session.reading("watch the metadata store", self._listen, answers=(UnimplementedError,))
        except UnimplementedError as error:
            raise UnwatchableError(
                "this ZooKeeper has no persistent recursive watches; upgrade it to 3.6 or later"
            ) from error

    def take(self, wait_seconds: float) -> Changes:
        return self._armed().take(wait_seconds)

    def echo_seconds(self) -> float:
        """See `StoreChanges.echo_seconds`.

        Raises:
            TemporaryError: ZooKeeper refuses to let the node be made; what is heard is not in doubt.
        """
        hearing = self._armed()
        canary = f"{CANARIES}/{secrets.token_hex(8)}"
        echo = hearing.expect(canary)
        patience = self._session.patience()
        try:
            started = self._make(canary)
        except OutcomeUnknownError as error:
            raise hearing.lost("the outcome of writing the canary node is unknown") from error
        except TemporaryError as error:
            hearing.demand_whole(error)
            raise
        if not echo.wait(patience.remaining_seconds()):
            raise hearing.lost("the event of a canary node did not arrive")
        hearing.demand_whole()
        return self._clock.monotonic_seconds() - started

    def close(self) -> None:
        hearing = self._hearing
        if hearing is not None:
            hearing.end("the connection was closed")
        self._session.close()

    def _armed(self) -> "_Hearing":
        if self._hearing is None:
            raise ChangesLostError("the watches are not armed")
        return self._hearing

    def _listen(self, client: KazooClient, patience: Patience) -> None:
        if self._hearing is not None:
            self._hearing.end("the watches were armed again")
        self._hearing = hearing = _Hearing(client, self._ledgers_root, self._most_waiting)
        # From here on no change of the connection goes unnoticed, so all of the watches are on one connection.
        hearing.begin()
        roots = (MANAGED_LEDGERS, SCHEMAS, self._ledgers_root, CANARIES)
        asked = [send(client, AddWatch(real_path(client, root).encode())) for root in roots]
        for answer in asked:
            patience.answer(answer)
        hearing.note_connection()

    def _make(self, canary: str) -> float:
        """Write a node and have it removed; when it was asked for."""

        def attempt(client: KazooClient, patience: Patience) -> float:
            started = self._clock.monotonic_seconds()
            created = client.create_async(canary, ephemeral=True)
            client.delete_async(canary)
            patience.answer(created)
            return started

        try:
            return self._session.writing("write a canary", attempt)
        except NoNodeError:
            self._session.reading("create the parents of canaries", partial(create_parents, canary))
            return self._session.writing("write a canary", attempt)


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


class _Hearing:
    """What one connection of one client hears, from `begin` to the first doubt, and never again after it.

    `_on_event` and `_on_state` run on kazoo's connection thread, one at a time and in the order of the stream.
    """

    def __init__(self, client: KazooClient, ledgers_root: str, most_waiting: int) -> None:
        self._client = client
        self._most_waiting = most_waiting
        self._chroot_length = len(client.chroot)
        self._referring = (f"{real_path(client, MANAGED_LEDGERS)}/", f"{real_path(client, SCHEMAS)}/")
        self._ledgers_root = real_path(client, ledgers_root)
        self._canaries = f"{real_path(client, CANARIES)}/"
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
            self._canary, self._echo = real_path(self._client, canary), threading.Event()
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

    def demand_whole(self, cause: Exception | None = None) -> None:
        """Raise `ChangesLostError` where events may have been missed."""
        if self._client._connection._socket is not self._connection:
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
        path = packet[start : start + length].decode()
        if path.startswith(self._referring):
            with self._stirred:
                self._nodes.setdefault(path[self._chroot_length :])
                self._heard()
        elif path.startswith(self._canaries):
            with self._stirred:
                if path == self._canary:
                    self._echo.set()
        elif kind in (_CREATED, _DELETED):
            ledger_id = ledger_id_of_path(path, self._ledgers_root)
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
        elif waiting > self._most_waiting:
            self._lose(f"more than {self._most_waiting} nodes were waiting to be taken")
