"""Choice of the audits, dumps and listings that may be removed, with the reasons why the others stay.

Invariant: the newest of each kind stays, and so do the inputs of an audit that stays: its dump, its listing and its
earlier audit.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pulsar_sidecar.reports.formatting import format_age


@dataclass(frozen=True, slots=True)
class ArchivedDirectory:
    """Complete directory of an audit, a dump or a listing, as of a time.

    ``sha256`` is the digest of its summary or manifest, by which an audit names it, ``cluster`` an instance id, and
    ``kind`` either ``audit`` or a `audit.sources.manifests.InputKind`.
    """

    path: Path
    kind: str
    cluster: str
    sha256: str
    time_ms: int
    input_digests: frozenset[str] = field(default=frozenset())


def reasons_to_keep(
    archived: Sequence[ArchivedDirectory], keep: int, older_than_ms: int, now_ms: int
) -> dict[Path, str | None]:
    """Return the reason why each directory stays, or None for one that may be removed."""
    reasons: dict[Path, str | None] = {}
    groups: defaultdict[tuple[str, str], list[ArchivedDirectory]] = defaultdict(list)
    for each in archived:
        groups[each.kind, each.cluster].append(each)
    for group in groups.values():
        newest_first = sorted(group, key=lambda each: (each.time_ms, str(each.path)), reverse=True)
        for place, each in enumerate(newest_first):
            reasons[each.path] = _reason(each, place, keep, older_than_ms, now_ms)
    named = {digest: each for each in archived if reasons[each.path] is not None for digest in each.input_digests}
    for each in archived:
        if reasons[each.path] is None and each.sha256 in named:
            reasons[each.path] = f"{named[each.sha256].path.name} used it as input"
    return reasons


def _reason(each: ArchivedDirectory, place: int, keep: int, older_than_ms: int, now_ms: int) -> str | None:
    if place == 0:
        return f"the newest {each.kind}"
    if place < keep:
        return f"among the newest {keep} of its kind"
    age_ms = now_ms - each.time_ms
    return None if age_ms > older_than_ms else f"only {format_age(max(age_ms, 0))} old"
