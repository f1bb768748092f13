"""Which addresses are brokers of this cluster: the only ones a redirect may send the sidecar's credentials to.

Invariant: an address is known because a setting, the metadata store or a configured broker named it, never because a
redirect did.
"""

import json
import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit

from pulsar_sidecar.model.errors import SidecarError, TemporaryError
from pulsar_sidecar.model.metadata import MetadataStore, Node

BROKERS_PATH = "/loadbalance/brokers"
_DEFAULT_PORTS = {"http": 80, "https": 443}
_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Broker:
    """A broker as it registered itself (``LocalBrokerData`` or ``BrokerLookupData``).

    Attributes:
        broker_id: ``advertisedAddress:webPort``, the node's name.
        web_service_urls: the plain and the TLS address, as far as it has them.
        created_order: the registration's order of creation; a broker that came back has another.
        extensible: whether it runs the extensible load manager, which keeps bundle owners out of the metadata store.
    """

    broker_id: str
    web_service_urls: tuple[str, ...]
    created_order: int
    extensible: bool = False


def live_brokers(store: MetadataStore) -> list[Broker]:
    """The brokers that hold a registration now, by name.

    Raises:
        TemporaryError: the store could not be asked, or a registration cannot be read or names no web address.
    """
    names = store.children(BROKERS_PATH) or []
    nodes = store.read_many([f"{BROKERS_PATH}/{name}" for name in names])
    return [_broker(name, node) for name, node in zip(names, nodes, strict=True) if node is not None]


def _broker(name: str, node: Node) -> Broker:
    try:
        document = json.loads(node.data)
    except ValueError as error:
        raise TemporaryError(f"the registration of broker {name} is no JSON document; try again") from error
    if not isinstance(document, dict):
        raise TemporaryError(f"the registration of broker {name} is no JSON object; try again")
    urls = (document.get("webServiceUrl"), document.get("webServiceUrlTls"))
    found = tuple(url.rstrip("/") for url in urls if isinstance(url, str) and url)
    if not found:
        raise TemporaryError(f"broker {name} registered no web service URL; try again")
    extensible = "ExtensibleLoadManager" in str(document.get("loadManagerClassName"))
    return Broker(name, found, node.created_order, extensible)


def address_of(url: str) -> tuple[str, int] | None:
    """Host and port of an http or https URL, lower-cased and with the scheme's default port; None for others."""
    try:
        parts = urlsplit(url)
        port = parts.port or _DEFAULT_PORTS.get(parts.scheme)
    except ValueError:
        return None
    if parts.scheme not in _DEFAULT_PORTS or not parts.hostname or port is None:
        return None
    return parts.hostname.lower(), port


class KnownBrokers:
    """The set of known addresses; an unknown one has it gathered anew, once per question."""

    def __init__(
        self, configured_urls: Iterable[str], ask_brokers: Callable[[], list[str]], store: MetadataStore | None
    ) -> None:
        """``ask_brokers`` answers the broker ids of ``GET /admin/v2/brokers``."""
        self._configured = {address for url in configured_urls if (address := address_of(url)) is not None}
        self._ask_brokers = ask_brokers
        self._store = store
        self._known = frozenset(self._configured)
        self._lock = threading.Lock()

    def knows(self, url: str) -> bool:
        """Whether the URL's host and port belong to a broker of this cluster."""
        address = address_of(url)
        if address is None:
            return False
        return address in self._known or address in self._gathered()

    def _gathered(self) -> frozenset[tuple[str, int]]:
        found = set(self._configured)
        for source in (self._registered, self._listed):
            try:
                urls = source()
            except SidecarError as error:
                # One source may be closed to this role; what the other says is as good, and less is only stricter.
                _LOGGER.warning("a list of brokers could not be read: %s", error)
            else:
                found.update(address for url in urls if (address := address_of(url)) is not None)
        with self._lock:
            self._known = frozenset(found)
            return self._known

    def _registered(self) -> list[str]:
        if self._store is None:
            return []
        return [url for broker in live_brokers(self._store) for url in broker.web_service_urls]

    def _listed(self) -> list[str]:
        return [f"http://{broker_id}" for broker_id in self._ask_brokers()]
