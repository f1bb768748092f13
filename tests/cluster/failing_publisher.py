"""``pulsar-sidecar publish``, killed at a chosen step; production code has no switch for that.

python -m tests.cluster.failing_publisher after:record-published:300 publish FILE TOPIC --producer-name NAME
"""

import os
import signal
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from pulsar_sidecar.__main__ import programs
from pulsar_sidecar.bootstrap.commands import command_line
from pulsar_sidecar.bootstrap.exactly_once import publish_file
from pulsar_sidecar.features.publishing.file_publisher import PublishStep, PublishSteps

from tests.cluster.nursery import nursery

KILLED = -signal.SIGKILL
POINTS = tuple(f"{when}:{step.value}" for step in PublishStep for when in ("before", "after"))
_SECONDS = 120
_CHECKPOINT = f"after:{PublishStep.CHECKPOINT_WRITTEN.value}"
_RECORD = f"before:{PublishStep.RECORD_PUBLISHED.value}"
LATE = f"late:{PublishStep.RECORD_PUBLISHED.value}"
"""Point right before each record, counted from the last checkpoint on."""


class KillsAt(PublishSteps):
    """Steps that end the process like ``kill -9`` at the n-th pass of a point.

    The occurrences of `LATE` are after the last checkpoint, however slow the machine is.
    """

    def __init__(self, point: str, occurrence: int) -> None:
        self._point = point
        self._occurrence = occurrence
        self._seen: Counter[str] = Counter()

    def about_to(self, step: PublishStep) -> None:
        self._pass(f"before:{step.value}")

    def reached(self, step: PublishStep) -> None:
        self._pass(f"after:{step.value}")

    def _pass(self, point: str) -> None:
        if point == _CHECKPOINT:
            self._seen[LATE] = 0
        elif point == _RECORD:
            self._pass(LATE)
        self._seen[point] += 1
        if point == self._point and self._seen[point] == self._occurrence:
            os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True, slots=True)
class Ended:
    code: int
    stdout: str
    stderr: str


def publish_until(point: str, occurrence: int, arguments: Sequence[str]) -> Ended:
    """Run the command in its own process, which is killed at the point if it reaches it."""
    ended = nursery().run("tests.cluster.failing_publisher", f"{point}:{occurrence}", *arguments, seconds=_SECONDS)
    return Ended(ended.returncode, ended.stdout, ended.stderr)


if __name__ == "__main__":
    when, step_name, nth = sys.argv[1].split(":")
    steps = KillsAt(f"{when}:{step_name}", int(nth))
    chosen = replace(programs(), publish_file=partial(publish_file, steps=steps))
    command_line()(sys.argv[2:], prog_name="pulsar-sidecar", obj=chosen)
