"""Runs the commands of an Alloy model without Alloy's window, and shows the findings of each.

``python -m tests.model.alloy [COMMAND ...]`` runs those of ``two_phase_deletion.als`` and shows each behaviour that was
found, action by action. Alloy itself comes from Maven Central, once, into the cache of the local cluster.
Invariant: a command without a result is an error, never "nothing found".
"""

import hashlib
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pulsar_sidecar.local_cluster.processes import exclusive
from pulsar_sidecar.local_cluster.software import fetched, find_java
from pulsar_sidecar.local_cluster.spec import cache_directory

MODEL = Path(__file__).with_name("two_phase_deletion.als")
COORDINATES = "org.alloytools:org.alloytools.alloy.dist:6.2.0"
SHA256 = "6037cbeee0e8423c1c468447ed10f5fcf2f2743a2ffc39cb1c81f2905c0fdb9d"

_QUICK_START = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
# Native code that Alloy brings along for some machines, three times as fast as the solver in Java, which runs anywhere.
_SOLVER = "glucose" if (sys.platform, platform.machine()) == ("linux", "x86_64") else "sat4j"
_TIMEOUT_SECONDS = 900
_COMMANDS = "// --- what is run "
_COMMAND = re.compile(r"^(?:run|check) (\w+)", re.MULTILINE)


class AlloyError(Exception):
    """Alloy could not be fetched, did not understand the model, or left a command without a result."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Result of a command.

    Attributes:
        expected: whether the model expects a behaviour; None when it expects nothing.
        behaviour: the actions of the behaviour that was found, with the consumer that acts; None when there is none.
        seconds: how long the solver and its preparation took, 0 when nothing was found.
    """

    name: str
    expected: bool | None
    behaviour: tuple[str, ...] | None
    seconds: float

    @property
    def found(self) -> bool:
        return self.behaviour is not None


def theory() -> str:
    """Return the model without its commands."""
    return MODEL.read_text().partition(_COMMANDS)[0]


def commands() -> dict[str, str]:
    """Return the model's commands by name, as they are written."""
    written = MODEL.read_text().partition(_COMMANDS)[2]
    starts = [match.start() for match in _COMMAND.finditer(written)]
    texts = [written[start:end] for start, end in zip(starts, [*starts[1:], len(written)], strict=True)]
    return {_COMMAND.findall(text)[0]: text for text in texts}


def solve(wanted: Sequence[str], *, model: str | None = None) -> dict[str, Answer]:
    """Run commands, given as Alloy text, on a model (the project's own by default); one process per core.

    Raises:
        AlloyError: a command has no result.
    """
    processes = min(os.cpu_count() or 1, len(wanted))
    with ThreadPoolExecutor(processes) as pool:
        parts = pool.map(lambda start: _solved(wanted[start::processes], model or theory()), range(processes))
        return {name: answer for part in parts for name, answer in part.items()}


def _solved(wanted: Sequence[str], model: str) -> dict[str, Answer]:
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch) / "model.als"
        source.write_text("\n".join([model, *wanted]))
        receipt = _executed(source, Path(scratch) / "answers")
    answers = {name: _answer(name, entry) for name, entry in receipt["commands"].items()}
    missing = {name for text in wanted for name in _COMMAND.findall(text)} - answers.keys()
    if missing:
        raise AlloyError(f"no result for {sorted(missing)}")
    return answers


def _executed(source: Path, directory: Path) -> dict[str, Any]:
    command = [str(find_java().executable), *_QUICK_START, "-jar", str(jar()), "exec", "-c", "*", "-s", _SOLVER]
    ended = subprocess.run(
        [*command, "-t", "json", "-o", str(directory), str(source)],
        capture_output=True,
        text=True,
        check=False,
        timeout=_TIMEOUT_SECONDS,
    )
    receipt = directory / "receipt.json"
    if not receipt.exists():
        raise AlloyError(f"Alloy ended with {ended.returncode}:\n{(ended.stdout + ended.stderr)[-3000:]}")
    return json.loads(receipt.read_text())


def _answer(name: str, entry: dict[str, Any]) -> Answer:
    expected = {0: False, 1: True}.get(entry.get("expects", 0))
    solutions = entry.get("solution")
    if not solutions:
        return Answer(name, expected, None, 0.0)
    behaviour = tuple(_action(state["values"]["Now$0"]) for state in solutions[0]["instances"])
    return Answer(name, expected, behaviour, solutions[0]["duration"] / 1000)


def _action(now: dict[str, list[list[str]]]) -> str:
    who, action, message = (now[field][0][0] if now.get(field) else "" for field in ("who", "action", "message"))
    return " ".join(part for part in (who, action.removesuffix("$0"), message) if part)


def jar() -> Path:
    """Return Alloy's jar, fetched first if the cache has none.

    Raises:
        AlloyError: the fetched file differs from the one that this project was written with.
    """
    shelf = cache_directory() / "alloy"
    target = shelf / f"{COORDINATES.replace(':', '-')}.jar"
    if target.exists():
        return target
    shelf.mkdir(parents=True, exist_ok=True)
    with exclusive(shelf), tempfile.TemporaryDirectory(dir=shelf) as workshop:
        archive = fetched(COORDINATES, "jar", Path(workshop))
        found = hashlib.sha256(archive.read_bytes()).hexdigest()
        if found != SHA256:
            raise AlloyError(f"{COORDINATES} has the SHA-256 {found}, expected {SHA256}")
        archive.rename(target)
    return target


def main(names: Collection[str]) -> int:
    """Run the named commands, or all, and print the findings."""
    chosen = [text for name, text in commands().items() if not names or name in names]
    started = time.monotonic()
    answers = solve(chosen)
    for answer in answers.values():
        verdict = "as expected" if answer.found == answer.expected else "NOT AS EXPECTED"
        lines = [f"{answer.name}: {'found' if answer.found else 'nothing found'}, {verdict}", *(answer.behaviour or ())]
        sys.stdout.write("\n    ".join(lines) + "\n")
    sys.stdout.write(f"{len(answers)} commands in {time.monotonic() - started:.0f} s\n")
    return int(any(answer.found != answer.expected for answer in answers.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
