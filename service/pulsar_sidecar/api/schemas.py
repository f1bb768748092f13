"""What every request and every answer of the REST door has in common.

Names are Pulsar's camelCase. Requests are strict: no unknown field, no other type, no number out of range.
"""

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.alias_generators import to_camel

Text = Annotated[str, BeforeValidator(str)]
"""In an answer: whatever the room has, as text."""


PlanHash = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
"""In a request: the hash of a plan that was approved (SHA-256)."""


class Parameters(BaseModel):
    """Parameters after the question mark; they arrive as text, so "true" is true."""

    model_config = ConfigDict(
        extra="forbid", alias_generator=to_camel, hide_input_in_errors=True, use_attribute_docstrings=True
    )


class Payload(Parameters):
    """What a caller sends as JSON, so every type is exact."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)


class Answer(BaseModel):
    """What the service answers."""

    model_config = ConfigDict(
        from_attributes=True,
        alias_generator=to_camel,
        validate_by_name=True,
        serialize_by_alias=True,
        use_attribute_docstrings=True,
    )


class Reason(Answer):
    """Every error's body (Pulsar ``ErrorData``)."""

    reason: str
    """What went wrong and what to do next."""


class Healthy(Answer):
    """The probe's good answer."""

    ok: bool = True
