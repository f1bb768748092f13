"""The guards over a whole audit: reasons not to trust its inputs, and a brake on how much may be deleted.

Invariant: inputs that contradict each other raise, and nothing is made of them; a guard that does not pass leaves the
findings to be looked at and withholds the plan.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from pulsar_sidecar.analysis.documents import EXIT_CLEAN, EXIT_ERROR, EXIT_FINDINGS
from pulsar_sidecar.analysis.formatting import format_count
from pulsar_sidecar.audit.requests import HOUR_MS, AuditPolicy
from pulsar_sidecar.audit.results.summaries import AuditSummary, Count, GuardResult
from pulsar_sidecar.audit.results.tables import OrphanStatus
from pulsar_sidecar.audit.sources.manifests import LEDGERS_LEFT_OUT, Manifest
from pulsar_sidecar.model.errors import InvalidInputError

LEAST_MIN_AGE_MS = 24 * HOUR_MS
"""A lower minimum age needs an explicit option."""
LEAST_OVERLAP = 0.9
"""Of a listing's ledgers, so many must be in the dump: the others were deleted in between."""
LEAST_REFERENCED = 0.5
"""Of the ledgers that exist, so many must be referenced: else references are missing rather than ledgers left over."""
MOST_MISSING = 1_000_000
"""More references to ledgers that do not exist are not a finding but wrong inputs."""
_FEW = 20
"""Numbers below this show no trend."""

_DUMP_ALLOWS_DELETION = "dump-may-condemn"
"""The user chose inputs that only nominate: no plan, but no error either."""
_EXCLUSIVE = "bookkeeper-exclusive-to-cluster"
"""Whether the user has set it; that it is not set is not an error either."""
_CHOICES = (_DUMP_ALLOWS_DELETION, _EXCLUSIVE)
_BRAKES = ("share-of-ledgers", "share-of-bytes", _EXCLUSIVE)
"""Their failure does not make what was seen doubtful."""


@dataclass(frozen=True, slots=True)
class AuditCounts:
    """What an engine counted, as if every guard had passed.

    Attributes:
        listed: existing ledgers; ``in_dump`` of them are among the dump's own ledgers, ``referenced`` of them are
            referenced.
        usage_by_kind: existing ledgers that are referenced; ``usage_by_tenant`` the same by tenant.
        orphans_by: by the column ``standing``, ``kind``, ``cause``, ``tenant`` and by ``age``.
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

    @property
    def orphans(self) -> Count:
        return Count.sum(self.orphans_by["standing"].values())

    @property
    def deletable(self) -> Count:
        """Those that a plan would hold."""
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
        """To existing and missing ledgers."""
        return sum(count.ledgers for count in self.usage_by_kind.values()) + self.missing


@dataclass(frozen=True, slots=True)
class EarlierCounts:
    """The earlier audit, as far as guards use it."""

    summary: AuditSummary
    references: Mapping[str, int]


def demand_fitting(dump: Manifest, listing: Manifest, earlier: AuditSummary | None, policy: AuditPolicy) -> None:
    """Refuse inputs of different clusters or in the wrong order, and an unsafe policy (`InvalidInputError`)."""
    _demand_policy(policy)
    _demand_same_cluster(dump, listing)
    _demand_order(dump, listing)
    if dump.as_of is None:
        raise InvalidInputError("the dump has no store time, so ledger ages are unknown; make the dump again")
    if earlier is None:
        return
    if earlier.instance_id != dump.instance_id or earlier.ledgers_root != dump.ledgers_root:
        raise InvalidInputError(
            f"--previous is of the BookKeeper instance {earlier.instance_id}, not of {dump.instance_id}"
        )
    if earlier.store_time_ms > dump.as_of.store_time_ms:
        raise InvalidInputError("--previous is newer than this dump; name an earlier audit")


def demand_plausible(found: AuditCounts, dump: Manifest) -> None:
    """Refuse a side that is empty, and sides that know different ledgers: an empty answer is a failed answer.

    Raises:
        InvalidInputError: nothing exists, nothing is referenced, or the two sides know different ledgers.
    """
    if not found.listed:
        raise InvalidInputError("the listing contains no ledgers; make it again")
    if not found.references:
        raise InvalidInputError("the dump contains no reference to a ledger; check its source, and make it again")
    if not found.referenced:
        raise InvalidInputError("the dump references no ledger of the listing; make both from the same cluster")
    demand_few_missing(found.missing)
    if LEDGERS_LEFT_OUT not in dump.left_out and found.in_dump < found.listed * LEAST_OVERLAP:
        raise InvalidInputError(
            f"the dump has only {found.in_dump} of {format_count(found.listed, 'listed ledger')}; make both from the "
            "same cluster, one right after the other"
        )


def demand_few_missing(missing: int) -> None:
    """Refuse inputs of which one cannot be about the other.

    Raises:
        InvalidInputError: too many references lead nowhere.
    """
    if missing > MOST_MISSING:
        raise InvalidInputError(
            f"there are {missing:,} references to ledgers that do not exist; make dump and listing from the "
            "same cluster"
        )


def guards(
    dump: Manifest, listing: Manifest, found: AuditCounts, earlier: EarlierCounts | None, policy: AuditPolicy
) -> tuple[GuardResult, ...]:
    """Every guard, passed or not."""
    reservations = (*dump.reservations, *listing.reservations)
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
    )


def trusted(summary: AuditSummary) -> bool:
    """Whether an audit's findings count as a look: nothing was held against what it saw."""
    return all(guard.passed or guard.name in _BRAKES for guard in summary.guards)


def exit_code(summary: AuditSummary) -> int:
    """0 clean, 2 findings, 1 a guard that did not pass, unless it is one that the user has chosen."""
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
    if dump.instance_id is None:
        raise InvalidInputError("the dump has no BookKeeper instance id; make it again")
    if listing.instance_id is not None and listing.instance_id != dump.instance_id:
        raise InvalidInputError(
            f"the dump is of the BookKeeper instance {dump.instance_id}, the listing of {listing.instance_id}"
        )
    if listing.instance_id is not None and listing.ledgers_root != dump.ledgers_root:
        raise InvalidInputError(f"the dump's ledgers are at {dump.ledgers_root}, the listing's {listing.ledgers_root}")


def _demand_order(dump: Manifest, listing: Manifest) -> None:
    first, last = dump.zxids.first, listing.zxids.last
    if first is not None and last is not None:
        if first < last:
            raise InvalidInputError(
                f"the dump (from zxid {first:#x}) is not later than the listing (to {last:#x}): list first, dump second"
            )
    elif dump.machine_times[0] < listing.machine_times[1]:
        # Bookies report no order of changes. The machine's clock is good enough here: what is too young for it to
        # matter is protected by the age floor, by the store's clock.
        raise InvalidInputError("the dump started before the listing ended: list first, dump second")


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
