"""Identity of a request wherever its work continues: in nodes, in messages' properties, in another sidecar."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

REQUEST_ID = "PULSAR_SIDECAR_REQUEST_ID"
TRACE_PARENT = "traceparent"
"""The properties of a message; the second is W3C Trace Context's, which other tracers continue too."""

_REQUEST_ID = re.compile(r"[0-9A-Za-z._:/+=@~-]{1,128}")
_TRACE_PARENT = re.compile(r"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


@dataclass(frozen=True, slots=True)
class RequestTrace:
    """A request, for log lines and spans; both fields are None for work without a request.

    Attributes:
        parent: the parent span of the work, as W3C Trace Context writes it.
    """

    request_id: str | None = None
    parent: str | None = None

    @classmethod
    def read(cls, request_id: str | None, parent: str | None) -> "RequestTrace":
        """Parse untrusted values: a malformed one counts as absent."""
        return cls(
            request_id if request_id is not None and _REQUEST_ID.fullmatch(request_id) else None,
            parent if parent is not None and _TRACE_PARENT.fullmatch(parent) else None,
        )

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> "RequestTrace":
        """Return the request that a message's properties name."""
        return cls.read(properties.get(REQUEST_ID), properties.get(TRACE_PARENT))

    def properties(self) -> dict[str, str]:
        """Return the trace as a message's properties."""
        named = {REQUEST_ID: self.request_id, TRACE_PARENT: self.parent}
        return {name: value for name, value in named.items() if value is not None}


NO_REQUEST = RequestTrace()
