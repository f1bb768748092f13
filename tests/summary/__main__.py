"""The end of ``make test``: how all its parts went, where the time was spent, and one line for the whole.

python -m tests.summary SECONDS FILE...

SECONDS is how long all of it took; a file that is missing is a part that ended before its tests did.
"""

import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from tests.summary.part import Part, load_part

_SLOWEST = 10


def main(seconds: str, *files: str) -> int:
    """Print the summary; 1 if a test failed or a part is missing."""
    parts = {Path(file).stem: _part(Path(file)) for file in files}
    lines = summary(parts, int(seconds))
    sys.stdout.write("\n".join(lines) + "\n")
    return 0 if all(part is not None and not part.failures for part in parts.values()) else 1


def summary(parts: Mapping[str, Part | None], seconds: int) -> list[str]:
    """The lines; the last one has the counts."""
    ended = {name: part for name, part in parts.items() if part is not None}
    skipped = sum((Counter(part.skipped) for part in ended.values()), Counter[str]())
    failures = [failure for part in ended.values() for failure in part.failures]
    tries = [test for part in ended.values() for test in part.second_tries]
    passed = sum(part.passed for part in ended.values())
    return [
        "",
        *_spent(ended),
        *(f"skipped: {count} ({reason})" for reason, count in skipped.most_common()),
        *(f"second try, a wait had run out: {test}" for test in tries),
        *(f"FAILED {failure.test}\n{_indented(failure.reason)}" for failure in failures),
        *(f"NO RESULT, it did not run or ended early: {name}" for name, part in parts.items() if part is None),
        f"{_counts(passed, len(failures), skipped.total())} in {_minutes(seconds)}",
    ]


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
