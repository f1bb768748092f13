"""Responses of the REST API as JSON, and as the dataclasses that features returned."""

from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

from pydantic import TypeAdapter

_T = TypeVar("_T")


def parse_answer(kind: type[_T], value: object) -> _T:
    """Return the JSON of a response as its dataclass.

    Raises:
        ValueError: the JSON is not such a response.
    """
    parsed: _T = _adapter(kind).validate_python(value)
    return parsed


def as_json(result: object, kind: type[object] | None = None) -> dict[str, object]:
    """Return the JSON of a feature's result for a response; of a subclass of ``kind`` only the fields of ``kind``."""
    json: dict[str, object] = _adapter(kind or type(result)).dump_python(result, mode="json")
    return json


_adapter: Callable[[Any], TypeAdapter[Any]] = cache(TypeAdapter)
