"""Dumps, listings and audits on a disk: verification of digests, listing and removal.

Invariant: only a directory with a readable summary or manifest of ours, and with exactly the Parquet files that it
names, counts as one; all others are left alone. Needs no Arrow.
"""

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from pulsar_sidecar.features.audit.pruning import ArchivedDirectory
from pulsar_sidecar.features.audit.results.summaries import KIND, AuditSummary, parse_summary
from pulsar_sidecar.features.audit.sources.manifests import InputKind, Manifest, parse_manifest
from pulsar_sidecar.model.errors import InvalidInputError, TemporaryError
from pulsar_sidecar.reports.documents import MANIFEST_NAME, SUMMARY_NAME

_DEPTH: Final = 3
_ADDRESS: Final = re.compile("[a-z][a-z0-9]+:/")


def open_tables(directory: Path, kind: InputKind) -> Manifest:
    """Return a directory's manifest after comparing every file with it; `InvalidInputError` as `read_manifest`."""
    manifest = read_manifest(directory, kind)
    for file in manifest.files:
        demand_sha256(directory / file.path, file.sha256)
    return manifest


def read_manifest(directory: Path, kind: InputKind) -> Manifest:
    """Return the manifest of a directory that has the files it names, without comparing them.

    `InvalidInputError`: no such directory, another kind, or a file is missing or too many.
    """
    manifest = parse_manifest(read_document(directory, MANIFEST_NAME, f"; create the {kind.value} again"))
    if manifest.kind is not kind:
        raise InvalidInputError(f"{directory} is a {manifest.kind.value}, not a {kind.value}")
    demand_files(directory, {file.path for file in manifest.files}, MANIFEST_NAME)
    return manifest


def open_audit(directory: Path) -> AuditSummary:
    """Return the summary of an audit, after comparing every file with it. `InvalidInputError`: it is not whole."""
    summary = read_summary(directory)
    demand_files(directory, set(summary.files), SUMMARY_NAME)
    for name, sha256 in summary.files.items():
        demand_sha256(directory / name, sha256)
    return summary


def read_summary(directory: Path) -> AuditSummary:
    """Return the summary alone, without reading the tables. `InvalidInputError`: none can be read."""
    document = read_document(directory, SUMMARY_NAME, ": it is not an audit, or an unfinished one")
    try:
        return parse_summary(document)
    except InvalidInputError as error:
        raise InvalidInputError(f"{directory / SUMMARY_NAME}: {error}") from error


@contextmanager
def hidden_beside(directory: Path, suffix: str) -> Iterator[Path]:
    """Make a hidden directory beside another, whose name ends in ``suffix``; remove it at the end with its content.

    `InvalidInputError`: the parent does not exist. `TemporaryError`: it cannot be written.
    """
    parent = directory.absolute().parent
    try:
        hidden = Path(tempfile.mkdtemp(prefix=f".{directory.name}.{suffix}-", dir=parent))
    except FileNotFoundError as error:
        advice = _advice_about_stores(directory) or "; create it first"
        raise InvalidInputError(f"there is no directory {parent}{advice}") from error
    except OSError as error:
        raise TemporaryError(f"nothing can be written in {parent} ({error.strerror})") from error
    try:
        yield hidden
    except OSError as error:
        raise TemporaryError(
            f"writing to {parent} failed ({error}); free disk space, then repeat the command"
        ) from error
    finally:
        shutil.rmtree(hidden, ignore_errors=True)


def demand_sha256(path: Path, sha256: str) -> None:
    """Refuse, as `InvalidInputError`, a file that is missing or differs from what was written."""
    try:
        found = sha256_of(path)
    except OSError as error:
        raise InvalidInputError(f"{path} cannot be read ({error.strerror}); create it again") from error
    if found != sha256:
        raise InvalidInputError(f"{path} does not match its SHA-256; create the directory again")


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def archived_below(directory: Path) -> list[ArchivedDirectory]:
    """Return every complete one at most three directories deep; links are not followed."""
    if not directory.is_dir():
        raise InvalidInputError(f"there is no directory {directory}")
    return [found for path in sorted(_directories(directory, _DEPTH)) if (found := _archived(path)) is not None]


def summaries_below(directory: Path) -> list[Path]:
    """Return every directory at most three directories deep with a summary, of an audit or of another analysis."""
    try:
        return [path for path in sorted(_directories(directory, _DEPTH)) if (path / SUMMARY_NAME).is_file()]
    except OSError as error:
        raise TemporaryError(f"{directory} cannot be read ({error.strerror}); see auditsDirectory") from error


def remove(archived: ArchivedDirectory) -> None:
    """Remove a directory, which disappears at once, however long the deletion takes; else raise `TemporaryError`."""
    try:
        going = Path(tempfile.mkdtemp(prefix=f".{archived.path.name}.removing-", dir=archived.path.parent))
        archived.path.rename(going / archived.path.name)
        shutil.rmtree(going)
    except OSError as error:
        raise TemporaryError(f"{archived.path} cannot be removed ({error.strerror})") from error


def read_document(directory: Path, name: str, advice: str) -> Any:
    """Parse a manifest or a summary as JSON only; ``advice`` ends the sentence of an `InvalidInputError`."""
    try:
        return json.loads((directory / name).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        advice = _advice_about_stores(directory) or advice
        raise InvalidInputError(f"{directory} has no readable {name}{advice}") from error


def _advice_about_stores(directory: Path) -> str:
    """Return the next step after an address, of which a path has one slash less; nothing for other paths."""
    if _ADDRESS.match(str(directory)) is None:
        return ""
    return "; only the Spark job reads and writes object stores: work on a disk, and copy the whole directory"


def demand_files(directory: Path, wanted: Collection[str], name: str) -> None:
    """Refuse, as `InvalidInputError`, a directory without exactly the Parquet files that its document names."""
    if {path.relative_to(directory).as_posix() for path in directory.rglob("*.parquet")} != set(wanted):
        raise InvalidInputError(f"{directory} does not contain exactly the files of its {name}; create it again")


def _directories(directory: Path, depth: int) -> Iterator[Path]:
    for entry in os.scandir(directory):
        if not entry.is_dir(follow_symlinks=False) or entry.name.startswith("."):
            continue
        path = Path(entry.path)
        if (path / SUMMARY_NAME).is_file() or (path / MANIFEST_NAME).is_file():
            yield path
        elif depth > 1:
            yield from _directories(path, depth - 1)


def _archived(path: Path) -> ArchivedDirectory | None:
    try:
        if (path / SUMMARY_NAME).is_file():
            summary = read_summary(path)
            demand_files(path, summary.files, SUMMARY_NAME)
            input_digests = frozenset(read.sha256 for read in summary.inputs.values())
            digest = sha256_of(path / SUMMARY_NAME)
            return ArchivedDirectory(path, KIND, summary.instance_id, digest, summary.store_time_ms, input_digests)
        manifest = parse_manifest(read_document(path, MANIFEST_NAME, "; create it again"))
        demand_files(path, {file.path for file in manifest.files}, MANIFEST_NAME)
        time_ms = manifest.machine_times[1] if manifest.as_of is None else manifest.as_of.store_time_ms
        digest = sha256_of(path / MANIFEST_NAME)
        return ArchivedDirectory(path, manifest.kind.value, manifest.instance_id, digest, time_ms)
    except InvalidInputError:
        return None
