"""Dataclasses as JSON documents and back, by their own fields: ``snake_case`` in Python, ``camelCase`` in JSON.

Invariant: reading is strict. A field that is missing, unknown or of another type is an error that names it; nothing is
converted on the way, so what was read is what was written.
"""

import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from pulsar_sidecar.model.errors import InvalidInputError

Read = TypeVar("Read")


def to_document(value: Any) -> Any:
    """As JSON has it."""
    if is_dataclass(value) and not isinstance(value, type):
        return {_camel(field.name): to_document(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {key: to_document(value[key]) for key in sorted(value)}
    if isinstance(value, tuple | list):
        return [to_document(part) for part in value]
    return value


def from_document(kind: type[Read], document: object) -> Read:
    """Read what `to_document` wrote of a dataclass.

    Raises:
        InvalidInputError: it is not exactly that; the message names the field.
    """
    read: Read = _read(kind, document, "")
    return read


def _read(kind: Any, value: object, where: str) -> Any:
    if is_dataclass(kind):
        return _read_dataclass(kind, value, where)
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return _read_choice(get_args(kind), value, where)
    if origin is tuple:
        return tuple(_read(get_args(kind)[0], part, f"{where}[{index}]") for index, part in _items(value, where))
    if origin is not None:
        parts = _object(value, where)
        return {key: _read(get_args(kind)[1], part, f"{where}.{key}") for key, part in parts.items()}
    if issubclass(kind, Enum):
        return _read_enum(kind, value, where)
    # A bool is an int to Python, and no number to anybody else.
    if type(value) is not kind:
        raise InvalidInputError(f"{where} is not {_said(kind)}")
    return value


def _read_dataclass(kind: Any, value: object, where: str) -> Any:
    parts = _object(value, where or "the document")
    hints = get_type_hints(kind)
    names = {_camel(field.name): field.name for field in fields(kind)}
    if wrong := sorted(names.keys() ^ parts.keys()):
        unknown = wrong[0] in parts
        raise InvalidInputError(f"{_below(where, wrong[0])} is {'unknown' if unknown else 'missing'}")
    return kind(**{name: _read(hints[name], parts[camel], _below(where, camel)) for camel, name in names.items()})


def _read_choice(kinds: tuple[Any, ...], value: object, where: str) -> Any:
    if value is None and types.NoneType in kinds:
        return None
    others = [kind for kind in kinds if kind is not types.NoneType]
    if len(others) == 1:
        return _read(others[0], value, where)
    if type(value) not in others:
        raise InvalidInputError(f"{where} is not {' or '.join(map(_said, others))}")
    return value


def _read_enum(kind: type[Enum], value: object, where: str) -> Enum:
    try:
        return kind(value)
    except ValueError:
        raise InvalidInputError(f"{where} is none of {', '.join(str(member.value) for member in kind)}") from None


def _object(value: object, where: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise InvalidInputError(f"{where} is not a JSON object")
    return value


def _items(value: object, where: str) -> list[tuple[int, object]]:
    if not isinstance(value, list):
        raise InvalidInputError(f"{where} is not a list")
    return list(enumerate(value))


def _said(kind: type) -> str:
    return {str: "text", int: "an integer", float: "a number", bool: "true or false"}.get(kind, kind.__name__)


def _below(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)
