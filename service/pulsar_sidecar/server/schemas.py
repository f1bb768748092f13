"""Schemas that requests and responses of the REST API share.

Names are Pulsar's camelCase. Requests are strict: no unknown field, no other type, no number out of range.
"""

from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field

from pulsar_sidecar.model.results import camel_case, result

PlanHash = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
"""Hash of an approved plan (SHA-256)."""


class Parameters(BaseModel):
    """Query parameters; they arrive as text, so "true" is true."""

    model_config = ConfigDict(
        extra="forbid", alias_generator=camel_case, hide_input_in_errors=True, use_attribute_docstrings=True
    )


class Payload(Parameters):
    """JSON body of a request, in which every type is exact."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)


@result
class Reason:
    """Body of every error (Pulsar's ``ErrorData``)."""

    reason: str
    """Cause of the error, and the next step."""


REASON: Final = {"application/json": {"schema": {"$ref": f"#/components/schemas/{Reason.__name__}"}}}
"""Content of every error in the OpenAPI document."""


@result
class Healthy:
    """Response of a probe that succeeds."""

    ok: bool = True
