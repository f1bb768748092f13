"""Actions of a page: a form with its fields, the equivalent command, and the confirmation it needs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class ActionField:
    """An input of a form.

    Attributes:
        kind: type of the HTML input.
        required: True if the form cannot be sent without it.
    """

    name: str
    label: str
    value: str = ""
    kind: Literal["text", "number", "checkbox", "datetime-local"] = "text"
    required: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True)
class Action:
    """A form.

    Attributes:
        url: target of the POST.
        command: equivalent command line.
        hidden: hidden fields.
        confirm: text to type as ``confirmed``; None if the command needs no confirmation.
        danger: True if the action cannot be undone.
        takes: required role, besides a superuser's.
    """

    label: str
    url: str
    command: str
    fields: Sequence[ActionField] = ()
    hidden: Mapping[str, str] = field(default_factory=dict)
    confirm: str | None = None
    danger: bool = False
    note: str = ""
    takes: Literal["operator", "any"] = "operator"
