"""Counts of fault tests: one line for each test, over all its rounds.

The file that `Tally.save` writes is what ``docs/reliability.md`` is made from (`tests.faults.report`).
"""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.cluster.oracles import FINAL, Outcome


@dataclass(slots=True)
class Line:
    """Counts of a test.

    Attributes:
        rounds: how often it was begun; ``skipped`` names the reason when it could not be.
        faults: how often each kind of fault was injected.
        accepted: ledgers that a sidecar had accepted a record of.
        outcomes: how their records ended, by decision and reason.
        violations: how rounds failed, each with the command that replays it.
    """

    rounds: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    accepted: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    skipped: str | None = None

    def fault(self, kind: str, count: int = 1) -> None:
        """Count faults of a kind; a test may count several kinds."""
        self.faults[kind] += count

    def ended(self, accepted: int, outcomes: Iterable[Outcome]) -> None:
        """Count a round that passed its oracles."""
        self.accepted += accepted
        for outcome in outcomes:
            if outcome.step == "settled" and outcome.decision in FINAL:
                self.outcomes[f"{outcome.decision}: {outcome.reason}"] += 1


@dataclass(slots=True)
class Tally:
    """A session's counts, by test."""

    seed: str
    lines: dict[str, Line] = field(default_factory=dict)

    def line(self, test: str) -> Line:
        """Return the counts of one test, ``path::name`` without its round."""
        return self.lines.setdefault(test, Line())

    def save(self, path: Path, about: dict[str, str]) -> None:
        """Write the counts, each line with what it was counted with; lines of tests that did not run stay."""
        lines = json.loads(path.read_text()) if path.exists() else {}
        lines |= {name: {**about, "seed": self.seed, **_document(line)} for name, line in self.lines.items()}
        path.write_text(json.dumps(dict(sorted(lines.items())), indent=2, ensure_ascii=False) + "\n")

    def summary(self) -> list[str]:
        """Return the summary for the end of a session on a terminal."""
        return [
            f"{name}: {line.rounds} rounds, {line.faults.total()} faults, {line.accepted} records accepted, "
            f"{line.outcomes.total()} ended, {len(line.violations)} violations"
            + (f" (skipped: {line.skipped})" if line.skipped else "")
            for name, line in sorted(self.lines.items())
        ]


def _document(line: Line) -> dict[str, Any]:
    return {
        "rounds": line.rounds,
        "faults": dict(sorted(line.faults.items())),
        "accepted": line.accepted,
        "outcomes": dict(sorted(line.outcomes.items())),
        "violations": line.violations,
        "skipped": line.skipped,
    }
