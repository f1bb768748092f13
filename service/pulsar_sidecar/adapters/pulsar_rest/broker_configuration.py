"""Brokers' reports of their configuration: settings, and whether they use the same metadata as the sidecar.

A sidecar beside another cluster's brokers must not delete what these brokers do not know.
"""

from collections.abc import Mapping

from pulsar_sidecar.adapters.metadata_stores import store_address
from pulsar_sidecar.adapters.pulsar_rest.admin_rest import BROKERS_PATH, VERSION_PATH, AdminRest
from pulsar_sidecar.model.errors import InvalidInputError, TemporaryError
from pulsar_sidecar.model.metadata import MetadataStore
from pulsar_sidecar.model.metadata_stores import unsupported_store

RUNTIME_CONFIGURATION = "/admin/v2/brokers/configuration/runtime"


def broker_version(rest: AdminRest, web_service_url: str | None = None) -> str | None:
    """Return a broker's version of Pulsar (without a URL: any broker's); None if the response is not a string."""
    version = rest.get(VERSION_PATH) if web_service_url is None else rest.get_exactly(web_service_url, VERSION_PATH)
    return version if isinstance(version, str) and version else None


class RuntimeConfiguration:
    """A broker's present settings (``GET /admin/v2/brokers/configuration/runtime``), all of them strings."""

    def __init__(self, document: object) -> None:
        if not isinstance(document, dict):
            raise TemporaryError("a broker returned no runtime configuration; try again")
        self.settings: Mapping[str, object] = document

    @classmethod
    def of(cls, rest: AdminRest, web_service_url: str | None = None) -> "RuntimeConfiguration":
        return cls(
            rest.get(RUNTIME_CONFIGURATION)
            if web_service_url is None
            else rest.get_exactly(web_service_url, RUNTIME_CONFIGURATION)
        )

    def text(self, name: str) -> str | None:
        """Return the setting; None if unknown to the broker."""
        value = self.settings.get(name)
        return None if value is None else str(value)

    def flag(self, name: str, *, default: bool = False) -> bool:
        text = self.text(name)
        return default if text is None else text.lower() == "true"

    def number(self, name: str, default: int | None = None) -> int:
        """Return the setting as a number; raise `TemporaryError` if it is none and there is no default."""
        text = self.text(name) or ""
        if text.removeprefix("-").isdigit():
            return int(text)
        if default is None:
            raise TemporaryError(f"a broker's configuration lacks the number {name}; try again")
        return default


class AdminBrokersMetadata:
    """Comparison of the brokers' metadata URLs with the sidecar's own."""

    def __init__(self, rest: AdminRest, store: MetadataStore, metadata_store_url: str, ledgers_root: str) -> None:
        self._rest = rest
        self._store = store
        self._own = store_address(metadata_store_url)
        self._ledgers = f"{self._own.chroot}{ledgers_root}"

    def mismatch(self) -> str | None:
        document = self._rest.get("/admin/v2/brokers/internal-configuration")
        theirs = document.get("metadataStoreUrl") if isinstance(document, dict) else None
        if not isinstance(document, dict) or not isinstance(theirs, str):
            raise TemporaryError("the brokers' internal-configuration has no metadataStoreUrl; try again")
        return self._store_differs(theirs) or self._ledgers_differ(document)

    def _store_differs(self, url: str) -> str | None:
        difference = f"the brokers' metadataStoreUrl is {url!r}, the sidecar's is {self._own.text}"
        cure = "set metadataStoreUrl and webServiceUrl to the same cluster's"
        try:
            theirs = store_address(url)
        except InvalidInputError:
            return f"{difference}; {unsupported_store(url) or cure}"
        if (theirs.product, theirs.chroot) == (self._own.product, self._own.chroot):
            same_servers = not set(theirs.servers).isdisjoint(self._own.servers)
            if same_servers or self._registered_here():
                return None
        return f"{difference}; {cure}"

    def _ledgers_differ(self, document: Mapping[str, object]) -> str | None:
        """Compare the ledgers' paths in the same store; without its own URI, BookKeeper uses the root path there."""
        uri, root = document.get("bookkeeperMetadataServiceUri"), document.get("ledgersRootPath")
        if isinstance(uri, str) and uri:
            setting, path = f"bookkeeperMetadataServiceUri is {uri!r}", _path_of(uri)
        elif isinstance(root, str) and root:
            setting, path = f"ledgersRootPath is {root!r}", self._own.chroot + root
        else:
            return None
        if path.rstrip("/") == self._ledgers:
            return None
        return (
            f"the brokers' {setting}, the sidecar's ledgers are at {self._ledgers}; "
            "set metadataStoreUrl and ledgersRootPath to where BookKeeper's ledgers are"
        )

    def _registered_here(self) -> bool:
        """Return True if one of these brokers is registered in the sidecar's own store, whatever that store's name."""
        brokers = self._rest.get("/admin/v2/brokers")
        here = frozenset(self._store.children(BROKERS_PATH) or ())
        return isinstance(brokers, list) and any(broker in here for broker in brokers)


def _path_of(uri: str) -> str:
    """Return the path in ``metadata-store:zk:host:port/path``, ``zk+hierarchical://host:port/path`` and the like."""
    servers_and_path = uri.rpartition("//")[2].rpartition(":zk:")[2]
    return "/" + servers_and_path.partition("/")[2]
