"""Docs name tests as evidence: these tests must exist."""

import re

from tests.cluster.choosing import PROJECT

_NAMED_TEST = re.compile(r"`(test_\w+)`")


def test_tests_named_in_docs_exist() -> None:
    modules = list((PROJECT / "tests").rglob("test_*.py"))
    existing = {path.stem for path in modules}.union(
        *(re.findall(r"\bdef (test_\w+)\(", path.read_text()) for path in modules)
    )
    named = {name for page in (PROJECT / "docs").rglob("*.md") for name in _NAMED_TEST.findall(page.read_text())}
    assert named
    assert named - existing == set()
