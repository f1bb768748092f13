"""Findings of a report by tenant, namespace and topic, so that a reader goes down to each ledger.

Invariant: every row of the extract stands below exactly one owner.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pulsar_sidecar.analysis.audit_pages import NO_TENANT, sum_of
from pulsar_sidecar.analysis.formatting import Row

_LEVELS: Final = ("tenant", "namespace", "topic")


@dataclass(slots=True)
class OwnerBranch:
    """An owner with what it has, and the owners below it.

    Attributes:
        used: ledgers that are referenced, of the largest owners; ``unreferenced`` those that are not.
        below: the owners of the next level, the most unreferenced bytes first.
        rows: of the branch itself: topics have them, and owners without a next level.
    """

    name: str
    used: dict[str, Any]
    unreferenced: dict[str, Any]
    is_topic: bool = False
    below: list["OwnerBranch"] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)


def owners_of(orphans: Sequence[Row], usage: Sequence[Row], level: int = 0) -> list[OwnerBranch]:
    """The owners of these rows of ``orphan_ledgers`` and ``ledger_usage``, from tenants down to topics."""
    found, used = _by(orphans, _LEVELS[level]), _by(usage, _LEVELS[level])
    names = dict.fromkeys((*found, *used))
    branches = [_branch(name, found.get(name, []), used.get(name, []), level) for name in names]
    return sorted(branches, key=lambda each: (-(each.unreferenced["bytes"] or 0), -(each.used["bytes"] or 0)))


def _by(rows: Sequence[Row], column: str) -> dict[str | None, list[Row]]:
    groups: dict[str | None, list[Row]] = {}
    for row in rows:
        groups.setdefault(row[column], []).append(row)
    return groups


def _branch(name: str | None, found: list[Row], used: list[Row], level: int) -> OwnerBranch:
    branch = OwnerBranch(
        name or (NO_TENANT if level == 0 else f"(no {_LEVELS[level]})"),
        sum_of([_count(row["ledgers"], row["bytes"], row["unknown_size_ledgers"]) for row in used]),
        sum_of([_count(1, row["length_bytes"], int(row["length_bytes"] is None)) for row in found]),
    )
    if name is None or level + 1 == len(_LEVELS):
        branch.rows, branch.is_topic = found, name is not None
    else:
        branch.below = owners_of(found, used, level + 1)
    return branch


def _count(ledgers: int, known_bytes: int | None, unknown: int) -> dict[str, Any]:
    return {"ledgers": ledgers, "bytes": known_bytes, "unknownSizeLedgers": unknown}
