"""Lines of bulk requests: the quick reading finds what the described one finds, and the same words for mistakes."""

import json

from hypothesis import example, given
from hypothesis import strategies as st
from pulsar_sidecar.features.delayed_messages.cancel.requests import Target
from pulsar_sidecar.features.delayed_messages.http.bulk_lines import _described, _target
from pulsar_sidecar.model.errors import InvalidInputError

_NUMBERS = st.sampled_from([-1, 0, 1, 7, 1_700_000_000, 1_700_000_000_000, 2**63 - 1, 2**63, 2**64]) | st.integers()
_VALUES = (
    _NUMBERS
    | st.floats()
    | st.none()
    | st.booleans()
    | st.text(max_size=3)
    | st.lists(st.text(max_size=3) | st.sampled_from(["s", " ", "s" * 1025, "s" * 8193, "\ud800"]), max_size=3)
)
_NAMES = st.sampled_from(
    ["ledgerId", "entryId", "deliverAt", "subscriptionNames", "partition", "batchIndex", "messageId", "ledger_id", "?"]
)
_USUAL = st.fixed_dictionaries(
    {"ledgerId": _NUMBERS, "entryId": _NUMBERS, "deliverAt": _NUMBERS},
    optional={"subscriptionNames": st.lists(st.sampled_from(["s", "t"]), max_size=3)},
)
_LINES = st.dictionaries(_NAMES, _VALUES, max_size=6) | _USUAL


def _read(line: bytes, read: object) -> Target | str:
    try:
        return read(line)  # type: ignore[operator]
    except InvalidInputError as error:
        return str(error)


@given(_LINES.map(json.dumps).map(str.encode))
@example(b'{"ledgerId":7,"entryId":3,"deliverAt":1700000000000,"subscriptionNames":["\\ud800"]}')
@example(b'{"ledgerId":7,"entryId":3,"deliverAt":1700000000000,"subscriptionNames":["\xff"]}')
@example(b'{"ledgerId":7.0,"entryId":3,"deliverAt":1700000000000}')
@example(b'{"ledgerId":7,"entryId":3,"deliverAt":17e11}')
@example(b'{"ledgerId":7,"entryId":3,"ledgerId":8,"deliverAt":1700000000000} ')
@example(b'{"ledgerId":7,"entryId":3,"deliverAt":1700000000000}{}')
@example(b'\xef\xbb\xbf{"ledgerId":7,"entryId":3,"deliverAt":1700000000000}')
@example(b'{"ledgerId":-0,"entryId":3,"deliverAt":1700000000000}')
@example(b'{"ledgerId":07,"entryId":3,"deliverAt":1700000000000}')
@example(b"{" * 2000)
def test_a_line_is_read_alike_in_either_way(line: bytes) -> None:
    assert _read(line, _target) == _read(line, _described)
