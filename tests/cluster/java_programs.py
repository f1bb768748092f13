"""Programs of one Java file each, run with a distribution's jars and controlled by lines.

Java compiles the file at the start. Invariant: the process ends with the `with` block, normally or by a kill.
"""

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pulsar_sidecar.local_cluster.software import class_path, find_software
from pulsar_sidecar.local_cluster.spec import ClusterSpec

from tests.cluster.patience import OPERATION_SECONDS

QUICK = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""Options of a JVM that ends within a minute."""

_SHOWN = 5


class JavaProgram:
    """A running program that answers each line with a line."""

    def __init__(self, process: "subprocess.Popen[str]", name: str, log: Path) -> None:
        self._process = process
        self._name = name
        self._log = log

    @property
    def pid(self) -> int:
        return self._process.pid

    def write_line(self, line: str) -> None:
        """Write a line to its standard input."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def read(self) -> str:
        """Return the next line of output.

        Raises:
            RuntimeError: the program has ended; the text has the last exceptions in its log.
        """
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            status = self._process.wait(OPERATION_SECONDS)
            errors = _last_exceptions(self._log)
            raise RuntimeError(f"{self._name} ended with {status}\n{errors}\nall of it: {self._log}")
        return line.strip()


@contextmanager
def java_program(
    program: Path, version: str, options: Sequence[str], arguments: Sequence[str], log: Path
) -> Iterator[JavaProgram]:
    """Run a program, which should end with its standard input.

    Args:
        program: Java file.
        version: version of the Pulsar distribution whose jars it uses.
        options: options of the JVM.
        arguments: arguments of the program.
        log: file to which its standard error is appended, in its working directory.
    """
    software = find_software(ClusterSpec(log.parent, version=version))
    jars = ("-cp", class_path(software.distribution))
    with (
        log.open("ab") as errors,
        subprocess.Popen(
            [str(software.java.executable), *options, *jars, str(program), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            cwd=log.parent,
            text=True,
            encoding="utf-8",
        ) as process,
    ):
        try:
            yield JavaProgram(process, program.stem, log)
        finally:
            _end(process)


def quiet_log_configuration(directory: Path) -> Path:
    """Write a file that disables log4j2, whose line for each call would distort measurements."""
    path = directory / "log4j2.properties"
    path.write_text("rootLogger.level = off\n")
    return path


def _last_exceptions(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()
    return "\n".join([line for line in lines if "Exception" in line or "Error" in line][-_SHOWN:])


def _end(process: "subprocess.Popen[str]") -> None:
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(OPERATION_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
