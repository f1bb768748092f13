"""Manifest of an extract: its origin, its content, and the proof that it is complete.

Invariant: a manifest is written last, and only of a complete extract: every topic of its scope was read to its end, and
every entry of it is counted, as seen or as not seen. A manifest of an unknown format is refused.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from pulsar_sidecar.model.decoding import decodable
from pulsar_sidecar.model.errors import InvalidInputError
from pulsar_sidecar.reports.documents import Document, FileDigest
from pulsar_sidecar.reports.formatting import format_count

FORMAT_VERSION: Final = 1
KIND: Final = "message-extract"
_ENVELOPE: Final = {"kind", "formatVersion", "complete", "tool"}


@decodable
class UnseenCount(Document, frozen=True):
    """Entries of one cause that were not seen: rows of the table ``unseen``, and those of them without a known end.

    ``entries`` counts the ranges whose ends are known.
    """

    ranges: int
    entries: int
    unbounded: int


@decodable
class ExtractManifest(Document, frozen=True, kw_only=True):
    """Manifest of an extract.

    Attributes:
        scope: tenant, namespace or topic that the user requested.
        source: address of the metadata store, without credentials.
        topics: number of partitions, and topics without, that were read, including empty ones.
        gone: number of topics that were deleted before they were read, and of partitions that were never used.
        entries: number of entries that were seen; ``messages`` and ``ledgers`` count rows of tables.
        unseen: counts by the value of an `UnseenCause`, in no order.
        machine_times: start and end, milliseconds since the epoch by this machine's clock.
    """

    tool_version: str
    scope: str
    source: str
    instance_id: str
    topics: int
    gone: int
    ledgers: int
    entries: int
    messages: int
    unseen: Mapping[str, UnseenCount]
    files: tuple[FileDigest, ...]
    machine_times: tuple[int, int]

    def document(self) -> dict[str, Any]:
        """Return the manifest as JSON has it."""
        parts = msgspec.json.decode(msgspec.json.encode(self, order="deterministic"))
        tool = {"name": "pulsar-sidecar", "version": parts.pop("toolVersion")}
        return {"kind": KIND, "formatVersion": FORMAT_VERSION, "complete": True, "tool": tool, **parts}


def parse_manifest(document: Any) -> ExtractManifest:
    """Read a document of `ExtractManifest.document`; everything else is an `InvalidInputError`."""
    try:
        if document["kind"] != KIND:
            raise InvalidInputError(f"this is the manifest of a {document['kind']} and not of a {KIND}")
        if document["formatVersion"] != FORMAT_VERSION:
            raise InvalidInputError(f"format {document['formatVersion']} is not known to this version; upgrade first")
        parts = {name: document[name] for name in document.keys() - _ENVELOPE}
        manifest = msgspec.convert(parts | {"toolVersion": document["tool"]["version"]}, ExtractManifest)
    except (KeyError, TypeError, AttributeError, msgspec.ValidationError) as error:
        raise InvalidInputError(f"this is not the manifest of an extract ({error!r})") from error
    if manifest.document() != document:
        raise InvalidInputError(
            "this is not the manifest of a complete extract: a field is missing or contradicts another"
        )
    counted = sum(file.rows for file in manifest.files)
    counted_rows = manifest.messages + manifest.ledgers + sum(count.ranges for count in manifest.unseen.values())
    if counted != counted_rows:
        raise InvalidInputError(
            f"the files of this extract hold {format_count(counted, 'row')}, and its manifest counts {counted_rows}"
        )
    return manifest
