"""The official server distribution, fetched through Maven once and kept unpacked for every later run.

Invariant: a directory in the cache is complete. Unpacking happens beside it and ends with one rename, under a file
lock, so two runs at once fetch once and a run that is killed half-way leaves nothing that looks finished.
"""

import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

from pulsar_sidecar.local_cluster.failures import DistributionError, MissingPrerequisiteError
from pulsar_sidecar.local_cluster.processes import exclusive
from pulsar_sidecar.model.errors import InvalidInputError

_GROUP = "org.apache.pulsar"
_FETCH_TIMEOUT_SECONDS = 1800
_LAST_LINES = 15

Progress = Callable[[str], None]


SERVER = "pulsar-server-distribution"
OFFLOADERS = "pulsar-offloader-distribution"


def unpacked(name: str, version: str, cache: Path, progress: Progress) -> Path:
    """The directory of an unpacked distribution, fetched first if the cache has none.

    Raises:
        InvalidInputError: the version cannot be part of a file name.
        MissingPrerequisiteError: it has to be fetched and there is no ``mvn``.
        DistributionError: Maven cannot fetch it, or the archive is not what was expected.
    """
    if not version.replace(".", "").replace("-", "").isalnum():
        raise InvalidInputError(f"{version!r} is not a version of Pulsar; write it like 4.0.8")
    shelf = cache / "distributions"
    target = shelf / f"{name}-{version}"
    if target.is_dir():
        return target
    shelf.mkdir(parents=True, exist_ok=True)
    lock = shelf / f"{target.name}.lock"
    lock.touch()
    with exclusive(lock):
        if not target.is_dir():
            _fetch_and_unpack(f"{_GROUP}:{name}:{version}:tar.gz:bin", target, progress)
    return target


def _fetch_and_unpack(coordinates: str, target: Path, progress: Progress) -> None:
    for unfinished in target.parent.glob(f".{target.name}-*"):
        shutil.rmtree(unfinished)
    workshop = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        progress(f"fetching {coordinates} with Maven (once; a server is about 250 MB)")
        archive = fetched(coordinates, "tar.gz", workshop)
        progress(f"unpacking {archive.name} into {target}")
        _unpack(archive, workshop / "unpacked").rename(target)
    finally:
        shutil.rmtree(workshop, ignore_errors=True)


def fetched(coordinates: str, kind: str, directory: Path) -> Path:
    """The file of an artifact, fetched with Maven (which compares checksums) into a directory that is empty.

    Args:
        coordinates: ``group:artifact:version``, with type and classifier where it has them.
        kind: how the file's name ends, without the leading dot.
        directory: where it is put.

    Raises:
        MissingPrerequisiteError: there is no ``mvn``.
        DistributionError: Maven cannot fetch it.
    """
    maven = shutil.which("mvn")
    if maven is None:
        raise MissingPrerequisiteError(
            f"Maven is needed once to fetch {coordinates} and there is no mvn on the path; install Maven"
        )
    command = [maven, "-B", "-q", "dependency:copy", f"-Dartifact={coordinates}"]
    try:
        answer = subprocess.run(  # noqa: S603 - the user's own mvn
            [*command, f"-DoutputDirectory={directory}"],
            cwd=directory,
            capture_output=True,
            text=True,
            check=False,
            timeout=_FETCH_TIMEOUT_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DistributionError(f"{' '.join(command)} did not finish: {error}; run it by hand") from error
    archives = sorted(directory.glob(f"*.{kind}"))
    if answer.returncode != 0 or len(archives) != 1:
        said = "\n".join((answer.stdout + answer.stderr).strip().splitlines()[-_LAST_LINES:])
        raise DistributionError(f"Maven could not fetch it; try by hand: {' '.join(command)}\n{said}")
    return archives[0]


def _unpack(archive: Path, directory: Path) -> Path:
    """Unpack and give back the one directory that such an archive contains."""
    try:
        with tarfile.open(archive) as tar:
            tar.extractall(directory, filter="data")
    except (OSError, EOFError, tarfile.TarError) as error:
        raise DistributionError(f"{archive.name} cannot be unpacked: {error}; is the disk full?") from error
    (content,) = directory.iterdir()
    return content
