"""A listing of ledgers over the bookies' HTTP API: another way than the metadata store's nodes, through other code.

A bookie answers all ids at once and proves nothing. So it is asked twice, two different bookies where two are known,
and every ledger that only one answer has is looked at by itself.

Invariant: a ledger that exists through both listings is in the result, or the listing fails.
"""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice

import pyarrow as pa

from pulsar_sidecar.adapters.bookkeeper.bookie_http import BookieHttp
from pulsar_sidecar.audit.ports import ReadResult
from pulsar_sidecar.audit.results.tables import LEDGERS
from pulsar_sidecar.audit.sources.manifests import OrderRange, Proof, Source, SourceKind
from pulsar_sidecar.model.clocks import Clock, Pace
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.ids import LedgerId

_TRIES = 3
_MAX_DIFFERENCES = 10_000
_BATCH_LEDGERS = 32_768
_TOO_LATE_MS = 2**63
_NO_METADATA = "no bookie answers with its metadata, and it is still listed"


class BookieListing:
    """`audit.ports.LedgerSource` over `BookieHttp`."""

    def __init__(
        self, base_urls: Sequence[str], clock: Clock, *, with_metadata: bool, ledgers_per_second: float | None
    ) -> None:
        self.source = Source(SourceKind.BOOKIE_HTTP, ",".join(base_urls))
        # Each asks its first bookie as long as that one answers.
        self._first = BookieHttp(base_urls)
        self._second = BookieHttp([*base_urls[1:], base_urls[0]])
        self._with_metadata = with_metadata
        self._pace = Pace(clock, ledgers_per_second)
        self._checks: Counter[str] = Counter()

    def instance_id(self) -> None:
        """Bookies do not report it over HTTP."""
        return

    def batches(self) -> Iterator[pa.RecordBatch]:
        ids = iter(sorted(self._agreed()))
        missing: list[LedgerId] = []
        while some := list(islice(ids, _BATCH_LEDGERS)):
            yield _rows(self._described(some, missing) if self._with_metadata else [{"ledger_id": id_} for id_ in some])
        if missing:
            # Gone, or not readable? A new listing decides.
            there = frozenset(self._first.ledger_ids())
            left = [ledger_id for ledger_id in missing if ledger_id in there]
            self._checks["goneMeanwhile"] += len(missing) - len(left)
            yield _rows([{"ledger_id": ledger_id, "unreadable": _NO_METADATA} for ledger_id in left])

    def ending(self) -> ReadResult:
        """The proof by two listings; bookies know no zxid."""
        proof = Proof("first listing of all ids", "second listing of all ids agrees", dict(self._checks))
        return ReadResult(OrderRange(None, None), proof)

    def close(self) -> None:
        """Close the connections; idempotent."""
        self._first.close()
        self._second.close()

    def _agreed(self) -> set[LedgerId]:
        contradictions: list[LedgerId] = []
        for _ in range(_TRIES):
            first, second = set(self._first.ledger_ids()), set(self._second.ledger_ids())
            if not first:
                raise TemporaryError("the bookies list no ledger, and an empty listing is a failed listing")
            contradictions = self._contradictions(first, second)
            if not contradictions:
                self._checks["idsInBothListings"] = len(first & second)
                return first & second | {ledger_id for ledger_id in second if ledger_id > max(first)}
        raise TemporaryError(
            f"two listings contradict each other, {_TRIES} times: ledger {contradictions[0]} and "
            f"{len(contradictions) - 1} more exist and are in one only; ask again, or name other bookies"
        )

    def _contradictions(self, first: set[LedgerId], second: set[LedgerId]) -> list[LedgerId]:
        """Ledgers that exist and should have been in both."""
        newest = max(first)
        # A higher id than all in the first listing was created since.
        in_one_only = [ledger_id for ledger_id in first ^ second if ledger_id <= newest]
        if len(in_one_only) > _MAX_DIFFERENCES:
            return in_one_only
        self._checks["lookedAtSingly"] += len(in_one_only)
        asked = (self._first, self._second)
        return [id_ for id_ in in_one_only if any(bookie.ledger_metadata(id_) is not None for bookie in asked)]

    def _described(self, ids: Sequence[LedgerId], missing: list[LedgerId]) -> list[dict[str, object]]:
        rows: list[dict[str, object]] = []
        for ledger_id in ids:
            text = self._first.ledger_metadata(ledger_id)
            if text is None:
                missing.append(ledger_id)
            else:
                rows.append({"ledger_id": ledger_id, "metadata_json": text, "ctime_ms": _ctime_ms(ledger_id, text)})
            self._pace.after(1)
        return rows


def _rows(rows: list[dict[str, object]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, schema=LEDGERS)


def _ctime_ms(ledger_id: LedgerId, text: str) -> int | None:
    """The creation time, which is the node's; absent for a bookie that does not know it.

    Raises:
        TemporaryError: this is not the metadata of that ledger.
    """
    try:
        ctime_ms = json.loads(text)[str(ledger_id)]["ctime"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise TemporaryError(f"a bookie's answer about ledger {ledger_id} is not its metadata; try again") from error
    return ctime_ms if isinstance(ctime_ms, int) and 0 < ctime_ms < _TOO_LATE_MS else None
