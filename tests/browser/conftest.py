from collections.abc import Iterator
from typing import Any

import pytest

from tests.browser.looking import Look, chromium, looking


@pytest.fixture(scope="module")
def launched() -> Iterator[Any]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def look(launched: Any) -> Iterator[Look]:
    """Yield a tab of 1280 by 900."""
    with looking(launched, viewport={"width": 1280, "height": 900}) as opened:
        yield opened
