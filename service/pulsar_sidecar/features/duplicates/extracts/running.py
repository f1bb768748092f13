"""Search of an opened extract, up to its summary and report.

Invariant: the tables appear all at once or not at all, and only of a complete extract.
"""

from msgspec import structs

from pulsar_sidecar.features.duplicates.extracts.embedded import EmbeddedEngine, ReportRows
from pulsar_sidecar.features.duplicates.extracts.results import DuplicatesSummary, conclude, unseen_parts
from pulsar_sidecar.features.duplicates.manifests import ExtractManifest
from pulsar_sidecar.model.errors import InvalidInputError
from pulsar_sidecar.reports.documents import SUMMARY_NAME, Engine
from pulsar_sidecar.reports.formatting import Row, format_count
from pulsar_sidecar.reports.pages import REPORT_NAME, page_environment


def find_duplicates(
    engine: EmbeddedEngine, manifest: ExtractManifest, sha256: str, *, tool_version: str, place: str
) -> DuplicatesSummary:
    """Search an extract; after `InvalidInputError` (it is not complete) nothing is left behind.

    ``sha256`` is the digest of ``manifest``, which all files match; ``place`` the output as its user wrote it.
    """
    with engine.write() as written:
        counts = written.counts
        if counts.rows != manifest.messages:
            raise InvalidInputError(
                f"the extract has {format_count(counts.rows, 'message')}, and its manifest counts "
                f"{manifest.messages:,}; "
                "extract the messages again"
            )
        summary = DuplicatesSummary(
            engine=Engine.EMBEDDED,
            tool_version=tool_version,
            extract_sha256=sha256,
            scope=manifest.scope,
            source=manifest.source,
            instance_id=manifest.instance_id,
            extract_times=manifest.machine_times,
            topics=manifest.topics,
            unseen=unseen_parts(manifest.unseen, counts.unopened_batches),
            **structs.asdict(counts),
            files=written.files,
        )
        written.output.write_text(REPORT_NAME, _report(summary, written.shown, place))
        written.output.finish(SUMMARY_NAME, summary.document())
    return summary


def _report(summary: DuplicatesSummary, shown: ReportRows, place: str) -> str:
    environment = page_environment("pulsar_sidecar.features.duplicates.extracts")
    environment.filters |= {"place": _place}
    page = environment.get_template("duplicates.html.j2")
    return page.render(summary=summary, shown=shown, conclusion=conclude(summary, place))


def _place(row: Row, prefix: str = "") -> str:
    parts = [row[f"{prefix}{name}"] for name in ("ledger_id", "entry_id", "batch_index")]
    return "-" if parts[0] is None else ":".join(map(str, parts))
