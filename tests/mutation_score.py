"""The score of the last `make mutants`, file by file; fails below the share that the project promises.

A mutant counts as killed when a test fails with it or it never ends; one that no test reaches has survived.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

RESULTS = Path(__file__).parents[1] / "mutants"
PROMISED = 0.95
_SURVIVED = 0
_NO_TESTS = 33
_UNCHECKED = None


def results() -> Iterator[tuple[str, list[int | None]]]:
    """Each mutated file and its mutants' exit codes, as mutmut keeps them."""
    for path in sorted(RESULTS.rglob("*.py.meta")):
        codes = list(json.loads(path.read_text(encoding="utf-8"))["exit_code_by_key"].values())
        if codes:
            yield str(path.relative_to(RESULTS).with_suffix("")), codes


def main() -> int:
    """Print the table; 1 when a file or a mutant is left unchecked, or too many have survived."""
    everything: list[int | None] = []
    for name, codes in results():
        everything += codes
        sys.stdout.write(_line(name, codes))
    if not everything or _UNCHECKED in everything:
        sys.stdout.write("not all mutants were checked; run: make mutants\n")
        return 1
    sys.stdout.write(_line("all", everything))
    return int(_killed(everything) / len(everything) < PROMISED)


def _killed(codes: list[int | None]) -> int:
    return sum(code not in (_SURVIVED, _NO_TESTS, _UNCHECKED) for code in codes)


def _line(name: str, codes: list[int | None]) -> str:
    killed = _killed(codes)
    return f"| {name} | {len(codes)} | {killed} | {100 * killed / len(codes):.1f} % |\n"


if __name__ == "__main__":
    sys.exit(main())
