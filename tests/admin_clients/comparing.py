"""Comparison of two runs of a command: the exit code, and all that was printed.

Invariant: only what differs between two runs at the same broker too is left out of the comparison.
"""

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.admin_clients.commands import Command

SIDES = ("direct", "beside")
"""Parts of the names of what the two runs make; as long as each other, since some responses have sizes."""

_VARYING = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        ("|".join(SIDES), "SIDE"),
        (r"127\.0\.0\.1:\d+", "ADDRESS"),
        (r"\b\d{13}\b", "MILLISECONDS"),
        (r"\d{4}-\d\d-\d\d[T ][\d:.,]+(Z|[+-]\d\d:?\d\d)?", "TIME"),
        (r"0x[0-9a-f]{8}", "HASH"),
        (r"\w{3} \d+, \d{4} [\d:]+ [AP]M", "TIME"),
        (r'("\w*(?:Rate|Throughput|averageMsgSize|Age|AgeSeconds)\w*"\s*:\s*)-?[\d.E-]+', r"\g<1>0"),
        (r'("\w*[lL]edger(?:Id)?"\s*:\s*)-?\d+', r"\g<1>0"),
        (r"\b\d+:(-?\d+)", r"LEDGER:\1"),
    )
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Exit code and output of a command."""

    exit_code: int
    output: str
    errors: str

    @property
    def failed(self) -> bool:
        """``topics delete`` of pulsar-admin prints that it failed, and exits with 0."""
        return self.exit_code != 0 or self.output.startswith("Failed to ")

    def comparable(self, form_only: bool) -> "Outcome":
        if form_only and not self.failed:
            return Outcome(self.exit_code, _form(self.output), "")
        return Outcome(self.exit_code, _without_varying(self.output), _without_varying(self.errors))

    def __str__(self) -> str:
        return f"[{self.exit_code}] {self.output.strip()} {self.errors.strip()}"


@dataclass(frozen=True, slots=True)
class Difference:
    """A command that ended otherwise at the sidecar."""

    command: Command
    at_the_broker: Outcome
    at_the_sidecar: Outcome

    def __str__(self) -> str:
        broker, sidecar = str(self.at_the_broker).splitlines(), str(self.at_the_sidecar).splitlines()
        lines = difflib.unified_diff(broker, sidecar, n=0, lineterm="")
        return "\n".join((self.command.template, *lines))


def differences(
    commands: Sequence[Command], at_the_broker: Sequence[Outcome], at_the_sidecar: Sequence[Outcome]
) -> list[Difference]:
    found = []
    for command, one, other in zip(commands, at_the_broker, at_the_sidecar, strict=True):
        compared = one.comparable(command.form_only), other.comparable(command.form_only)
        if compared[0] != compared[1]:
            found.append(Difference(command, *compared))
    return found


def _without_varying(text: str) -> str:
    for pattern, replacement in _VARYING:
        text = pattern.sub(replacement, text)
    try:
        return json.dumps(json.loads(text), sort_keys=True, indent=1)
    except ValueError:
        return "\n".join(sorted(set(text.splitlines())))  # brokers list names in no order


def _form(text: str) -> str:
    try:
        return json.dumps(_shape(json.loads(text)), sort_keys=True)
    except ValueError:
        return "text"


def _shape(document: Any) -> Any:
    if isinstance(document, Mapping):
        # Where keys are names of bundles, topics or pools, there may be more of them from one look to the next.
        return "document" if any(re.search(r"[/:\d]", key) for key in document) else sorted(document)
    return type(document).__name__
