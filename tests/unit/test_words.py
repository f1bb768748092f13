"""Names and help use the field's words; the words that were retired do not come back.

Words that users already have in options, JSON, columns, settings and files stay (`PUBLIC`).
"""

import ast
import re
from collections.abc import Iterator

import pytest

from tests.cluster.choosing import PROJECT

RETIRED = {
    "asserter", "book", "census", "condemn", "condemned", "damage", "eyes", "ledgerbook", "mend", "play", "proof",
    "reach", "reassert", "said", "say", "says", "settle", "settled", "settler", "sheet", "shields", "stage", "standing",
    "strike", "tell", "tells", "told", "wishes", "world",
}  # fmt: skip
RETIRED_CLASSES = {"ControlPanel", "Looked", "Memory", "Register"}
PUBLIC = {
    "ShadowDeletionStage", "_run_stage",  # `stage` in the answers of deleteShadow
    "settled_messages", "_settled_entry",  # the step `settled` on the outcome topic
    "Proof",  # `proof` in manifests
}  # fmt: skip
RETIRED_IN_HELP = (
    "asserter", "be condemned", "census", "condemn", "condemned ledger", "condemned ledgers", "condemns", "eyes",
    "is condemned", "ledgerbook", "mend", "mended", "put back", "puts back", "reassert", "see to", "sees to", "settler",
    "sheet", "shields", "somebody", "wishes", "world",
)  # fmt: skip
HELP_PAGES = ("cli.md", "configuration.md", "rest.md")
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


def names() -> Iterator[tuple[str, str]]:
    """Every module, class and function of the product, with its file."""
    for folder in (PROJECT / "service", PROJECT / "pyspark_jobs"):
        for path in sorted(folder.rglob("*.py")):
            place = str(path.relative_to(PROJECT))
            if "pulsar_sidecar/wire/" in place:
                continue
            yield place, path.stem
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef | ast.FunctionDef):
                    yield place, node.name


def is_retired(name: str) -> bool:
    return name in RETIRED_CLASSES or bool({word.lower() for word in _WORD.findall(name)} & RETIRED)


def test_no_name_uses_a_retired_word() -> None:
    assert [f"{place}: {name}" for place, name in names() if is_retired(name) and name not in PUBLIC] == []


@pytest.mark.parametrize("name", ["Census", "take_census", "_say", "CondemnedLedger", "Memory", "settle", "WorldView"])
def test_a_retired_word_would_be_found(name: str) -> None:
    assert is_retired(name)


@pytest.mark.parametrize("name", ["bookkeeper", "Bookie", "reachable", "BacklogMemory", "playback"])
def test_words_of_the_field_are_not_mistaken_for_them(name: str) -> None:
    assert not is_retired(name)


@pytest.mark.parametrize("page", HELP_PAGES)
def test_no_help_uses_a_retired_word(page: str) -> None:
    """The pages are written from the program (`docs/generate.py`), and compared with it in the same check."""
    text = (PROJECT / "docs" / "reference" / page).read_text()
    found = re.findall(rf"(?<![\w-])(?:{'|'.join(RETIRED_IN_HELP)})(?![\w-])", " ".join(text.split()), re.IGNORECASE)
    assert found == []
