"""Name of a bucket: the cursor property that points to its ledger (``Bucket.bucketKey``)."""

from typing import NamedTuple, Self

from pulsar_sidecar.model.errors import UndecodableError
from pulsar_sidecar.model.ids import LedgerId, parse_ledger_id
from pulsar_sidecar.ownership.references import DELAYED_BUCKET_KEY_PREFIX

_SEPARATOR = "_"
_PARTS = 3
_REMEDY = "check the topic with `delayed-index fsck`"


class BucketKey(NamedTuple):
    """Ledgers that a bucket covers, from the first to the last, both inclusive."""

    start: LedgerId
    end: LedgerId

    def __str__(self) -> str:
        return _SEPARATOR.join((DELAYED_BUCKET_KEY_PREFIX, str(self.start), str(self.end)))

    def __contains__(self, ledger_id: object) -> bool:
        return isinstance(ledger_id, int) and self.start <= ledger_id <= self.end

    def overlaps(self, other: "BucketKey") -> bool:
        """Return True if the buckets share at least one ledger."""
        return self.start <= other.end and other.start <= self.end

    @classmethod
    def parse(cls, name: str) -> Self:
        """Parse the name of a cursor property.

        Raises:
            UndecodableError: a broker would not recover the bucket either (it requires exactly three parts).
        """
        parts = name.split(_SEPARATOR)
        if len(parts) != _PARTS or parts[0] != DELAYED_BUCKET_KEY_PREFIX:
            raise UndecodableError(f"{name!r:.120} does not name a bucket; {_REMEDY}")
        start, end = (_ledger_id(part, name) for part in parts[1:])
        if start > end:
            raise UndecodableError(f"{name!r:.120} ends before it begins; {_REMEDY}")
        return cls(start, end)


def _ledger_id(text: str, name: str) -> LedgerId:
    ledger_id = parse_ledger_id(text)
    if ledger_id is None:
        raise UndecodableError(f"{name!r:.120} has {text!r:.40} instead of a ledger id; {_REMEDY}")
    return ledger_id
