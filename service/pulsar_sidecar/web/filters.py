"""Filters and pages live in the address, so that a view can be sent to a colleague."""

from collections.abc import Sequence
from dataclasses import dataclass

from fastapi import Request

PAGE_ROWS = 50


@dataclass(frozen=True, slots=True)
class Field:
    """One filter.

    Attributes:
        choices: value and label of each; empty for a text.
    """

    name: str
    label: str
    value: str | None = None
    choices: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True, slots=True)
class Pager:
    """Where in a list a page is.

    Attributes:
        first: number of its first row, from 1; 0, as ``last``, where it has none.
        total: rows of the whole list.
        previous: address of the page before; None on the first.
        following: address of the next page; None on the last.
    """

    first: int
    last: int
    total: int
    previous: str | None
    following: str | None

    @classmethod
    def of(cls, request: Request, offset: int, limit: int, total: int) -> "Pager":
        """For rows ``offset`` (from 0) and the ``limit`` - 1 after it; a list may have become shorter than that."""
        if offset >= total:
            last_page = max(0, total - 1) // limit * limit
            return cls(0, 0, total, _with(request, str(last_page)) if offset else None, None)
        last = min(offset + limit, total)
        before = _with(request, str(max(0, offset - limit))) if offset > 0 else None
        after = _with(request, str(offset + limit)) if last < total else None
        return cls(offset + 1, last, total, before, after)


def offset_of(request: Request) -> int:
    """``offset`` of the address; 0 for none, or for what is not a number."""
    text = request.query_params.get("offset", "0")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0


def _with(request: Request, offset: str) -> str:
    return str(request.url.include_query_params(offset=offset).replace(scheme="", netloc=""))
