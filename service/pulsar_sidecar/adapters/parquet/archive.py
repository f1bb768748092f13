"""The audits, dumps and listings below a directory, and the removal of one.

Invariant: only a directory with a readable summary or manifest of ours, and with exactly the Parquet files it names,
counts as one; everything else is left alone, whatever it is.
"""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pulsar_sidecar.adapters.parquet.audits import read_summary
from pulsar_sidecar.audit.pruning import Archived
from pulsar_sidecar.audit.results.summaries import KIND, SUMMARY_NAME
from pulsar_sidecar.audit.sources.manifests import MANIFEST_NAME, Manifest, parse_manifest
from pulsar_sidecar.model.errors import InvalidInputError, TemporaryError

_DEPTH: Final = 3
_UNKNOWN_CLUSTER: Final = ""


def archived_below(directory: Path) -> list[Archived]:
    """Every complete one at most three directories deep; links are not followed.

    Raises:
        InvalidInputError: there is no such directory.
    """
    if not directory.is_dir():
        raise InvalidInputError(f"there is no directory {directory}")
    return [found for path in sorted(_directories(directory, _DEPTH)) if (found := _archived(path)) is not None]


def remove(archived: Archived) -> None:
    """Remove one; it vanishes at once, even if the rest takes long.

    Raises:
        TemporaryError: it cannot be removed.
    """
    try:
        going = Path(tempfile.mkdtemp(prefix=f".{archived.path.name}.removing-", dir=archived.path.parent))
        archived.path.rename(going / archived.path.name)
        shutil.rmtree(going)
    except OSError as error:
        raise TemporaryError(f"{archived.path} cannot be removed ({error.strerror})") from error


def _directories(directory: Path, depth: int) -> Iterator[Path]:
    for entry in os.scandir(directory):
        if not entry.is_dir(follow_symlinks=False) or entry.name.startswith("."):
            continue
        path = Path(entry.path)
        if (path / SUMMARY_NAME).is_file() or (path / MANIFEST_NAME).is_file():
            yield path
        elif depth > 1:
            yield from _directories(path, depth - 1)


def _archived(path: Path) -> Archived | None:
    try:
        return _audit(path) if (path / SUMMARY_NAME).is_file() else _tables(path)
    except InvalidInputError:
        return None


def _audit(path: Path) -> Archived | None:
    summary = read_summary(path)
    if _parquet_files(path) != set(summary.files):
        return None
    made_from = frozenset(read.sha256 for read in summary.inputs.values())
    return Archived(path, KIND, summary.instance_id, _sha256(path / SUMMARY_NAME), summary.store_time_ms, made_from)


def _tables(path: Path) -> Archived | None:
    try:
        manifest: Manifest = parse_manifest(json.loads((path / MANIFEST_NAME).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return None
    if _parquet_files(path) != {file.path for file in manifest.files}:
        return None
    time_ms = manifest.machine_times[1] if manifest.as_of is None else manifest.as_of.store_time_ms
    cluster = manifest.instance_id or _UNKNOWN_CLUSTER
    return Archived(path, manifest.kind.value, cluster, _sha256(path / MANIFEST_NAME), time_ms)


def _parquet_files(path: Path) -> set[str]:
    return {file.relative_to(path).as_posix() for file in path.rglob("*.parquet")}


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
