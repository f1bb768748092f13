"""Programs in one Java file each, run against a distribution's jars and driven by lines.

Java compiles the file when it starts. Invariant: the process ends with the `with` block, by itself or killed.
"""

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pulsar_sidecar.local_cluster.software import class_path, find_software
from pulsar_sidecar.local_cluster.spec import ClusterSpec

from tests.cluster.patience import OPERATION_SECONDS

_SHOWN = 5


class JavaProgram:
    """A running program: one line in, one line out."""

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
        """The next line it writes.

        Raises:
            RuntimeError: it has ended; with the exceptions that its log ends with.
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
    """Start one; it should end when its standard input does.

    Args:
        program: the Java file.
        version: of the distribution of Pulsar whose jars it uses.
        options: of the JVM.
        arguments: of the program.
        log: what it writes to its standard error is appended here, and it runs in this directory.
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
    """A file that turns log4j2 off: a line for each call would be part of what is measured otherwise."""
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
