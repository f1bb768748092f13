"""Directories on any file system of Hadoop's (a disk, HDFS, an object store), and the rows of their tables.

Workers read row groups themselves from a disk that they share with the driver, because the conversion of Spark's rows
to Arrow costs several times as much as reading. From elsewhere Spark reads them. The driver does everything else, in
constant memory.
"""

import hashlib
import json
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pulsar_sidecar.model.errors import InvalidInputError
from pulsar_sidecar.reports.documents import OWNERS_DIRECTORY, OWNERS_FILE
from pyspark.sql import DataFrame, SparkSession

from pyspark_jobs.running.tasks import About, Batches, Task, in_worker, mapped, spark_schema

_RENAMES_AT_ONCE = ("file", "hdfs")
"""File systems that rename a directory at once; an object store copies one object after the other."""
_DIGESTS_AT_ONCE = 4
_ROW_GROUPS_OF_A_TASK = 8
_ROWS_AT_ONCE = 131_072
"""Most rows in one of the sidecar's row groups; those of other writers may be larger."""


class Directory:
    """Path on any of Hadoop's file systems; an unfinished one is renamed in the end.

    `InvalidInputError`: Spark has no such file system, or cannot reach it.
    """

    def __init__(self, spark: SparkSession, place: str, target: "Directory | None" = None) -> None:
        self.place = place.rstrip("/") or "/"
        self._spark = spark
        self._target = target
        self._jvm: Any = spark._jvm
        path = self._path()
        try:
            self._system = path.getFileSystem(spark._jsc.hadoopConfiguration())
            self._root = self._system.makeQualified(path)
        except Exception as error:  # whatever the JVM throws for this scheme
            raise InvalidInputError(
                f"Spark cannot open {place} ({_reason(error)}); name its connector at submission, such as "
                "--packages org.apache.hadoop:hadoop-aws:VERSION for s3a://, or copy the directory to a disk"
            ) from error

    def below(self, name: str) -> str:
        return f"{self.place}/{name}"

    def on_disk(self) -> str | None:
        """Return the directory's path if it is on a local or mounted disk."""
        uri = self._root.toUri()
        return str(uri.getPath()) if uri.getScheme() == "file" else None

    @contextmanager
    def making(self) -> Iterator["Directory"]:
        """Yield an unfinished directory beside this one, with a dot in front, which `finish` renames to this one.

        Only its owner may read it, whatever the umask (object stores have no such rights). Without `finish` nothing is
        left behind. `InvalidInputError`: this directory exists, or its parent does not; object stores need no parent.
        """
        if self._exists(self._root):
            raise InvalidInputError(f"{self.place} already exists; nothing is overwritten, name another directory")
        parent = self._root.getParent()
        if self._renames_at_once() and parent is not None and not self._exists(parent):
            raise InvalidInputError(f"there is no directory above {self.place}; create it first")
        head, slash, name = self.place.rpartition("/")
        making = Directory(self._spark, f"{head}{slash}.{name}.unfinished-{uuid.uuid4().hex[:8]}", self)
        try:
            rights = self._rights(OWNERS_DIRECTORY)
            self._system.mkdirs(making._root, rights)
            self._system.setPermission(making._root, rights)  # whatever the umask
            yield making
        finally:
            self._system.delete(making._root, True)

    def finish(self, name: str, document: Mapping[str, Any]) -> None:
        """See `UnfinishedDirectory.finish`; where no rename is at once, the document comes after all other files."""
        assert self._target is not None
        text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
        if self._renames_at_once():
            self.write_text(name, text)
        self.clean()
        self._close_to_others(self._system.getFileStatus(self._root))
        target = self._target._root
        if self._exists(target) or not self._system.rename(self._root, target):
            raise InvalidInputError(f"{self._target.place} was created meanwhile; nothing is overwritten")
        if not self._renames_at_once():
            self._target.write_text(name, text)
            self._close_to_others(self._system.getFileStatus(self._target._path(name)))

    def _renames_at_once(self) -> bool:
        return self._root.toUri().getScheme() in _RENAMES_AT_ONCE

    def _exists(self, path: Any) -> bool:
        try:
            return bool(self._system.exists(path))
        except Exception as error:  # whatever the JVM throws for this file system
            raise InvalidInputError(f"{self.place} cannot be checked ({_reason(error)})") from error

    def _close_to_others(self, status: Any) -> None:
        rights = OWNERS_DIRECTORY if status.isDirectory() else OWNERS_FILE
        self._system.setPermission(status.getPath(), self._rights(rights))
        for below in self._system.listStatus(status.getPath()) if status.isDirectory() else ():
            self._close_to_others(below)

    def _rights(self, mode: int) -> Any:
        return self._jvm.org.apache.hadoop.fs.permission.FsPermission(f"{mode:o}")

    def read_document(self, name: str) -> Any:
        """Return the contents of a small JSON file. `InvalidInputError`: it is missing or cannot be read."""
        try:
            with closing(self._system.open(self._path(name))) as stream:
                return json.loads(bytes(stream.readAllBytes()))
        except Exception as error:  # whatever the JVM throws for this file system
            raise InvalidInputError(f"{self.place} has no readable {name} ({_reason(error)})") from error

    def write_text(self, name: str, text: str) -> None:
        with closing(self._system.create(self._path(name), False)) as stream:
            stream.write(bytearray(text.encode()))

    def clean(self) -> None:
        """Remove the files that Spark leaves beside tables."""
        for path in self._files():
            if path.getName() == "_SUCCESS" or path.getName().endswith(".crc"):
                self._system.delete(path, False)

    def sha256(self, name: str) -> str:
        disk = self.on_disk()
        if disk is not None:
            with Path(disk, name).open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest()
        java = self._jvm.java
        digest = java.security.MessageDigest.getInstance("SHA-256")
        with closing(self._system.open(self._path(name))) as stream:
            java.security.DigestInputStream(stream, digest).transferTo(java.io.OutputStream.nullOutputStream())
        return bytes(digest.digest()).hex()

    def tables(self) -> set[str]:
        """Return the relative paths of all Parquet files below this directory."""
        names = (path.toString().removeprefix(f"{self._root.toString()}/") for path in self._files())
        return {name for name in names if name.endswith(".parquet")}

    def digests(self, names: Collection[str]) -> dict[str, str]:
        with ThreadPoolExecutor(_DIGESTS_AT_ONCE) as threads:
            return dict(zip(names, threads.map(self.sha256, names), strict=True))

    def _files(self) -> Iterator[Any]:
        files = self._system.listFiles(self._root, True)
        while files.hasNext():
            yield files.next().getPath()

    def _path(self, name: str | None = None) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self.place if name is None else self.below(name))


def _reason(error: Exception) -> str:
    """Return the first line of the JVM's exception, or of the error itself."""
    return str(getattr(error, "java_exception", error)).partition("\n")[0]


def demand_files(directory: Directory, wanted: Mapping[str, str]) -> None:
    """Refuse, as `InvalidInputError`, a directory that has not exactly these Parquet files with these digests."""
    if directory.tables() != set(wanted):
        raise InvalidInputError(f"{directory.place} does not contain exactly the files that it names; create it again")
    for name, sha256 in directory.digests(sorted(wanted)).items():
        if sha256 != wanted[name]:
            raise InvalidInputError(f"{directory.below(name)} does not match its SHA-256; create the directory again")


@dataclass(frozen=True, slots=True)
class Rows:
    """Columns of files of a directory; ``schema`` is that of the files."""

    spark: SparkSession
    directory: Directory
    names: Sequence[str]
    schema: pa.Schema
    columns: Sequence[str]

    def frame(self) -> DataFrame:
        """Return the rows as Spark reads them, for joins."""
        schema = spark_schema(self.schema)
        if not self.names:
            return self.spark.createDataFrame([], schema).select(*self.columns)
        return self.spark.read.schema(schema).parquet(*map(self.directory.below, self.names)).select(*self.columns)

    def mapped(self, schema: pa.Schema, task: Task[About], *args: About.args, **kwargs: About.kwargs) -> DataFrame:
        """Return the result of a task on the rows."""
        disk = self.directory.on_disk()
        if disk is None:
            return mapped(self.frame(), schema, task, *args, **kwargs)
        groups, columns = _groups_on_disk(disk, self.names), list(self.columns)
        work = in_worker(lambda some: task(_read(some, groups, columns), *args, **kwargs))
        return _numbers_of(self.spark, groups).mapInArrow(work, spark_schema(schema))


def _groups_on_disk(disk: str, names: Iterable[str]) -> list[tuple[str, int]]:
    """Return all row groups of files below a path, each with its file and its number there."""
    paths = [f"{disk}/{name}" for name in names]
    return [(path, number) for path in paths for number in range(pq.read_metadata(path).num_row_groups)]


def _numbers_of(spark: SparkSession, groups: Sequence[tuple[str, int]]) -> DataFrame:
    """Return the numbers of row groups, several for each Spark task if there are many."""
    wanted = max(len(groups) // _ROW_GROUPS_OF_A_TASK, spark.sparkContext.defaultParallelism)
    return spark.range(0, len(groups), 1, max(1, min(len(groups), wanted)))


def _read(numbers: Batches, groups: Sequence[tuple[str, int]], columns: list[str]) -> Iterator[pa.RecordBatch]:
    for batch in numbers:
        for number in batch.column(0).to_pylist():
            path, group = groups[number]
            with pq.ParquetFile(path) as file:
                for some in file.iter_batches(_ROWS_AT_ONCE, row_groups=[group], columns=columns, use_threads=False):
                    yield some.select(columns)
