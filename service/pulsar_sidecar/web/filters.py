"""Filters and page numbers in the address, so that users can share a view."""

from collections.abc import Sequence
from dataclasses import dataclass

from fastapi import Request

PAGE_ROWS = 50


@dataclass(frozen=True, slots=True)
class Field:
    """A filter.

    Attributes:
        choices: value and label of each choice; empty for free text.
    """

    name: str
    label: str
    value: str | None = None
    choices: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True, slots=True)
class Pager:
    """Position of a page in a list.

    Attributes:
        first: number of the first row, from 1; 0, like ``last``, on an empty page.
        total: rows of the whole list.
        previous: address of the previous page; None on the first.
        following: address of the next page; None on the last.
    """

    first: int
    last: int
    total: int
    previous: str | None
    following: str | None

    @classmethod
    def of(cls, request: Request, offset: int, limit: int, total: int) -> "Pager":
        """Return the pager of ``limit`` rows from ``offset`` (from 0), which a shrunken list may no longer have."""
        if offset >= total:
            last_page = max(0, total - 1) // limit * limit
            return cls(0, 0, total, _with(request, str(last_page)) if offset else None, None)
        last = min(offset + limit, total)
        before = _with(request, str(max(0, offset - limit))) if offset > 0 else None
        after = _with(request, str(offset + limit)) if last < total else None
        return cls(offset + 1, last, total, before, after)


def offset_of(request: Request) -> int:
    """Return the ``offset`` of the address; 0 if it has none or no number."""
    text = request.query_params.get("offset", "0")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0


def _with(request: Request, offset: str) -> str:
    return str(request.url.include_query_params(offset=offset).replace(scheme="", netloc=""))
