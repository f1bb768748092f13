"""Redaction of log lines and spans: neither credentials nor texts that grow with what a stranger sent.

Invariant: nothing that looks like a credential leaves the process in a log line, whichever code wrote it and wherever
in the line it stands: by a field's name, or by its shape inside any text, tracebacks included. Every text and every
list in a line is cut, and is searched in time in proportion to its length.
"""

import re
from collections.abc import Mapping, MutableMapping
from itertools import islice
from typing import Any

REDACTED = "[redacted]"
_MAX_DEPTH = 6

_SECRET_FIELD = re.compile(
    r"token|passw|secret|credential|auth_?params|authorization|cookie|api_?key|private_?key|jwt", re.IGNORECASE
)
_SECRET_SHAPES: tuple[tuple[re.Pattern[str], str], ...] = (
    # A JWT: base64 of {"...
    (re.compile(r"(?<![\w-])(?=[\w-]*?\beyJ[\w-]{4})[\w-]++\.[\w-]++(?:\.[\w-]*+)?"), REDACTED),
    (re.compile(r"(?i)\b(bearer|basic)\s++(?!(?:bearer|basic)\s)[^\s\"',]++"), rf"\1 {REDACTED}"),
    (re.compile(r"(?i);base64,[\w+/=-]++"), f";base64,{REDACTED}"),
    (re.compile(r"://[^/\s:@]++:[^/\s@]++@"), f"://{REDACTED}@"),
    (
        re.compile(
            r"(?i)(?<![\w-])(?=[\w-]*?(?:token|passw(?:or)?d|secret|credential|auth_?params|authorization|api_?key|private_?key))"
            r"([\w-]++[\"']?\s*+[:=]\s*+[\"']?+)(?!\[redacted\])[^\s\"',;&}\]]++"
        ),
        rf"\1{REDACTED}",
    ),
)
"""Strangers write the searched text, so each pattern takes time in proportion to it: it begins where a word begins,
reads the word once, and never backtracks (``++``)."""

_MAX_TEXT = 2_000
_MAX_TRACEBACK = 20_000
_MAX_ITEMS = 100


def redact(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Structlog processor: redact anything that looks like a credential."""
    for name, value in event.items():
        limit = _MAX_TRACEBACK if name == "exception" else _MAX_TEXT
        event[name] = _cut(_redacted_field(name, value, _MAX_DEPTH), limit)
    return event


def redacted_text(text: str) -> str:
    """Return the text with everything that looks like a credential redacted."""
    for shape, replacement in _SECRET_SHAPES:
        text = shape.sub(replacement, text)
    return text


def _redacted_field(name: str, value: object, depth: int) -> object:
    if value is not None and not isinstance(value, bool) and _SECRET_FIELD.search(name):
        return REDACTED
    return _redacted(value, depth)


def _redacted(value: object, depth: int) -> object:
    if isinstance(value, str):
        return redacted_text(value)
    if isinstance(value, bytes):
        return redacted_text(value.decode("utf-8", "backslashreplace"))
    if value is None or isinstance(value, bool | int | float):
        return value
    if depth == 0:
        return "[too deep]"
    if isinstance(value, Mapping):
        return {
            _cut(str(name)): _cut(_redacted_field(str(name), item, depth - 1))
            for name, item in islice(value.items(), _MAX_ITEMS)
        }
    if isinstance(value, list | tuple | set | frozenset):
        shown = [_cut(_redacted(item, depth - 1)) for item in islice(value, _MAX_ITEMS)]
        return [*shown, f"[{len(value) - len(shown)} more]"] if len(value) > len(shown) else shown
    return redacted_text(str(value))


def _cut(value: object, limit: int = _MAX_TEXT) -> object:
    """Cut the middle out of a long text: its beginning and its end help most."""
    if not isinstance(value, str) or len(value) <= limit:
        return value
    half = limit // 2
    return f"{value[:half]}...[{len(value) - 2 * half} characters left out]...{value[-half:]}"
