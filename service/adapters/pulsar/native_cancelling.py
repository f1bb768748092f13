"""Brokers that cancel delayed messages themselves: PIP-423's own route, if they have it."""

import threading
from collections.abc import Sequence
from typing import Final

from service.adapters.pulsar.admin_rest import AdminRest, topic_path
from service.model.errors import BrokerRefusedError, NotFoundError, SidecarError
from service.model.names import TopicName, parse_topic_name
from service.model.positions import Position

_PROBED: Final = parse_topic_name("persistent://public/default/pulsar-sidecar-probe")
_INVALID: Final = {"ledgerId": "-1", "entryId": "-1", "deliverAt": "0"}
_PRECONDITION_FAILED: Final = 412


class BrokerNativeCancelling:
    """`service.delayed_delivery.ports.NativeCancelling`."""

    def __init__(self, rest: AdminRest) -> None:
        self._rest = rest
        self._known: bool | None = None
        self._lock = threading.Lock()

    def supported(self) -> bool:
        with self._lock:
            if self._known is None:
                self._known = self._probe()
            return self._known is True

    def known(self) -> bool | None:
        return self._known

    def cancel(self, topic: TopicName, position: Position, deliver_at_ms: int, subscriptions: Sequence[str]) -> None:
        params = {
            "ledgerId": str(position.ledger_id),
            "entryId": str(position.entry_id),
            "deliverAt": str(deliver_at_ms),
        }
        if subscriptions:
            params["subscriptionNames"] = ",".join(subscriptions)
        self._rest.change("POST", topic_path(topic, "/cancelDelayedMessage"), params=params)

    def _probe(self) -> bool | None:
        """A request that every broker with the route refuses as invalid, before it looks at any topic (PIP-423)."""
        try:
            self._rest.change("POST", topic_path(_PROBED, "/cancelDelayedMessage"), params=_INVALID)
        except BrokerRefusedError as error:
            return error.status == _PRECONDITION_FAILED and "deliverAt" in error.reason
        except NotFoundError:
            return False
        except SidecarError:
            return None
        return False
