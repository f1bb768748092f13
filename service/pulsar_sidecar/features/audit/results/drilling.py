"""Findings of a report by tenant, namespace and topic, for readers who go down to each ledger.

Invariant: every row of the extract is below exactly one owner.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from pulsar_sidecar.features.audit.results.summaries import Count
from pulsar_sidecar.reports.audit_pages import NO_TENANT
from pulsar_sidecar.reports.formatting import Row

_LEVELS: Final = ("tenant", "namespace", "topic")


@dataclass(slots=True)
class OwnerBranch:
    """Owner with its counts, and the owners below it.

    Attributes:
        used: referenced ledgers, of the largest owners; ``unreferenced``: its unreferenced ledgers.
        below: owners of the next level, the most unreferenced bytes first.
        rows: rows of the branch itself, which only topics and owners without a next level have.
    """

    name: str
    used: Count
    unreferenced: Count
    is_topic: bool = False
    below: list["OwnerBranch"] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)


def owners_of(orphans: Sequence[Row], usage: Sequence[Row], level: int = 0) -> list[OwnerBranch]:
    """Return the owners of these rows of ``orphan_ledgers`` and ``ledger_usage``, from tenants down to topics."""
    found, used = _by(orphans, _LEVELS[level]), _by(usage, _LEVELS[level])
    names = dict.fromkeys((*found, *used))
    branches = [_branch(name, found.get(name, []), used.get(name, []), level) for name in names]
    return sorted(branches, key=lambda each: (-each.unreferenced.known_bytes, -each.used.known_bytes))


def _by(rows: Sequence[Row], column: str) -> dict[str | None, list[Row]]:
    groups: dict[str | None, list[Row]] = {}
    for row in rows:
        groups.setdefault(row[column], []).append(row)
    return groups


def _branch(name: str | None, found: list[Row], used: list[Row], level: int) -> OwnerBranch:
    branch = OwnerBranch(
        name or (NO_TENANT if level == 0 else f"(no {_LEVELS[level]})"),
        Count.sum(Count(row["ledgers"], row["bytes"], row["unknown_size_ledgers"]) for row in used),
        Count.sum(Count(1, row["length_bytes"], int(row["length_bytes"] is None)) for row in found),
    )
    if name is None or level + 1 == len(_LEVELS):
        branch.rows, branch.is_topic = found, name is not None
    else:
        branch.below = owners_of(found, used, level + 1)
    return branch
