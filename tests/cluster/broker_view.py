"""Existing and used ledgers by the reports of brokers and bookies: an oracle without the product's decoders.

Brokers report managed ledgers, cursors, compacted ledgers and schemas. They do not report two kinds: delayed buckets,
which cursors' nodes name as text, and DistributedLog's records, which are text.

Invariant: a failed request is a failure, never a missing reference; an object deleted during the request does not exist
afterwards either.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import quote, quote_plus, unquote_plus

import requests
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError
from pulsar_sidecar.features.audit.results.tables import OrphanCause
from pulsar_sidecar.local_cluster.state import ClusterAddresses
from pulsar_sidecar.ownership.claims import LedgerKind

from tests.cluster.patience import OPERATION_SECONDS, until

_THREADS = 6
_MANAGED_LEDGERS = "/managed-ledgers"
_V2_DOMAIN, _V1_DOMAIN = 2, 3
_BUCKET = re.compile(rb"#pulsar\.internal\.delayed\.bucket_\d+_\d+\x12(.)(\d+)", re.DOTALL)
_SEGMENT = re.compile(r"/(?:logrecs|inprogress)_\d+$")
_LOGS = ("/pulsar", "/stream")
_INTERNAL = re.compile(r"__transaction_log_\d+$|__transaction_pending_ack$")
"""Managed ledgers that are no topics: brokers do not report their live state, and their nodes hold everything."""


class BrokerView:
    """View of a cluster without a cache; requests load topics."""

    def __init__(self, addresses: ClusterAddresses) -> None:
        self._urls = addresses.web_service_urls
        self._bookies = addresses.bookie_http_urls
        self._kazoo = KazooClient(addresses.metadata_store_url.removeprefix("zk:"))
        self._kazoo.start()
        self._session = requests.Session()

    def close(self) -> None:
        self._session.close()
        self._kazoo.stop()
        self._kazoo.close()

    def existing(self) -> frozenset[int]:
        """Return all ledgers of BookKeeper, as a bookie reports them."""
        answer = self._session.get(f"{self._bookies[0]}/api/v1/ledger/list", timeout=OPERATION_SECONDS)
        answer.raise_for_status()
        return frozenset(map(int, answer.json()))

    def references(self) -> dict[int, set[str]]:
        """Return the users of each used ledger."""
        found: dict[int, set[str]] = defaultdict(set)
        with ThreadPoolExecutor(_THREADS) as pool:
            for whose, ledger_ids in pool.map(lambda work: work(), self._questions()):
                for ledger_id in ledger_ids:
                    found[ledger_id].add(whose)
        return found

    def unreferenced(self) -> frozenset[int]:
        """Return unused ledgers that exist before and after the requests for references."""
        before = self.existing()
        return (before & self.existing()) - self.references().keys()

    def custom_metadata(self, ledger_ids: Iterable[int]) -> dict[int, bytes]:
        """Return the raw nodes of ledgers, which contain Pulsar's custom metadata as text."""
        return {each: self._data(_ledger_node(each)) for each in ledger_ids}

    def causes(self, kind: LedgerKind, row: Mapping[str, Any]) -> frozenset[OrphanCause]:
        """Return possible causes of an orphan (a row of an audit), from brokers' knowledge of its owner."""
        if kind is LedgerKind.SCHEMA:
            is_there = self._kazoo.exists(f"/schemas/{row['schema_id']}") is not None
            return frozenset({OrphanCause.SCHEMA_RACE if is_there else OrphanCause.HALF_DELETED_TOPIC})
        path = f"{_MANAGED_LEDGERS}/{row['managed_ledger']}"
        if self._kazoo.exists(path) is None:
            return frozenset({OrphanCause.HALF_DELETED_TOPIC})
        if kind is LedgerKind.COMPACTED:
            return frozenset({OrphanCause.FAILED_COMPACTION})
        if kind is LedgerKind.DATA:
            first = min(self._data_ledgers(path), default=0)
            is_older = row["ledger_id"] < first
            return frozenset({OrphanCause.INTERRUPTED_TRIM if is_older else OrphanCause.FAILED_ROLLOVER})
        if quote_plus(row["cursor_name"], safe="*") not in self._children(path):
            return frozenset({OrphanCause.HALF_DELETED_CURSOR})
        is_bucket = kind is LedgerKind.DELAYED_INDEX_BUCKET
        return frozenset({OrphanCause.LOST_BUCKET_POINTER if is_bucket else OrphanCause.FAILED_CURSOR_SWITCH})

    # --- requests to make ------------------------------------------------------------------------------------------

    def _questions(self) -> Iterator[Callable[[], tuple[str, set[int]]]]:
        for path in self._managed_ledgers():
            yield lambda path=path: (path, self._of_managed_ledger(path))
        for path in self._below("/schemas", 3):
            yield lambda path=path: (path, self._of_schema(path))
        for root in _LOGS:
            yield lambda root=root: (root, self._of_logs(root))

    def _managed_ledgers(self) -> Iterator[str]:
        for depth, at in ((4, _V2_DOMAIN), (5, _V1_DOMAIN)):
            for path in self._below(_MANAGED_LEDGERS, depth):
                if path.removeprefix(f"{_MANAGED_LEDGERS}/").split("/")[at] == "persistent":
                    yield path

    def _below(self, root: str, depth: int) -> Iterator[str]:
        paths = [root]
        for _ in range(depth):
            paths = [f"{path}/{child}" for path in paths for child in self._children(path)]
        yield from paths

    def _of_managed_ledger(self, path: str) -> set[int]:
        verbs = ("internal-info",) if _INTERNAL.search(path) else ("internal-info", "internalStats")
        documents = [self._ask(path, f"{_request(path)}/{verb}") for verb in verbs]
        return set().union(*(_ledgers_in(document) for document in documents)) | self._buckets(path)

    def _data_ledgers(self, path: str) -> set[int]:
        return {each["ledgerId"] for each in self._ask(path, f"{_request(path)}/internal-info").get("ledgers", ())}

    def _of_schema(self, path: str) -> set[int]:
        tenant, namespace, topic = path.removeprefix("/schemas/").split("/")
        name = quote(unquote_plus(topic), safe="")
        document = self._ask(path, f"/admin/v2/schemas/{tenant}/{namespace}/{name}/metadata")
        entries = [document["info"], *document["index"]] if document else []
        return {entry["ledgerId"] for entry in entries if entry["ledgerId"] >= 0}

    def _buckets(self, path: str) -> set[int]:
        nodes = [self._data(f"{path}/{cursor}") for cursor in self._children(path)]
        return {int(digits[: size[0]]) for node in nodes for size, digits in _BUCKET.findall(node)}

    def _of_logs(self, root: str) -> set[int]:
        found: set[int] = set()
        for path in self._walk(root):
            if _SEGMENT.search(path):
                found.add(int(self._data(path).split(b";")[1]))
            elif path.endswith("/allocation") and self._data(path):
                found.add(int(self._data(path)))
        return found

    # --- requests --------------------------------------------------------------------------------------------------

    def _ask(self, path: str, request: str) -> Any:
        """Return the response's document; None if the object is gone, by the metadata store."""

        def ask() -> Any:
            try:
                answer = self._session.get(f"{self._urls[0]}{request}", timeout=OPERATION_SECONDS)
            except requests.ConnectionError:
                return None
            if answer.ok and answer.content:
                return answer.json()
            return {} if self._kazoo.exists(path) is None else None

        return until(lambda: [each] if (each := ask()) is not None else None, f"an answer to {request}")[0]

    def _children(self, path: str) -> list[str]:
        try:
            return list(self._kazoo.get_children(path))
        except NoNodeError:
            return []

    def _data(self, path: str) -> bytes:
        try:
            return bytes(self._kazoo.get(path)[0])
        except NoNodeError:
            return b""

    def _walk(self, path: str) -> Iterator[str]:
        yield path
        for child in self._children(path):
            yield from self._walk(f"{path}/{child}")


def _request(path: str) -> str:
    """Return the prefix of the admin API's calls on a managed ledger; V1 names are below another root."""
    parts = path.removeprefix(f"{_MANAGED_LEDGERS}/").split("/")
    root = "/admin/v2" if len(parts) == _V2_DOMAIN + 2 else "/admin"
    return f"{root}/persistent/{'/'.join(parts[:-2])}/{quote(unquote_plus(parts[-1]), safe='')}"


def _ledger_node(ledger_id: int) -> str:
    """Return the node of a ledger with an id below 2^31."""
    digits = f"{ledger_id:010d}"
    return f"/ledgers/{digits[:2]}/{digits[2:6]}/L{digits[6:]}"


def _ledgers_in(document: Any) -> set[int]:
    """Return all ledgers that ``internal-info`` or ``internalStats`` names."""
    listed = [each["ledgerId"] for each in (*document.get("ledgers", ()), *document.get("schemaLedgers", ()))]
    compacted = document.get("compactedLedger", {}).get("ledgerId", -1)
    cursors = document.get("cursors", {}).values()
    of_cursors = [each.get("cursorsLedgerId", each.get("cursorLedger", -1)) for each in cursors]
    named = [each.get("properties", {}).get("CompactedTopicLedger", -1) for each in cursors]
    return {each for each in (*listed, compacted, *of_cursors, *named) if each >= 0}
