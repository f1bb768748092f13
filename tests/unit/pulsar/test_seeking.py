"""A reader that is on its way back from seeking is asked again, and a failure that lasts is raised."""

from collections.abc import Iterator

import pulsar
import pytest

from service.adapters.pulsar import seeking
from service.adapters.pulsar.seeking import has_more


class Returning:
    """Finds no consumer at the broker for some questions, then answers."""

    def __init__(self, refusals: int) -> None:
        self._refusals: Iterator[int] = iter(range(refusals))

    def has_message_available(self) -> bool:
        if next(self._refusals, None) is None:
            return True
        raise pulsar.exceptions.BrokerMetadataError


def test_a_reader_that_is_not_back_yet_is_asked_again() -> None:
    assert has_more(Returning(3))  # type: ignore[arg-type]


def test_a_reader_that_never_comes_back_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seeking, "_PAUSE_SECONDS", 0.0)
    with pytest.raises(pulsar.exceptions.BrokerMetadataError):
        has_more(Returning(1_000))  # type: ignore[arg-type]
