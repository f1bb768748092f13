"""Every field of a log line is on docs/logging.md, by one name for one thing, and the page names no other."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.cluster.choosing import PROJECT

LOGGERS = {"log", "_log", "_admin"}
LEVELS = {"debug", "info", "warning", "error", "exception"}
SHARED = {"timestamp", "level", "logger", "event", "request_id", "trace_id", "span_id", "exception"}
"""What the set-up in `observability.logging` adds."""
IN_MAPPINGS = {
    *("method", "path", "status", "role"),  # api.gate._log_request
    *("decision", "reason", "ledgers"),  # DecidedAlike.facts
    *("topic", "position", "subscription"),  # delayed_messages.workflow
    "offload_attempt",  # leak_handling._attempt_of
}
"""Fields that a call unpacks from a mapping."""


def calls(path: Path) -> Iterator[ast.Call]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            of = node.func.body if isinstance(node.func, ast.IfExp) else node.func
            if isinstance(of, ast.Attribute) and of.attr in LEVELS and ast.unparse(of.value) in LOGGERS:
                yield node


def fields_in_code() -> set[str]:
    paths = (path for path in (PROJECT / "service").rglob("*.py") if not path.name.endswith("_pb2.py"))
    found = {keyword.arg for path in paths for call in calls(path) for keyword in call.keywords}
    return {name for name in found if name is not None} | SHARED | IN_MAPPINGS


def fields_on_the_page() -> list[str]:
    _, _, table = (PROJECT / "docs" / "logging.md").read_text().partition("## Fields")
    rows = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    return [name for row in rows for name in re.findall(r"`(\w+)`", row)]


def test_the_page_has_every_field_once() -> None:
    named = fields_on_the_page()
    assert sorted(named) == sorted(fields_in_code())
