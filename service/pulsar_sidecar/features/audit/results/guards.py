"""Guards over a whole audit: reasons to distrust its inputs, and limits on the number of deletions.

Invariant: inconsistent inputs raise an error, and stop the audit; a guard that does not pass leaves the
findings visible and withholds the plan.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pulsar_sidecar.features.audit.requests import HOUR_MS, AuditPolicy
from pulsar_sidecar.features.audit.results.summaries import (
    NO_TIERED_STORAGE,
    AuditSummary,
    Count,
    GuardResult,
    OffloadSummary,
    OffloadUse,
)
from pulsar_sidecar.features.audit.results.tables import OrphanStatus
from pulsar_sidecar.features.audit.sources.manifests import LEDGERS_LEFT_OUT, Manifest
from pulsar_sidecar.model.errors import InvalidInputError
from pulsar_sidecar.reports.documents import EXIT_CLEAN, EXIT_ERROR, EXIT_FINDINGS
from pulsar_sidecar.reports.formatting import format_count

LEAST_MIN_AGE_MS = 24 * HOUR_MS
"""Minimum age below which an explicit option is needed."""
LEAST_OVERLAP = 0.9
"""Smallest share of the listing's ledgers that the dump must have; the others were deleted in between."""
LEAST_REFERENCED = 0.5
"""Smallest share of the existing ledgers that must be referenced; below it, references are missing."""
MOST_MISSING = 1_000_000
"""Most references to missing ledgers; more of them mean wrong inputs."""
_FEW = 20
"""Smallest number that shows a trend."""

_DUMP_ALLOWS_DELETION = "dump-may-condemn"
"""Guard that fails if the user chose inputs that only nominate: no plan, but no error either."""
_EXCLUSIVE = "bookkeeper-exclusive-to-cluster"
"""Guard that fails unless the user has set the option; that is no error either."""
_CHOICES = (_DUMP_ALLOWS_DELETION, _EXCLUSIVE)
_BRAKES = ("share-of-ledgers", "share-of-bytes", "share-of-offloaded", "share-of-offloaded-bytes", _EXCLUSIVE)
"""Guards whose failure does not cast doubt on the findings."""


@dataclass(frozen=True, slots=True)
class AuditCounts:
    """Counts of an engine, as if every guard had passed.

    Attributes:
        listed: existing ledgers; ``in_dump`` are also among the dump's own, ``referenced`` also referenced.
        orphans_by: orphans by the columns ``standing``, ``kind``, ``cause`` and ``tenant``, and by ``age``.
        missing: references to ledgers that do not exist.
    """

    listed: int
    in_dump: int
    referenced: int
    usage_by_kind: Mapping[str, Count]
    usage_by_tenant: Mapping[str, Count]
    orphans_by: Mapping[str, Mapping[str, Count]]
    unattributed: Count
    missing: int
    offload: OffloadSummary = NO_TIERED_STORAGE

    @property
    def orphans(self) -> Count:
        return Count.sum(self.orphans_by["standing"].values())

    @property
    def deletable(self) -> Count:
        """Ledgers that a plan would hold."""
        return self.orphans_by["standing"].get(OrphanStatus.DELETABLE.value, Count())

    @property
    def usage(self) -> Count:
        return Count.sum(self.usage_by_kind.values())

    @property
    def existing(self) -> Count:
        """All ledgers of the listing, with the bytes of those whose size is known."""
        sizes = Count.sum((self.usage, self.orphans, self.unattributed))
        return Count.of(self.listed, sizes.bytes, sizes.unknown_size_ledgers)

    @property
    def references(self) -> int:
        """References to existing and missing ledgers."""
        return sum(count.ledgers for count in self.usage_by_kind.values()) + self.missing


@dataclass(frozen=True, slots=True)
class EarlierCounts:
    """Counts of the earlier audit that guards use."""

    summary: AuditSummary
    references: Mapping[str, int]


def demand_fitting(
    dump: Manifest,
    listing: Manifest,
    earlier: AuditSummary | None,
    policy: AuditPolicy,
    offloaded: Manifest | None = None,
) -> None:
    """Refuse inputs of different clusters or in the wrong order, and an unsafe policy (`InvalidInputError`)."""
    _demand_policy(policy)
    for each in (listing, *(() if offloaded is None else (offloaded,))):
        _demand_same_cluster(dump, each)
        _demand_order(dump, each)
    if dump.as_of is None:
        raise InvalidInputError("the dump has no store time, so ledger ages are unknown; take the dump again")
    if earlier is None:
        return
    if earlier.instance_id != dump.instance_id or earlier.ledgers_root != dump.ledgers_root:
        raise InvalidInputError(
            f"--previous is of the BookKeeper instance {earlier.instance_id}, not of {dump.instance_id}"
        )
    if earlier.store_time_ms > dump.as_of.store_time_ms:
        raise InvalidInputError("--previous is newer than this dump; name an earlier audit")


def demand_plausible(found: AuditCounts, dump: Manifest) -> None:
    """Refuse inputs that are empty or differ in their ledgers (`InvalidInputError`): an empty listing failed."""
    if not found.listed:
        raise InvalidInputError("the listing contains no ledgers; export it again")
    if not found.references:
        raise InvalidInputError("the dump contains no reference to a ledger; check its source, and take it again")
    if not found.referenced:
        raise InvalidInputError("the dump references no ledger of the listing; take both from the same cluster")
    demand_few_missing(found.missing)
    if LEDGERS_LEFT_OUT not in dump.left_out and found.in_dump < found.listed * LEAST_OVERLAP:
        raise InvalidInputError(
            f"the dump has only {found.in_dump} of {format_count(found.listed, 'listed ledger')}; take both from the "
            "same cluster, one right after the other"
        )


def demand_few_missing(missing: int) -> None:
    """Refuse a dump and a listing of different clusters: too many references are dangling (`InvalidInputError`)."""
    if missing > MOST_MISSING:
        raise InvalidInputError(
            f"there are {missing:,} references to ledgers that do not exist; take dump and listing from the "
            "same cluster"
        )


def guards(
    dump: Manifest, listing: Manifest, found: AuditCounts, earlier: EarlierCounts | None, policy: AuditPolicy
) -> tuple[GuardResult, ...]:
    reservations = dict.fromkeys((*dump.reservations, *listing.reservations))
    referenced = _share(found.referenced, found.listed)
    return (
        GuardResult(
            _DUMP_ALLOWS_DELETION,
            dump.allows_deletion and listing.allows_deletion,
            "; ".join(reservations) or "no reservation",
            "no reservation",
            "an audit of inputs that are known to be incomplete has no plan",
        ),
        GuardResult(
            _EXCLUSIVE,
            policy.bookkeeper_exclusive,
            "set" if policy.bookkeeper_exclusive else "not set",
            "set",
            "an audit cannot see the references of another Pulsar cluster on the same BookKeeper; if this "
            "BookKeeper serves only this cluster, audit again with --bookkeeper-exclusive-to-cluster",
        ),
        GuardResult(
            "nothing-left-out",
            not dump.left_out,
            ", ".join(dump.left_out) or "nothing",
            "nothing",
            "a ledger is judged only if the dump holds its node too",
        ),
        GuardResult(
            "referenced-share",
            referenced >= LEAST_REFERENCED,
            f"{referenced:.1%}",
            f"at least {LEAST_REFERENCED:.0%}",
            "if most ledgers are unreferenced, the dump lacks references",
        ),
        *(() if earlier is None else _against_earlier(found, earlier, policy)),
        _below_share("share-of-ledgers", found.deletable.ledgers, found.listed, policy),
        _below_share("share-of-bytes", found.deletable.known_bytes, found.existing.known_bytes, policy),
        *_of_tiered_storage(found.offload, None if earlier is None else earlier.summary.offload, policy),
    )


def trusted(summary: AuditSummary) -> bool:
    """Return True if later audits may rely on this one's findings: no guard casts doubt on them."""
    return all(guard.passed or guard.name in _BRAKES for guard in summary.guards)


def exit_code(summary: AuditSummary) -> int:
    """Return 0 for a clean audit, 2 for findings, 1 for a failed guard, unless the user chose it."""
    if any(not guard.passed and guard.name not in _CHOICES for guard in summary.guards):
        return EXIT_ERROR
    return EXIT_FINDINGS if summary.findings else EXIT_CLEAN


def _demand_policy(policy: AuditPolicy) -> None:
    if policy.min_age_ms < LEAST_MIN_AGE_MS and not policy.allow_young:
        raise InvalidInputError("--min-age-hours below 24 needs --allow-young: a broker may link a ledger late")
    for path in policy.foreign_subtrees:
        if not path.startswith("/") or not path.strip("/"):
            raise InvalidInputError(f"--foreign-subtree {path!r} is not the path of a subtree; write it as /hbase")
    if min(policy.min_age_ms, policy.look_window_ms) < 0:
        raise InvalidInputError("--min-age-hours and --look-window-hours must not be negative")
    if not (0 <= policy.max_share <= 1 and 0 <= policy.max_shrink <= 1):
        raise InvalidInputError("--max-share and --max-shrink must be between 0 and 1")


def _demand_same_cluster(dump: Manifest, listing: Manifest) -> None:
    if listing.instance_id != dump.instance_id:
        raise InvalidInputError(
            f"the dump is of the BookKeeper instance {dump.instance_id}, the listing of {listing.instance_id}"
        )
    if listing.ledgers_root != dump.ledgers_root:
        raise InvalidInputError(f"the dump's ledgers are at {dump.ledgers_root}, the listing's {listing.ledgers_root}")


def _demand_order(dump: Manifest, listing: Manifest) -> None:
    first, last = dump.zxids.first, listing.zxids.last
    if last is None:
        raise InvalidInputError("the listing does not record the zxid at its end; take both inputs again")
    if first < last:
        raise InvalidInputError(
            f"the dump (from zxid {first:#x}) is not later than the listing (to {last:#x}): list first, dump second"
        )


def _against_earlier(found: AuditCounts, earlier: EarlierCounts, policy: AuditPolicy) -> list[GuardResult]:
    before = earlier.summary
    gone = sorted(
        kind
        for kind, count in earlier.references.items()
        if count >= _FEW and not found.usage_by_kind.get(kind, Count()).ledgers
    )
    return [
        _not_shrunken("listing-not-shrunken", "ledgers", found.listed, before.existing.ledgers, policy),
        _not_shrunken("references-not-shrunken", "references", found.references, before.references, policy),
        GuardResult(
            "kinds-still-referenced",
            not gone,
            ", ".join(gone) or "none gone",
            "none gone",
            f"a kind of which {_FEW} ledgers or more were referenced does not disappear between two audits",
        ),
    ]


def _of_tiered_storage(
    found: OffloadSummary, earlier: OffloadSummary | None, policy: AuditPolicy
) -> Iterator[GuardResult]:
    if not found.locations:
        return
    deletable = found.standings.get(OrphanStatus.DELETABLE.value, Count())
    copies = Count.sum(found.uses.get(use.value, Count()) for use in (OffloadUse.REFERENCED, OffloadUse.UNREFERENCED))
    yield _below_share("share-of-offloaded", deletable.ledgers, copies.ledgers, policy)
    yield _below_share("share-of-offloaded-bytes", deletable.known_bytes, copies.known_bytes, policy)
    if earlier is not None and set(earlier.locations) <= set(found.locations):
        yield _not_shrunken("offloaded-not-shrunken", "offloaded objects", found.objects, earlier.objects, policy)


def _not_shrunken(name: str, what: str, now: int, before: int, policy: AuditPolicy) -> GuardResult:
    passed = before < _FEW or now >= before * (1 - policy.max_shrink)
    explanation = f"far fewer {what} than in the earlier audit may be the result of a truncated answer"
    return GuardResult(name, passed, f"{now} after {before}", f"at least {1 - policy.max_shrink:.0%}", explanation)


def _below_share(name: str, part: int, whole: int, policy: AuditPolicy) -> GuardResult:
    share = _share(part, whole)
    explanation = "no plan is larger than this; raise --max-share if the number is right"
    return GuardResult(name, share <= policy.max_share, f"{share:.1%}", f"at most {policy.max_share:.1%}", explanation)


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
