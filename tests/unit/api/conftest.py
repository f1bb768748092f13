from collections.abc import Iterator

import pytest

from tests.fakes.deletion_service import FakeDeletionService
from tests.unit.api.serving import Served, served


@pytest.fixture(scope="module")
def _shared() -> Iterator[tuple[FakeDeletionService, Served]]:
    service = FakeDeletionService()
    with served(service) as server:
        yield service, server


@pytest.fixture
def service(_shared: tuple[FakeDeletionService, Served]) -> FakeDeletionService:
    fake = _shared[0]
    fresh = FakeDeletionService()
    for name in FakeDeletionService.__slots__:
        setattr(fake, name, getattr(fresh, name))
    return fake


@pytest.fixture
def server(_shared: tuple[FakeDeletionService, Served], service: FakeDeletionService) -> Served:
    del service  # reset before the server is used
    return _shared[1]
