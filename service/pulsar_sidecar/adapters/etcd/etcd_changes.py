"""Watches of changes in etcd: one stream of every change of the store, resumed by revision where it broke.

A broken stream loses nothing, unless etcd has compacted the revisions in between: then everything has to be read again.
The stream is of all keys, so that each revision has an event in it; a stream that has reached the store's revision has
named every change up to it, and no node is written to prove that. Brokers watch the whole store, too.
"""

import logging
import threading
from typing import Final

from pulsar_sidecar.adapters.etcd.gateway import Answer, EtcdGateway, Key, encoded
from pulsar_sidecar.adapters.heard_changes import HeardChanges, Scope
from pulsar_sidecar.adapters.metadata_access import DEFAULT_OPTIONS, SessionOptions
from pulsar_sidecar.features.ledger_deletion.watch.ports import Changes, ChangesLostError
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import SidecarError, TemporaryError

_LOG = logging.getLogger(__name__)
_RESUME_PAUSE_SECONDS: Final = 0.2
_EVERY_KEY: Final = {"key": encoded("\0"), "range_end": encoded("\0")}
_STORE: Final = "etcd"


class EtcdChanges:
    """`ledger_deletion.watch.ports.StoreChanges` and `TopicChanges`, over a stream of its own.

    `close` may be called by any thread, the other methods by one at a time.
    """

    def __init__(self, url: str, clock: Clock, scope: Scope, options: SessionOptions = DEFAULT_OPTIONS) -> None:
        self._gateway = EtcdGateway(url, clock, options)
        self._clock = clock
        self._scope = scope
        self._hearing: _Hearing | None = None

    def arm(self) -> None:
        if self._hearing is not None:
            self._hearing.lose("the watches were armed again")
        self._hearing = _Hearing(self._gateway, self._scope, self._revision() + 1)

    def take(self, wait_seconds: float) -> Changes:
        return self._armed().take(wait_seconds)

    def echo_seconds(self) -> float:
        """Return the delay of the event of the store's last change; nothing is written."""
        return self._caught_up()

    def catch_up(self) -> tuple[str, ...]:
        self._caught_up()
        return tuple(self._armed().take(0).nodes)

    def close(self) -> None:
        """End the stream; idempotent, and may be called by any thread."""
        if self._hearing is not None:
            self._hearing.lose("the connection was closed")
        self._gateway.close()

    def _armed(self) -> "_Hearing":
        if self._hearing is None:
            raise ChangesLostError("the watches are not armed")
        return self._hearing

    def _caught_up(self) -> float:
        """Wait for the events of all changes before this call; return the wait for the last one."""
        hearing = self._armed()
        hearing.demand_whole()
        revision = self._revision()
        started = self._clock.monotonic_seconds()
        hearing.wait_for(revision, self._gateway.options.call_timeout_seconds)
        return self._clock.monotonic_seconds() - started

    def _revision(self) -> int:
        """Return the store's revision, not older than this call."""
        request = {"key": encoded("/"), "count_only": True}
        answer = self._gateway.reading("read the store's revision", "kv/range", request)
        return int(answer["header"]["revision"])


class _Hearing(HeardChanges):
    """Events from a revision on, by a thread that ends with the first doubt."""

    def __init__(self, gateway: EtcdGateway, scope: Scope, start_revision: int) -> None:
        super().__init__(scope, _STORE)
        self._gateway = gateway
        self._next = start_revision
        threading.Thread(target=self._run, name="etcd-watch", daemon=True).start()

    def wait_for(self, revision: int, seconds: float) -> None:
        """Wait until every change up to this revision is received.

        Raises:
            ChangesLostError: changes may have been missed.
            TemporaryError: the stream is behind, and continues.
        """
        with self.stirred:
            self.stirred.wait_for(lambda: self.doubt or self._next > revision, seconds)
            is_behind = self._next <= revision
        self.demand_whole()
        if is_behind:
            raise TemporaryError(f"the events of etcd's revision {revision} did not arrive in time; try again")

    def _run(self) -> None:
        while self._is_whole():
            try:
                for message in self._gateway.stream("watch", self._request()):
                    self._on_message(message.get("result", message))
                    if not self._is_whole():
                        return
            except SidecarError as error:
                _LOG.info("the watch continues at revision %d: %s", self._next, error)
            self._gateway.clock.wait_seconds(_RESUME_PAUSE_SECONDS, self._gateway.closed)
            if self._gateway.closed.is_set():
                self.lose("the connection was closed")

    def _is_whole(self) -> bool:
        return self.doubt is None

    def _request(self) -> Answer:
        return {"create_request": {**_EVERY_KEY, "start_revision": str(self._next)}}

    def _on_message(self, message: Answer) -> None:
        if message.get("compact_revision"):
            self.lose(f"etcd has compacted its revisions up to {message['compact_revision']}")
            return
        if message.get("canceled") or "error" in message:
            _LOG.warning("etcd ended the watch: %s", message.get("cancel_reason", message.get("error")))
            return
        revision = 0
        for event in message.get("events", ()):
            key = Key.of(event["kv"])
            revision = key.modified
            exists = False if event.get("type") == "DELETE" else True if key.created == key.modified else None
            self.note(key.path, exists)
        if revision:
            with self.stirred:
                self._next = revision + 1
                self.stirred.notify_all()
