"""Archives of the classes each kind of member loads, which halve the processor time of a start.

Java writes such an archive when it is asked to at exit and maps it at the next start (class data sharing). A short
cluster is run once to write them. Invariant: an archive is only used with the Java build and the jars it was written
with (Java checks this too and then ignores it), and a set of archives in the cache is complete.
"""

import hashlib
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from pulsar_sidecar.local_cluster.failures import MemberFailedError
from pulsar_sidecar.local_cluster.java import JavaRuntime, class_path
from pulsar_sidecar.local_cluster.processes import exclusive

ARCHIVE_NAME = "classes.jsa"
RECORDING_OPTION = f"-XX:ArchiveClassesAtExit={ARCHIVE_NAME}"
"""A relative name: every member writes its archive into its own directory."""


def archives(
    cache: Path, java: JavaRuntime, distribution: Path, record: Callable[[Path], None], progress: Callable[[str], None]
) -> Path | None:
    """The directory of the archives for this Java and this distribution, recorded first if the cache has none.

    Args:
        cache: the cache's directory.
        java: the runtime.
        distribution: the unpacked distribution.
        record: writes ``<kind>.jsa`` files into the directory it is given.
        progress: told when something has to be recorded.

    Returns:
        None if recording failed: a start without archives is slower and otherwise the same.
    """
    identity = hashlib.sha256(f"{java.build}\n{class_path(distribution)}".encode()).hexdigest()[:16]
    shelf = cache / "class-archives"
    target = shelf / f"{distribution.name}-{identity}"
    if target.is_dir():
        return target
    shelf.mkdir(parents=True, exist_ok=True)
    with exclusive(shelf):
        return target if target.is_dir() else _record_into(target, record, progress)


def archive_of(kind: str, archives_directory: Path | None) -> list[str]:
    """The option that makes a JVM use the archive of its kind, if there is one."""
    if archives_directory is None or not (archives_directory / f"{kind}.jsa").exists():
        return []
    return [f"-XX:SharedArchiveFile={archives_directory / f'{kind}.jsa'}"]


def kind_of(member_name: str) -> str:
    """Members of one kind share an archive: ``broker-2`` uses that of ``broker``."""
    return member_name.rstrip("0123456789").removesuffix("-")


def _record_into(target: Path, record: Callable[[Path], None], progress: Callable[[str], None]) -> Path | None:
    for unfinished in target.parent.glob(".recording-*"):
        shutil.rmtree(unfinished)
    progress("recording the classes that Pulsar loads, so that every start is quicker (once, about 30 s)")
    workshop = Path(tempfile.mkdtemp(prefix=".recording-", dir=target.parent))
    try:
        record(workshop)
        return workshop.rename(target)
    except MemberFailedError as error:
        progress(f"the classes could not be recorded; starting without: {error}")
        return None
    finally:
        shutil.rmtree(workshop, ignore_errors=True)
