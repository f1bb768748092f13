"""What a page can do: a form with its fields, the command that does the same, and what the command asks for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class ActionField:
    """One input.

    Attributes:
        kind: of the HTML input.
        required: whether the form can be sent without it.
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
        url: where it is posted to.
        command: the equivalent command line.
        hidden: what else it sends.
        confirm: a text that must be typed as ``confirmed``; None where the command asks for none.
        danger: whether it cannot be undone.
        takes: the role that it needs, beside a superuser's.
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
