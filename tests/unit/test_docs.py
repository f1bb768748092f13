"""What docs name as evidence exists, and their pictures show what they say."""

import re

from tests.benchmarks.peers_picture import PAGE, jobs
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


def test_the_picture_of_the_benchmarks_shows_their_table() -> None:
    page = PROJECT / PAGE
    shown = re.findall(r">([^<>]+)</text>", page.with_suffix(".svg").read_text())
    table = jobs(page.read_text())
    assert len(table) > 8
    assert [text for text in shown if text in table] == list(table), "run `python -m tests.benchmarks.peers_picture`"
    assert [text for text in shown if text in table.values()] == list(table.values())
