"""The broker's own trackers of delayed messages as a process: whole histories in, their responses out."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.cluster.java_programs import JavaProgram, java_program, quiet_log_configuration

_PROGRAM = Path(__file__).with_name("BucketTracker.java")


class JavaTrackers:
    """A running program; every history has a tracker, a clock and a storage of its own."""

    def __init__(self, program: JavaProgram) -> None:
        self._program = program

    def answers(self, history: Sequence[str]) -> list[Any]:
        """Return the response to each command of a history; ``BucketTracker.java`` defines the commands."""
        return self._ask(";".join(history))

    def rounds(self, tracker: str, indexes: Path, count: int, per_pop: int, settings: str) -> list[dict[str, int]]:
        """Return the thread's processor time for adding and popping in each round of a measurement.

        Args:
            tracker: ``bucket`` or ``memory``.
            indexes: ledger, entry and due time of each as little-endian 64-bit integers.
            count: how many the file has.
            per_pop: number of messages requested at a time.
            settings: rounds, then what ``new`` has.
        """
        return self._ask(f"bench {tracker} {indexes} {count} {per_pop} {settings}")

    def _ask(self, line: str) -> list[Any]:
        self._program.write_line(line)
        return json.loads(self._program.read())


@contextmanager
def java_trackers(version: str, directory: Path, options: Sequence[str] = ()) -> Iterator[JavaTrackers]:
    """Yield trackers of that version of Pulsar, whose log goes into the directory.

    Args:
        version: of the distribution whose classes are driven.
        directory: an existing one.
        options: of the JVM.
    """
    quiet = f"-Dlog4j2.configurationFile={quiet_log_configuration(directory)}"
    with java_program(_PROGRAM, version, [*options, quiet], [], directory / "java-tracker.log") as program:
        yield JavaTrackers(program)
