"""A ledger's id in text: ASCII digits up to 2^63 - 1, as brokers and bookies write it, and nothing else."""

import pytest
from pulsar_sidecar.model.ids import MAX_LEDGER_ID, parse_ledger_id


@pytest.mark.parametrize("text", ["0", "7", "4711", "0007", str(MAX_LEDGER_ID)])
def test_digits_are_an_id(text: str) -> None:
    assert parse_ledger_id(text) == int(text)


@pytest.mark.parametrize("text", ["", "-1", "+1", " 1", "1_0", "²", "٣", "x", str(MAX_LEDGER_ID + 1), "9" * 5000])
def test_other_text_is_not_a_ledger_id(text: str) -> None:
    assert parse_ledger_id(text) is None
