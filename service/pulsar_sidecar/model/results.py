"""Results: one dataclass each, which a feature returns, REST serialises, and commands and pages read.

The string below a field is its description in the REST reference. Invariant: nothing here, and no feature, imports
pydantic; `server.answers` reads ``__pydantic_config__``.
"""

import ast
import inspect
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any, Final, TypeVar, dataclass_transform

_T = TypeVar("_T")


def camel_case(name: str) -> str:
    """Return Pulsar's spelling of a field: ``ledgerId`` for ``ledger_id``."""
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)


def _describe_fields(schema: dict[str, Any], kind: type) -> None:
    """Add the strings below fields, inherited ones too, when a schema is shown.

    Pydantic's ``use_attribute_docstrings`` parses a class again for each route that returns it.
    """
    for each in kind.__mro__:
        if "__pydantic_config__" in vars(each):
            for name, text in _attribute_docstrings(each).items():
                schema["properties"][camel_case(name)].setdefault("description", text)


@cache
def _attribute_docstrings(kind: type) -> dict[str, str]:
    (described,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(described, ast.ClassDef)
    return {
        field.target.id: inspect.cleandoc(text)
        for field, following in pairwise(described.body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
        if isinstance(text := following.value.value, str)
    }


_CONFIG: Final[dict[str, Any]] = {
    "alias_generator": camel_case,
    "json_schema_extra": _describe_fields,
    "json_schema_serialization_defaults_required": True,
    "serialize_by_alias": True,
    "validate_by_name": True,
}


@dataclass_transform(frozen_default=True)
def result(described: type[_T]) -> type[_T]:
    """Make a class a frozen dataclass that is serialised in camelCase."""
    made = dataclass(frozen=True, slots=True)(described)
    made.__pydantic_config__ = _CONFIG  # type: ignore[attr-defined]
    return made
