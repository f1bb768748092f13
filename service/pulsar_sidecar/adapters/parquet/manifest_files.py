"""Manifests on a disk, and whether the files beside them are what they say; does without Arrow."""

import hashlib
import json
from pathlib import Path

from pulsar_sidecar.audit.sources.manifests import MANIFEST_NAME, Kind, Manifest, parse_manifest
from pulsar_sidecar.model.errors import InvalidInputError

_CHUNK_BYTES = 4 * 1024 * 1024


def open_tables(directory: Path, kind: Kind) -> Manifest:
    """The manifest of a directory, after every file was compared with it.

    Raises:
        InvalidInputError: no such thing, of another kind, or a file is missing, damaged or too many.
    """
    manifest = read_manifest(directory, kind)
    for file in manifest.files:
        demand_sha256(directory / file.path, file.sha256)
    return manifest


def read_manifest(directory: Path, kind: Kind) -> Manifest:
    """The manifest of a directory that has the files which it names, not yet compared with it.

    Raises:
        InvalidInputError: no such thing, of another kind, or a file is missing or too many.
    """
    try:
        document = json.loads((directory / MANIFEST_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidInputError(
            f"{directory} holds no readable {MANIFEST_NAME}; make the {kind.value} again"
        ) from error
    manifest = parse_manifest(document)
    if manifest.kind is not kind:
        raise InvalidInputError(f"{directory} is a {manifest.kind.value} and no {kind.value}")
    there = {path.relative_to(directory).as_posix() for path in directory.rglob("*.parquet")}
    if there != {file.path for file in manifest.files}:
        raise InvalidInputError(f"{directory} does not hold exactly the files of its {MANIFEST_NAME}; make it again")
    return manifest


def demand_sha256(path: Path, sha256: str) -> None:
    """Refuse a file that is not what was written.

    Raises:
        InvalidInputError: it is missing, or another.
    """
    digest = hashlib.sha256()
    try:
        with path.open("rb") as stream:
            while piece := stream.read(_CHUNK_BYTES):
                digest.update(piece)
    except OSError as error:
        raise InvalidInputError(f"{path} cannot be read ({error.strerror}); make it again") from error
    if digest.hexdigest() != sha256:
        raise InvalidInputError(f"{path} is not what was written; make it again")
