"""Checks of our own, beside schemathesis'. Its process loads this module (``SCHEMATHESIS_HOOKS``)."""

import json

import schemathesis


@schemathesis.serializer("application/x-ndjson")
def lines(_context: schemathesis.SerializationContext, value: object) -> dict[str, object]:
    """Return a list's items on a line each; anything else as it is, on one."""
    items = value if isinstance(value, list) else [value]
    return {"data": b"".join(json.dumps(item).encode() + b"\n" for item in items)}


@schemathesis.check
def errors_have_pulsars_shape(
    _context: schemathesis.CheckContext, response: schemathesis.Response, _case: schemathesis.Case
) -> None:
    """An error's body is exactly ``{"reason": "..."}``, as JSON, and is not empty (Pulsar ``ErrorData``)."""
    if response.status_code < 400 or response.request.method == "HEAD":
        return
    assert response.headers["content-type"] == ["application/json"], response.headers
    document = json.loads(response.content)
    assert isinstance(document, dict), document
    assert set(document) == {"reason"}, document
    assert isinstance(document["reason"], str), document
    assert document["reason"].strip(), document


_V1_DELETE_LEDGER = "POST /admin/persistent/{property}/{cluster}/{namespace}/{topic}/deleteLedger"
"""The body's topic must be the path's, and the document's example of a body is of a V2 topic."""


@schemathesis.check
class EveryOperationSucceeds:
    """Without it the others could pass on a service that refuses everything."""

    def __init__(self, never_succeed: tuple[str, ...] = (_V1_DELETE_LEDGER,)) -> None:
        self._never_succeed = set(never_succeed)
        self._seen: set[str] = set()
        self._succeeded: set[str] = set()

    def after_response(
        self, _context: schemathesis.CheckContext, response: schemathesis.Response, case: schemathesis.Case
    ) -> None:
        """Record the call's outcome."""
        self._seen.add(case.operation.label)
        if response.status_code < 400:
            self._succeeded.add(case.operation.label)

    def after_run(self, _context: schemathesis.CheckContext) -> None:
        """Look at all of them."""
        missing = self._seen - self._succeeded - self._never_succeed
        assert not missing, f"never answered with success: {sorted(missing)}"
