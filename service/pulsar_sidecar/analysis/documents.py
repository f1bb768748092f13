"""The documents beside tables: what a directory holds, and the exit codes of programs that read one.

Invariant: such a document is written last, and only of something that is complete. No Arrow, so ``--help`` is quick.
"""

from enum import StrEnum

import msgspec

from pulsar_sidecar.model.decoding import decodable

MANIFEST_NAME = "manifest.json"
"""Beside tables that were read somewhere."""
SUMMARY_NAME = "summary.json"
"""Beside tables of what was found in others."""
OWNERS_DIRECTORY, OWNERS_FILE = 0o700, 0o600
"""Who may look at the tables: they hold what access control lists may protect where they were read."""

EXIT_CLEAN, EXIT_ERROR, EXIT_FINDINGS = 0, 1, 2


@decodable
class Document(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """A part of a JSON document: ``snake_case`` in Python, ``camelCase`` in JSON."""


class Engine(StrEnum):
    """Which of the two found something; their tables are the same."""

    EMBEDDED = "embedded"
    SPARK = "spark"


@decodable
class FileDigest(Document, frozen=True):
    """One file of a table, its path below the directory."""

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
