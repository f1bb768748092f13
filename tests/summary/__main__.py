"""The end of ``make test``: where the time went, and in the last ten lines what failed and the counts.

python -m tests.summary SECONDS FILE...

SECONDS is how long all of it took; a file that is missing is a part that ended before its tests did.
"""

import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.summary.part import Failure, Part, load_part

_SLOWEST = 10
_NAMED_FAILURES = 5


def main(seconds: str, *files: str) -> int:
    """Print the summary; 1 if a test failed or a part is missing."""
    parts = {Path(file).stem: _part(Path(file)) for file in files}
    lines = summary(parts, int(seconds))
    sys.stdout.write("\n".join(lines) + "\n")
    return 0 if all(part is not None and not part.failures for part in parts.values()) else 1


def summary(parts: Mapping[str, Part | None], seconds: int) -> list[str]:
    """Return the lines; those of the verdict, at most ten, come last, and the counts in the very last."""
    ended = {name: part for name, part in parts.items() if part is not None}
    failures = [failure for part in ended.values() for failure in part.failures]
    return [
        "",
        *_spent(ended),
        *_branches(ended.values()),
        *(f"FAILED {failure.test}\n{_indented(failure.reason)}" for failure in failures),
        "",
        *_verdict(parts, failures),
        f"{_counts(*_total(ended.values()))} in {_minutes(seconds)}",
    ]


def _verdict(parts: Mapping[str, Part | None], failures: list[Failure]) -> list[str]:
    ended = [part for part in parts.values() if part is not None]
    skipped = sum((Counter(part.skipped) for part in ended), Counter[str]())
    reasons = "; ".join(f"{count} {reason}" for reason, count in skipped.most_common())
    tries = " ".join(test for part in ended for test in part.second_tries)
    missing = " ".join(name for name, part in parts.items() if part is None)
    more = len(failures) - _NAMED_FAILURES
    return [
        *([f"skipped {skipped.total()}: {reasons}"] if skipped else []),
        *([f"second try, a wait had run out: {tries}"] if tries else []),
        *([f"NO RESULT, it did not run or ended early: {missing}"] if missing else []),
        *(_failed(failure, ended) for failure in failures[:_NAMED_FAILURES]),
        *([f"FAILED {more} more, named above"] if more > 0 else []),
    ]


def _failed(failure: Failure, parts: list[Part]) -> str:
    seconds = max(part.seconds.get(failure.test, 0) for part in parts)
    return f"FAILED after {seconds:.0f} s: {failure.again}"


def _total(parts: Iterable[Part]) -> tuple[int, int, int]:
    counts = [(part.passed, len(part.failures), sum(part.skipped.values())) for part in parts]
    passed, failed, skipped = (sum(column) for column in zip((0, 0, 0), *counts, strict=True))
    return passed, failed, skipped


def _spent(parts: Mapping[str, Part]) -> list[str]:
    width = max(map(len, parts), default=0)
    rows = [
        f"  {name:{width}}  {_counts(part.passed, len(part.failures), sum(part.skipped.values()))}"
        f" in {_minutes(part.elapsed_seconds)}"
        for name, part in parts.items()
    ]
    seconds = Counter({test: spent for part in parts.values() for test, spent in part.seconds.items()})
    slowest = [f"  {spent:5.0f} s  {test}" for test, spent in seconds.most_common(_SLOWEST)]
    return ["where the time went:", *rows, f"the {len(slowest)} slowest tests:", *slowest]


def _branches(parts: Iterable[Part]) -> list[str]:
    return [
        f"branch coverage of what decides: {part.branches[0] / part.branches[1]:.1%} of {part.branches[1]:,} branches"
        for part in parts
        if part.branches
    ]


def _counts(passed: int, failed: int, skipped: int) -> str:
    return f"{passed} passed, {failed} failed, {skipped} skipped"


def _minutes(seconds: float) -> str:
    return f"{int(seconds) // 60} min {int(seconds) % 60} s"


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())


def _part(path: Path) -> Part | None:
    try:
        return load_part(path)
    except (OSError, ValueError):
        return None


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
