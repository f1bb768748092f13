"""Names, texts and documentation use the field's words, in tests too; the retired ones do not come back.

Words that users already have in options, JSON, columns, settings and files stay (`PUBLIC`).
"""

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from tests.cluster.choosing import PROJECT

RETIRED = {
    "anybody", "asserter", "book", "census", "condemn", "condemned", "damage", "eyes", "ledgerbook", "mend", "nobody",
    "play", "proof", "proofs", "reach", "reassert", "said", "say", "says", "settle", "settled", "settler", "sheet",
    "shields", "somebody", "stage", "stages", "standing", "strike", "switches", "tell", "tells", "told", "whoever",
    "wishes", "world", "worlds",
}  # fmt: skip
"""Words in a name; a name is a module, a folder, a class, a function, a parameter, a variable or an attribute."""
RETIRED_CLASSES = {"ControlPanel", "Looked", "Memory", "Register"}
PUBLIC = {
    "ShadowDeletionStage", "_run_stage", "stage",  # `stage` in the answers of deleteShadow
    "SETTLED", "settled_messages", "_settled_entry",  # the step `settled` on the outcome topic
    "Proof", "proof",  # `proof` in manifests, and in the answers of cancellations
    "standing", "condemned",  # the column `standing` of an audit, its value, and `audit show --standing`
    "settle_seconds", "_Settle",  # `delayed-index fsck --settle-seconds`
    "settle_ms", "SETTLE_SECONDS", "ledger_deletion_watch_settle_in_seconds",  # the setting, and where it goes
    "two_phase_deletion_in_use_settle_in_seconds",  # a setting
    "delayed_message_reassert_in_seconds",  # a setting
}  # fmt: skip
NOUNS = ("Guard", "Place", "Plan", "Policy", "Proof", "Reason", "Verdict")
"""Each names one thing in the whole code base."""
RETIRED_IN_HELP = (
    "anybody", "are no", "asserter", "be condemned", "book", "by hand", "census", "condemn", "condemned ledger",
    "condemned ledgers", "condemns", "damage", "eyes", "goes on", "is condemned", "ledgerbook", "mend", "mended",
    "mends", "nobody", "play", "put back", "puts back", "reassert", "said", "say", "saying", "says", "see to",
    "sees to", "settle", "settled", "settler", "settles", "sheet", "shields", "somebody", "standing", "strike", "tell",
    "telling", "tells", "told", "whoever", "wishes", "world",
)  # fmt: skip
RETIRED_IN_TEXTS = (
    "anybody", "census", "condemned ledger", "condemned ledgers", "condemns", "is no", "ledgerbook", "mend", "mended",
    "mends", "nobody", "put back", "puts back", "said", "say", "saying", "says", "see to", "sees to", "settler",
    "sheet", "shields", "somebody", "tell", "telling", "tells", "told", "whoever", "wishes",
)  # fmt: skip
"""In what the program writes: errors, log lines, metrics' help, results. "There is no topic x" is plain English."""
RETIRED_ON_PAGES = (
    "anybody", "census", "condemned ledger", "condemned ledgers", "condemns", "everybody", "ledgerbook", "mend",
    "mended", "mends", "nobody", "put back", "puts back", "said", "say", "saying", "says", "see to", "sees to",
    "settler", "sheet", "shields", "somebody", "tell", "telling", "tells", "told", "whoever", "wishes",
)  # fmt: skip
RETIRED_IN_PROSE_OF_TESTS = (*RETIRED_ON_PAGES, "world", "worlds")
"""Not in what tests hand to the product: a subscription may have any name."""
PRODUCT = ("service", "pyspark_jobs")
HELP_PAGES = ("cli.md", "configuration.md", "rest.md")
PAGES = sorted(
    path.relative_to(PROJECT)
    for pattern in ("*.md", "docs/*.md", "docs/decisions/*.md", "docs/runbooks/*.md", "deploy/**/*.y*ml")
    for path in PROJECT.glob(pattern)
)
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


@dataclass(frozen=True, slots=True)
class Module:
    """What a module's code has in words; ``texts`` are all but docstrings, which speak to those who read the code."""

    names: tuple[str, ...]
    classes: tuple[str, ...]
    docstrings: tuple[str, ...]
    texts: tuple[str, ...]


@cache
def sources(*folders: str) -> dict[Path, str]:
    """Every module in the folders, but for generated ones."""
    return {
        place: path.read_text()
        for folder in folders
        for path in sorted((PROJECT / folder).rglob("*.py"))
        if "pulsar_sidecar/wire/" not in str(place := path.relative_to(PROJECT))
    }


def modules(*folders: str) -> dict[Path, Module]:
    return {place: read(text) for place, text in sources(*folders).items()}


@cache
def read(code: str) -> Module:
    """The trees of a thousand modules are not kept: the collector of garbage would go through them again and again."""
    nodes = list(ast.walk(ast.parse(code)))
    of_expressions = {node.value for node in nodes if isinstance(node, ast.Expr)}
    texts = [node for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return Module(
        names=tuple(name for node in nodes for name in names_of(node)),
        classes=tuple(node.name for node in nodes if isinstance(node, ast.ClassDef)),
        docstrings=tuple(node.value for node in texts if node in of_expressions),
        texts=tuple(node.value for node in texts if node not in of_expressions),
    )


def names_of(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            yield name
        case ast.arg(arg=name) | ast.alias(asname=str(name)):
            yield name
        case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
            yield name


def prose_in(code: str) -> str:
    """The docstrings and the comments of a module."""
    tokens = tokenize.generate_tokens(io.StringIO(code).readline)
    comments = [token.string for token in tokens if token.type == tokenize.COMMENT]
    return "\n".join([*read(code).docstrings, *comments])


def is_retired(name: str) -> bool:
    return name in RETIRED_CLASSES or bool({word.lower() for word in _WORD.findall(name)} & RETIRED)


def retired_in(text: str, words: Sequence[str]) -> list[str]:
    searched = re.sub(r"\bthere (?:is|are) no\b", "", " ".join(text.split()), flags=re.IGNORECASE)
    return re.findall(rf"(?<![\w-])(?:{'|'.join(words)})(?![\w-])", searched, re.IGNORECASE)


def test_no_name_uses_a_retired_word() -> None:
    found = {
        f"{place}: {name}"
        for place, module in modules(*PRODUCT, "tests").items()
        for name in (*place.with_suffix("").parts, *module.names)
        if is_retired(name) and name not in PUBLIC
    }
    assert sorted(found) == []


@pytest.mark.parametrize("name", ["Census", "take_census", "_say", "CondemnedLedger", "Memory", "settle", "WorldView"])
def test_a_retired_word_would_be_found(name: str) -> None:
    assert is_retired(name)


@pytest.mark.parametrize("name", ["bookkeeper", "Bookie", "reachable", "BacklogMemory", "playback"])
def test_words_of_the_field_are_not_mistaken_for_them(name: str) -> None:
    assert not is_retired(name)


@pytest.mark.parametrize(
    "code",
    [
        "class Say: pass",
        "async def say(): pass",
        "def f(say): pass",
        "def f(*, say): pass",
        "SAY = 1",
        "Say: object = 1",
        "self.said = 1",
        "import a as say",
        "for told in []: pass",
    ],
)
def test_every_kind_of_name_is_looked_at(code: str) -> None:
    assert [name for name in read(code).names if is_retired(name)] != []


def test_each_of_the_seven_nouns_names_one_thing() -> None:
    declared = Counter(name for module in modules(*PRODUCT).values() for name in module.classes)
    assert {noun: declared[noun] for noun in NOUNS if declared[noun] > 1} == {}


@pytest.mark.parametrize("page", HELP_PAGES)
def test_no_help_uses_a_retired_word(page: str) -> None:
    """The pages are written from the program (`docs/generate.py`), and compared with it in the same check."""
    assert retired_in((PROJECT / "docs" / "reference" / page).read_text(), RETIRED_IN_HELP) == []


def test_no_error_log_line_or_metric_uses_a_retired_word() -> None:
    found = [
        f"{place}: {text!r:.120}"
        for place, module in modules(*PRODUCT).items()
        for text in module.texts
        if retired_in(text, RETIRED_IN_TEXTS)
    ]
    assert found == []


def test_no_comment_and_no_docstring_uses_a_retired_word() -> None:
    calls = re.compile(r"\.\w+\(")  # such as `file.tell()`
    of_the_product = {place: (calls.sub("", text), RETIRED_ON_PAGES) for place, text in sources(*PRODUCT).items()}
    of_tests = {
        place: (calls.sub("", prose_in(text)), RETIRED_IN_PROSE_OF_TESTS) for place, text in sources("tests").items()
    }
    found = {
        str(place): used
        for place, (text, words) in {**of_the_product, **of_tests}.items()
        if (used := retired_in(text, words))
    }
    assert found == {}


def test_the_data_of_tests_is_not_their_prose() -> None:
    text = prose_in('"""Says."""\nA = "nobody"  # told\n"""Tells."""\n')
    assert retired_in(text, RETIRED_IN_PROSE_OF_TESTS) == ["Says", "Tells", "told"]


def test_docstrings_are_no_texts_and_parts_of_f_strings_are() -> None:
    module = read('"""Says."""\ndef f(x):\n    """Says."""\n    raise ValueError(f"nobody {x} says")\n')
    assert [text for text in module.texts if retired_in(text, RETIRED_IN_TEXTS)] == ["nobody ", " says"]
    assert retired_in("there is no topic t", RETIRED_IN_TEXTS) == []
    assert retired_in("5 is no topic", RETIRED_IN_TEXTS) == ["is no"]


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_no_page_and_no_alert_uses_a_retired_word(page: Path) -> None:
    assert retired_in((PROJECT / page).read_text(), RETIRED_ON_PAGES) == []
