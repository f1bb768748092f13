"""Needs of some tests that not every machine has; a test without them is skipped with the remedy.

Mark a test ``@pytest.mark.containers``, ``kubernetes`` or ``browser``; `make test-containers` and so on run these.
"""

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pytest

from tests.cluster.choosing import NO_ENGINE, docker_engine_answers

BROWSER_VARIABLE = "PULSAR_SIDECAR_TEST_BROWSER"
_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_ANSWER_SECONDS = 15


@dataclass(frozen=True, slots=True)
class Need:
    """A need, checked by ``is_there`` before each marked test; skipped tests show ``reason``."""

    about: str
    is_there: Callable[[], bool]
    reason: str


def browser() -> str | None:
    """Return the browser's program, from the variable or from PATH."""
    named = os.environ.get(BROWSER_VARIABLE)
    return shutil.which(named) if named else next(filter(None, map(shutil.which, _BROWSERS)), None)


def kubernetes_answers() -> bool:
    """Return True if ``kubectl`` reaches the API server of its current context."""
    if shutil.which("kubectl") is None:
        return False
    try:
        asked = ["kubectl", "get", "--raw", "/readyz", f"--request-timeout={_ANSWER_SECONDS}s"]
        return subprocess.run(asked, capture_output=True, check=False, timeout=2 * _ANSWER_SECONDS).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


NEEDS: Mapping[str, Need] = {
    "containers": Need(
        "runs containers on this machine's engine",
        docker_engine_answers,
        NO_ENGINE,
    ),
    "kubernetes": Need(
        "talks to the Kubernetes of kubectl's current context",
        kubernetes_answers,
        "no Kubernetes answers: install kubectl and choose a cluster to test on by KUBECONFIG",
    ),
    "browser": Need(
        "looks at a page in Chromium",
        lambda: browser() is not None,
        f"no browser: install Chromium, or name one in {BROWSER_VARIABLE}",
    ),
}


def pytest_configure(config: pytest.Config) -> None:
    for name, need in NEEDS.items():
        config.addinivalue_line("markers", f"{name}: {need.about}")


def pytest_runtest_setup(item: pytest.Item) -> None:
    for name, need in NEEDS.items():
        if item.get_closest_marker(name) and not need.is_there():
            pytest.skip(need.reason)
