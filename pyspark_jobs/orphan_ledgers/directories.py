"""The audit's inputs as Spark reads them, each compared with its manifest or summary."""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
from pulsar_sidecar.analysis.documents import MANIFEST_NAME, SUMMARY_NAME
from pulsar_sidecar.audit.results.summaries import AuditSummary, parse_summary
from pulsar_sidecar.audit.results.tables import LEDGERS, NODES, Subtree, Table
from pulsar_sidecar.audit.sources.manifests import LEDGERS_LEFT_OUT, InputKind, Manifest, parse_manifest
from pulsar_sidecar.model.errors import InvalidInputError
from pyspark.sql import SparkSession

from pyspark_jobs.running.directories import Directory, Rows, demand_files


def open_tables(directory: Directory, kind: InputKind) -> Manifest:
    """The manifest of a dump or a listing, after every file was compared with it.

    Raises:
        InvalidInputError: no such thing, of another kind, or a file is missing, damaged or too many.
    """
    manifest = parse_manifest(directory.read_document(MANIFEST_NAME))
    if manifest.kind is not kind:
        raise InvalidInputError(f"{directory.place} is a {manifest.kind.value}, not a {kind.value}")
    demand_files(directory, {file.path: file.sha256 for file in manifest.files})
    return manifest


def open_audit(directory: Directory) -> AuditSummary:
    """The summary of an audit, after every file was compared with it.

    Raises:
        InvalidInputError: no audit, or a file is missing, damaged or too many.
    """
    summary = parse_summary(directory.read_document(SUMMARY_NAME))
    demand_files(directory, summary.files)
    return summary


@dataclass(frozen=True, slots=True)
class Inputs:
    """A dump and a listing that were opened."""

    spark: SparkSession
    dump: Directory
    listing: Directory
    dump_manifest: Manifest
    listing_manifest: Manifest

    @property
    def own_ledgers(self) -> bool:
        """Whether the dump holds BookKeeper's ledgers itself."""
        return LEDGERS_LEFT_OUT not in self.dump_manifest.left_out

    def nodes(self, columns: Sequence[str], *subtrees: Subtree) -> Rows:
        """Nodes of some subtrees."""
        return self._dumped(NODES, columns, *(f"{Table.NODES.value}/subtree={each.value}/" for each in subtrees))

    def table(self, table: Table, schema: pa.Schema) -> Rows:
        """One of the dump's small tables."""
        return self._dumped(schema, schema.names, f"{table.value}/")

    def ledgers(self, columns: Sequence[str]) -> Rows:
        """The listing."""
        names = [file.path for file in self.listing_manifest.files]
        return Rows(self.spark, self.listing, names, LEDGERS, columns)

    def _dumped(self, schema: pa.Schema, columns: Sequence[str], *beginnings: str) -> Rows:
        names = [file.path for file in self.dump_manifest.files if file.path.startswith(beginnings)]
        return Rows(self.spark, self.dump, names, schema, columns)
