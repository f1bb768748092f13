"""Directories wherever Hadoop reads them (a disk, HDFS, an object store): what the job needs beside Spark's tables.

Everything is done by the driver and in constant memory.
"""

import hashlib
import json
import uuid
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pulsar_sidecar.audit.results.summaries import SUMMARY_NAME, AuditSummary, parse_summary
from pulsar_sidecar.audit.sources.manifests import (
    MANIFEST_NAME,
    OWNERS_DIRECTORY,
    OWNERS_FILE,
    Kind,
    Manifest,
    parse_manifest,
)
from pulsar_sidecar.model.errors import InvalidInputError
from pyspark.sql import SparkSession

_DIGESTS_AT_ONCE = 4


class Directory:
    """One directory."""

    def __init__(self, spark: SparkSession, place: str) -> None:
        self.place = place.rstrip("/") or "/"
        self._spark = spark
        self._jvm: Any = spark._jvm
        path = self._path()
        self._system = path.getFileSystem(spark._jsc.hadoopConfiguration())

    def exists(self) -> bool:
        """Whether there is anything at its place."""
        return bool(self._system.exists(self._path()))

    def parent_exists(self) -> bool:
        """Whether it could be made."""
        parent = self._system.makeQualified(self._path()).getParent()
        return parent is None or bool(self._system.exists(parent))

    def below(self, name: str) -> str:
        """The place of something in it."""
        return f"{self.place}/{name}"

    def on_disk(self) -> str | None:
        """Its path, if it is on a disk of this machine or one that is mounted here."""
        uri = self._system.makeQualified(self._path()).toUri()
        return str(uri.getPath()) if uri.getScheme() == "file" else None

    def make(self) -> None:
        """Make it, for its owner alone whatever the umask (an object store knows no such rights)."""
        jvm = self._jvm.org.apache.hadoop.fs
        jvm.FileSystem.mkdirs(self._system, self._path(), self._rights(OWNERS_DIRECTORY))

    def close_to_others(self) -> None:
        """Let its owner alone read whatever is in it."""
        self._close_to_others(self._system.getFileStatus(self._path()))

    def _close_to_others(self, status: Any) -> None:
        rights = OWNERS_DIRECTORY if status.isDirectory() else OWNERS_FILE
        self._system.setPermission(status.getPath(), self._rights(rights))
        for below in self._system.listStatus(status.getPath()) if status.isDirectory() else ():
            self._close_to_others(below)

    def _rights(self, mode: int) -> Any:
        return self._jvm.org.apache.hadoop.fs.permission.FsPermission(f"{mode:o}")

    def unfinished(self) -> "Directory":
        """Another directory beside it, for what is not whole yet; hidden where names with a dot are."""
        head, slash, name = self.place.rpartition("/")
        return Directory(self._spark, f"{head}{slash}.{name}.unfinished-{uuid.uuid4().hex[:8]}")

    def read_text(self, name: str) -> str:
        """A small file."""
        stream = self._system.open(self._path(name))
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def write_text(self, name: str, text: str) -> None:
        """Make a small file."""
        stream = self._system.create(self._path(name), False)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()

    def finish(self, name: str, document: Mapping[str, Any]) -> None:
        """Write the last file of what is in it."""
        self.write_text(name, json.dumps(document, indent=2, ensure_ascii=False) + "\n")
        self.clean()

    def sha256(self, name: str) -> str:
        """The digest of a file."""
        disk = self.on_disk()
        if disk is not None:
            with Path(disk, name).open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest()
        stream = self._system.open(self._path(name))
        try:
            return str(self._jvm.org.apache.commons.codec.digest.DigestUtils.sha256Hex(stream))
        finally:
            stream.close()

    def sha256_of_all(self, names: list[str]) -> dict[str, str]:
        """The digests of files."""
        with ThreadPoolExecutor(_DIGESTS_AT_ONCE) as threads:
            return dict(zip(names, threads.map(self.sha256, names), strict=True))

    def tables(self) -> set[str]:
        """The paths of all Parquet files, below this directory."""
        root = self._system.makeQualified(self._path()).toString()
        found = set()
        files = self._system.listFiles(self._path(), True)
        while files.hasNext():
            name = files.next().getPath().toString().removeprefix(f"{root}/")
            if name.endswith(".parquet"):
                found.add(name)
        return found

    def clean(self) -> None:
        """Remove what Spark leaves beside tables."""
        files = self._system.listFiles(self._path(), True)
        while files.hasNext():
            path = files.next().getPath()
            if path.getName() == "_SUCCESS" or path.getName().endswith(".crc"):
                self._system.delete(path, False)

    def become(self, other: "Directory") -> None:
        """Take another directory's place, in which nothing is."""
        if other.exists() or not self._system.rename(self._path(), other._path()):
            raise InvalidInputError(f"{other.place} has appeared meanwhile; nothing is overwritten")

    def remove(self) -> None:
        """Remove it with all that is in it."""
        self._system.delete(self._path(), True)

    def _path(self, name: str | None = None) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self.place if name is None else self.below(name))


def open_tables(directory: Directory, kind: Kind) -> Manifest:
    """The manifest of a dump or a listing, after every file was compared with it.

    Raises:
        InvalidInputError: no such thing, of another kind, or a file is missing, damaged or too many.
    """
    manifest = parse_manifest(_document(directory, MANIFEST_NAME))
    if manifest.kind is not kind:
        raise InvalidInputError(f"{directory.place} is a {manifest.kind.value} and no {kind.value}")
    _demand_files(directory, {file.path: file.sha256 for file in manifest.files})
    return manifest


def open_audit(directory: Directory) -> AuditSummary:
    """The summary of an audit, after every file was compared with it.

    Raises:
        InvalidInputError: no audit, or a file is missing, damaged or too many.
    """
    summary = parse_summary(_document(directory, SUMMARY_NAME))
    _demand_files(directory, summary.files)
    return summary


def _document(directory: Directory, name: str) -> Any:
    try:
        return json.loads(directory.read_text(name))
    except Exception as error:  # whatever the JVM throws for this file system
        raise InvalidInputError(f"{directory.place} holds no readable {name}") from error


def _demand_files(directory: Directory, wanted: Any) -> None:
    if directory.tables() != set(wanted):
        raise InvalidInputError(f"{directory.place} does not hold exactly the files that it names; make it again")
    for name, sha256 in directory.sha256_of_all(sorted(wanted)).items():
        if sha256 != wanted[name]:
            raise InvalidInputError(f"{directory.below(name)} is not what was written; make it again")
