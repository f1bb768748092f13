"""Put the counts of a fault run into a page: ``python -m tests.faults.report COUNTS.json PAGE.md``.

Only what stands between the two markers is replaced.
"""

import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

BEGIN = "<!-- counts of `make test-faults`: begin -->"
END = "<!-- counts of `make test-faults`: end -->"
_DETAILS = re.compile(
    r" (before|after) [a-z-]+$|, (shorter than|about|longer than) a session$|(?<=left behind: )[a-z-]+, "
)


def main(counts: Path, page: Path) -> None:
    text = page.read_text()
    before, _, rest = text.partition(BEGIN)
    _, found, after = rest.partition(END)
    if not found:
        sys.exit(f"{page} has no place for the counts: {BEGIN} ... {END}")
    page.write_text(f"{before}{BEGIN}\n{rendered(json.loads(counts.read_text()))}{END}{after}")


def rendered(tests: dict[str, dict[str, Any]]) -> str:
    """Return the counts as Markdown."""
    ran = {name: line for name, line in tests.items() if line["rounds"]}
    versions = [f"{name} {_all(ran, name)}" for name in ("pulsar", "pulsar-client", "kazoo")]
    lines = [
        "",
        f"Counted on {_all(ran, 'date')} by `make test-faults`, with {', '.join(versions)}.",
        "",
        "| what was broken | seed | rounds | faults | records accepted | violations |",
        "|---|---|---:|---:|---:|---:|",
    ]
    lines += [_row(name, line) for name, line in ran.items()]
    lines += [_total(list(ran.values())), ""]
    lines += _faults(ran)
    skipped = [f"- `{_short(name)}`: {line['skipped']}" for name, line in tests.items() if line["skipped"]]
    lines += ["Skipped:", "", *skipped, ""] if skipped else []
    return "\n".join(lines) + "\n"


def _all(tests: dict[str, dict[str, Any]], what: str) -> str:
    return " and ".join(sorted({line[what] for line in tests.values()}))


def _row(name: str, line: dict[str, Any]) -> str:
    faults = sum(line["faults"].values())
    cells = (
        line["seed"],
        line["rounds"],
        faults,
        line["accepted"],
        len(line["violations"]),
    )
    return f"| `{_short(name)}` | " + " | ".join(str(cell) for cell in cells) + " |"


def _total(lines: list[dict[str, Any]]) -> str:
    outcomes: Counter[str] = Counter()
    for line in lines:
        outcomes.update(line["outcomes"])
    rounds, accepted = sum(line["rounds"] for line in lines), sum(line["accepted"] for line in lines)
    faults = sum(sum(line["faults"].values()) for line in lines)
    violations = sum(len(line["violations"]) for line in lines)
    ended = f"All records ended: {_outcomes(dict(outcomes))}."
    return f"| **all** | | {rounds} | {faults} | {accepted} | {violations} |\n\n{ended}"


def _faults(tests: dict[str, dict[str, Any]]) -> list[str]:
    counted: Counter[str] = Counter()
    for line in tests.values():
        for kind, count in line["faults"].items():
            counted[_DETAILS.sub("", kind)] += count
    rows = [f"| {kind} | {count} |" for kind, count in sorted(counted.items())]
    return [
        "Each kind of fault, at whichever step; those without a subject are a sidecar's:",
        "",
        "| fault | times |",
        "|---|---:|",
        *rows,
        "",
    ]


def _outcomes(outcomes: dict[str, int]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in sorted(outcomes.items(), key=lambda each: -each[1]))


def _short(name: str) -> str:
    return name.removeprefix("tests/faults/test_").replace(".py::test_", ": ")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
