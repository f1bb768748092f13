"""Reads back what `service.adapters.parquet.output` wrote, and refuses what is not exactly that."""

import hashlib
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds

from service.audit.manifests import MANIFEST_NAME, FileDigest, Kind, Manifest, parse_manifest
from service.audit.tables import SCHEMAS, Subtree, Table
from service.model.errors import InvalidInputError

_CHUNK_BYTES = 4 * 1024 * 1024


def open_tables(directory: Path, kind: Kind) -> Manifest:
    """The manifest of a directory, after every file was compared with it.

    Raises:
        InvalidInputError: no such thing, of another kind, or a file is missing, damaged or too many.
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
    for file in manifest.files:
        _demand_digest(directory, file)
    return manifest


def read_table(directory: Path, table: Table, subtree: Subtree | None = None) -> pa.Table:
    """A whole table, or one part of it, in memory; empty if there is no such part."""
    folder = directory / table.value if subtree is None else directory / table.value / f"subtree={subtree.value}"
    if not folder.exists():
        return SCHEMAS[table].empty_table()
    return ds.dataset(folder, schema=SCHEMAS[table], format="parquet").to_table()


def _demand_digest(directory: Path, file: FileDigest) -> None:
    digest = hashlib.sha256()
    with (directory / file.path).open("rb") as stream:
        while piece := stream.read(_CHUNK_BYTES):
            digest.update(piece)
    if digest.hexdigest() != file.sha256:
        raise InvalidInputError(f"{directory / file.path} is not what was written; make it again")
