import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.audit.audited_clusters import AuditedCluster, Auditor, full_cluster

_MEMORY = Path("/dev/shm")


@pytest.fixture
def swift_path() -> Iterator[Path]:
    """An empty directory, in memory where the machine has such: audits wait for the disk after each file."""
    with tempfile.TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else None) as directory:
        yield Path(directory)


@pytest.fixture
def auditor(swift_path: Path) -> Auditor:
    return Auditor(swift_path)


@pytest.fixture
def cluster() -> AuditedCluster:
    return full_cluster()
