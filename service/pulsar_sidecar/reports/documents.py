"""Documents beside tables, and exit codes of programs that read them.

Invariant: such a document is written last, and only when the rest is complete. No Arrow, so ``--help`` is quick.
"""

from enum import StrEnum

import msgspec

from pulsar_sidecar.model.decoding import decodable

MANIFEST_NAME = "manifest.json"
"""Document beside tables that were read somewhere."""
SUMMARY_NAME = "summary.json"
"""Document beside tables of findings in others."""
OWNERS_DIRECTORY, OWNERS_FILE = 0o700, 0o600
"""Modes of tables, for their owner only: access control lists may protect their content where it was read."""

EXIT_CLEAN, EXIT_ERROR, EXIT_FINDINGS = 0, 1, 2


@decodable
class Document(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Part of a JSON document: ``snake_case`` in Python, ``camelCase`` in JSON."""


class Engine(StrEnum):
    """Program that runs an analysis; both write the same tables."""

    EMBEDDED = "embedded"
    SPARK = "spark"


@decodable
class FileDigest(Document, frozen=True):
    """A file of a table, with its path below the directory."""

    path: str
    rows: int
    size_bytes: int = msgspec.field(name="bytes")
    sha256: str


@decodable
class Limitation(Document, frozen=True):
    """Something that could not be checked, and the consequence."""

    what: str
    count: int
    consequence: str
