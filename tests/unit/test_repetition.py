"""No six lines of the product are in two places; imports, documentation and lone punctuation aside."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from typing import TypeGuard

from tests.cluster.choosing import PROJECT

LINES = 6
GENERATED = "_pb2.py"


def test_no_block_of_six_lines_is_repeated() -> None:
    places = defaultdict(list)
    for folder in ("service/pulsar_sidecar", "pyspark_jobs"):
        for path in sorted((PROJECT / folder).rglob("*.py")):
            if not path.name.endswith(GENERATED):
                lines = list(_code_of(path.read_text()))
                for start in range(len(lines) - LINES + 1):
                    block = tuple(text for _, text in lines[start : start + LINES])
                    places[block].append((path, lines[start][0]))
    repeated = [
        " and ".join(f"{path.relative_to(PROJECT)}:{line}" for path, line in found)
        for found in places.values()
        if len(found) > 1
    ]
    assert not repeated, "the same six lines stand in " + "; in ".join(repeated)


def _code_of(source: str) -> Iterator[tuple[int, str]]:
    passed_over = {
        number
        for node in ast.walk(ast.parse(source))
        if _is_passed_over(node)
        for number in range(node.lineno, (node.end_lineno or 0) + 1)
    }
    for number, line in enumerate(source.splitlines(), 1):
        text = line.strip()
        if number not in passed_over and not text.startswith("#") and any(map(str.isalnum, text)):
            yield number, text


def _is_passed_over(node: ast.AST) -> TypeGuard[ast.stmt]:
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    return isinstance(node, (ast.Import, ast.ImportFrom))
