import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.choosing import PROJECT

_SECONDS = 300


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A release's wheel, built from the working tree."""
    directory = tmp_path_factory.mktemp("wheel")
    build = ["-m", "hatchling", "build", "--target", "wheel", "--directory", str(directory)]
    subprocess.run([sys.executable, *build], cwd=PROJECT, check=True, timeout=_SECONDS, capture_output=True)
    (built,) = directory.glob("*.whl")
    return built
