"""Software of the members: a Java runtime, the official distribution, and archives of the classes that they load.

Maven fetches the distribution once; the cache keeps it unpacked. If Maven Central has no distribution of a version,
this module assembles one from the broker's dependencies and the scripts of the newest distribution there; its brokers
have their own version's defaults, ZooKeeper and bookies that distribution's settings. A short cluster writes the class
archives (class data sharing) once; they halve the processor time of a start. Invariant: a directory in the cache is
complete, and a set of archives is only used with the Java build and the jars that it was made with (Java checks this
too and then ignores it).
"""

import hashlib
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pulsar_sidecar.local_cluster.processes import exclusive
from pulsar_sidecar.local_cluster.spec import (
    ClusterSpec,
    DistributionError,
    MemberFailedError,
    MissingPrerequisiteError,
    cache_directory,
)
from pulsar_sidecar.model.errors import InvalidInputError
from pulsar_sidecar.model.progress import Report
from pulsar_sidecar.model.pulsar_versions import TESTED_VERSIONS
from pulsar_sidecar.reports.formatting import format_count

OLDEST_JAVA = 17
_GROUP = "org.apache.pulsar"
_SERVER = "pulsar-server-distribution"
_OFFLOADERS = "pulsar-offloader-distribution"
_FETCH_TIMEOUT_SECONDS = 1800
_MOST_LINES = 15
_BOILERPLATE = "[ERROR] To see the full stack trace"
"""Start of Maven's boilerplate after the failure."""
_NEWEST_DISTRIBUTION = "4.0.8"
"""Newest distribution on Maven Central, which has later versions only of the broker's jar and its dependencies."""
_COLOUR = re.compile("\x1b\\[[0-9;]*m")
_COPY_DEPENDENCIES = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
_ASSEMBLY = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <parent>
    <groupId>org.apache.pulsar</groupId><artifactId>pulsar</artifactId><version>{version}</version><relativePath/>
  </parent>
  <artifactId>assembly</artifactId><packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>org.apache.pulsar</groupId><artifactId>pulsar-broker</artifactId><version>{version}</version>
    </dependency>
    <dependency>
      <groupId>org.apache.bookkeeper.stats</groupId><artifactId>prometheus-metrics-provider</artifactId>
      <version>${{bookkeeper.version}}</version>
    </dependency>
    <dependency>
      <groupId>org.apache.bookkeeper.http</groupId><artifactId>vertx-http-server</artifactId>
      <version>${{bookkeeper.version}}</version>
    </dependency>
  </dependencies>
</project>
"""


def no_progress(text: str) -> None:
    """Ignore a progress report."""


@dataclass(frozen=True, slots=True)
class JavaRuntime:
    """A Java runtime new enough for Pulsar; ``build`` is its whole version report."""

    executable: Path
    major_version: int
    build: str


@dataclass(frozen=True, slots=True)
class Software:
    """A Java runtime and directories of software, None without them; offloaders are ``*.nar``."""

    java: JavaRuntime
    distribution: Path
    offloaders: Path | None = None
    class_archives: Path | None = None


def find_software(spec: ClusterSpec, progress: Report = no_progress) -> Software:
    """Return Java and the distribution, fetched if the cache has none, without class archives.

    Raises:
        InvalidInputError: the version cannot be part of a file name, or has no offloaders.
        MissingPrerequisiteError: no Java, or no Maven to fetch a distribution.
        DistributionError: the distribution could not be fetched or unpacked.
    """
    if not spec.version.replace(".", "").replace("-", "").isalnum():
        raise InvalidInputError(f"{spec.version!r} is not a version of Pulsar; write it like 4.0.8")
    java = find_java()
    assembled = _released(spec.version) > _released(_NEWEST_DISTRIBUTION)
    if assembled and spec.offloaders:
        raise InvalidInputError(
            f"Maven Central has no offloaders of Pulsar {spec.version}; leave them out, or take "
            f"{_NEWEST_DISTRIBUTION}, the newest version that has them"
        )
    distribution = (_assembled if assembled else partial(_unpacked, _SERVER))(spec.version, progress)
    offloaders = _unpacked(_OFFLOADERS, spec.version, progress) / "offloaders" if spec.offloaders else None
    return Software(java, distribution, offloaders)


def find_etcd() -> str:
    """Return etcd's program; raise `MissingPrerequisiteError` if there is none."""
    chosen = os.environ.get("PULSAR_SIDECAR_ETCD", "etcd")
    found = shutil.which(chosen)
    if found is None:
        raise MissingPrerequisiteError(
            f"there is no {chosen} on the path: install Debian's and Ubuntu's package etcd-server, or name the program "
            "with the environment variable PULSAR_SIDECAR_ETCD"
        )
    return found


def find_java() -> JavaRuntime:
    """Return the runtime of ``JAVA_HOME``, else the first ``java`` on the path."""
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if found is None or not Path(found).exists():
        where = f"JAVA_HOME is {home}, which has no bin/java" if home else "no java on the path"
        raise MissingPrerequisiteError(f"Pulsar needs a JDK {OLDEST_JAVA} or later: {where}; install one")
    command = [found, "-version"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)  # noqa: S603 - the user's
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MissingPrerequisiteError(f"{found} does not run: {error}; install a JDK {OLDEST_JAVA}") from error
    build = answer.stderr + answer.stdout
    version = re.search(r'version "(?:1\.)?(\d+)', build)
    if version is None:
        raise MissingPrerequisiteError(f"{found} -version shows no version; install a JDK {OLDEST_JAVA}")
    if int(version.group(1)) < OLDEST_JAVA:
        raise MissingPrerequisiteError(
            f"Pulsar needs a JDK {OLDEST_JAVA} or later and {found} is version {version.group(1)}; "
            "install one, or point JAVA_HOME at it"
        )
    return JavaRuntime(Path(found), int(version.group(1)), build)


def class_path(distribution: Path) -> str:
    """Return all jars of the distribution, in the same order on every machine."""
    return os.pathsep.join(str(jar) for jar in sorted((distribution / "lib").glob("*.jar")))


def class_archives(software: Software, record: Callable[[Path], None], progress: Report) -> Path | None:
    """Return the directory of class archives for this Java and distribution, recorded if the cache has none.

    ``record`` writes ``<kind>.jsa`` files into the given directory. Returns None if that fails: a start without
    archives is only slower.
    """
    inputs = f"{software.java.build}\n{class_path(software.distribution)}"
    identity = hashlib.sha256(inputs.encode()).hexdigest()[:16]

    def recorded(workshop: Path) -> Path:
        progress("recording the classes that Pulsar loads, so that every start is quicker (once, about 30 s)")
        record(workshop)
        return workshop

    try:
        return _cached("class-archives", f"{software.distribution.name}-{identity}", recorded)
    except MemberFailedError as error:
        progress(f"the classes could not be recorded; starting without: {error}")
        return None


def _unpacked(name: str, version: str, progress: Report) -> Path:
    coordinates = f"{_GROUP}:{name}:{version}:tar.gz:bin"

    def fetched_and_unpacked(workshop: Path) -> Path:
        progress(f"fetching {coordinates} with Maven (once; a server is about 250 MB)")
        archive = fetched(coordinates, "tar.gz", workshop)
        progress(f"unpacking {archive.name}")
        try:
            with tarfile.open(archive) as tar:
                tar.extractall(workshop / "unpacked", filter="data")
        except (OSError, EOFError, tarfile.TarError) as error:
            raise DistributionError(f"{archive.name} cannot be unpacked: {error}; is the disk full?") from error
        (content,) = (workshop / "unpacked").iterdir()
        return content

    return _cached("distributions", f"{name}-{version}", fetched_and_unpacked)


def _released(version: str) -> list[int]:
    """Return a version's numbers for comparison, without a suffix as in ``4.2.0-rc1``."""
    return [int(part) for part in version.partition("-")[0].split(".") if part.isdecimal()]


def _assembled(version: str, progress: Report) -> Path:
    settings = _unpacked(_SERVER, _NEWEST_DISTRIBUTION, progress)

    def made(workshop: Path) -> Path:
        progress(f"fetching the jars of pulsar-broker {version} with Maven (once; about 250 MB)")
        content = workshop / "assembled"
        content.mkdir()
        pom = workshop / "pom.xml"
        pom.write_text(_ASSEMBLY.format(version=version))
        _run_maven(
            [_COPY_DEPENDENCIES, "-f", str(pom), "-DincludeScope=runtime"],
            content / "lib",
            f"{_GROUP}:pulsar-broker:{version} and its dependencies",
        )
        for name in ("bin", "conf"):
            shutil.copytree(settings / name, content / name)
        # Another version's broker.conf sets every setting to that version's default.
        (content / "conf" / "broker.conf").write_text("")
        return content

    return _cached("distributions", f"{_SERVER}-{version}", made)


def _cached(shelf: str, name: str, make: Callable[[Path], Path]) -> Path:
    """Return a directory of the cache; make it under another name and rename it if it does not exist.

    A file lock makes concurrent runs create it once; a killed run leaves nothing that looks finished.
    """
    target = cache_directory() / shelf / name
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    lock = target.with_name(f"{name}.lock")
    lock.touch()
    with exclusive(lock):
        if target.is_dir():
            return target
        for unfinished in target.parent.glob(f".{name}-*"):
            shutil.rmtree(unfinished)
        workshop = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=target.parent))
        try:
            return make(workshop).rename(target)
        finally:
            shutil.rmtree(workshop, ignore_errors=True)


def fetched(coordinates: str, kind: str, directory: Path) -> Path:
    """Return the file of an artifact (``group:artifact:version:type:classifier``) whose name ends with ``kind``.

    Maven, which compares checksums, fetches it into the empty ``directory``.
    """
    _run_maven(["dependency:copy", f"-Dartifact={coordinates}"], directory, coordinates)
    archives = sorted(directory.glob(f"*.{kind}"))
    if len(archives) != 1:
        raise DistributionError(
            f"Maven fetched {format_count(len(archives), 'file')} for {coordinates} instead of one; fetch it again"
        )
    return archives[0]


def _run_maven(goal: Sequence[str], output: Path, wanted: str) -> None:
    """Run a goal of Maven that copies artifacts into a directory."""
    maven = shutil.which("mvn")
    if maven is None:
        raise MissingPrerequisiteError(
            f"Maven is needed once to fetch {wanted} and there is no mvn on the path; install Maven"
        )
    # -U: Maven retries earlier failures, for example without a network.
    command = [maven, "-B", "-q", "-U", *goal, f"-DoutputDirectory={output}"]
    try:
        answer = subprocess.run(  # noqa: S603 - the user's own mvn
            command,
            cwd=output if output.is_dir() else output.parent,
            capture_output=True,
            text=True,
            check=False,
            timeout=_FETCH_TIMEOUT_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DistributionError(
            f"Maven did not finish fetching {wanted}: {error}; check that mvn -version works and that the network "
            "does, then run this again"
        ) from error
    if answer.returncode != 0:
        raise DistributionError(
            f"Maven could not fetch {wanted}. If it found no such artifact, take another version (of Pulsar: "
            f"{', '.join(TESTED_VERSIONS)}). If it did not reach its repository, set your proxy or mirror in "
            f"~/.m2/settings.xml and run this again. Maven reported:\n{_failure_of(answer.stdout + answer.stderr)}"
        )


def _failure_of(output: str) -> str:
    """Return the first lines of Maven's output, which name the failure; the last ones are always the same."""
    lines = _COLOUR.sub("", output).partition(_BOILERPLATE)[0].splitlines()
    return "\n".join([line for line in lines if line.removeprefix("[ERROR]").strip()][:_MOST_LINES])
