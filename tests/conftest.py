"""Fixtures of every test: a real cluster, chosen in ``tests.cluster.choosing``.

Generated examples are new in every run on a developer's machine; where ``CI`` is set they are the same in every run, so
that a change is judged by what it changes. The fast check looks at 50 examples of each. ``HYPOTHESIS_PROFILE`` chooses
another profile: ``thorough`` looks at 2,000 of each (`make test-faults`), ``mutants`` at few (`make mutants` runs the
tests some thousand times).
"""

import os
import socket

import pytest
from hypothesis import settings

settings.register_profile("developer", deadline=None, max_examples=50)
settings.register_profile("ci", deadline=None, max_examples=50, derandomize=True, database=None, print_blob=True)
settings.register_profile("thorough", deadline=None, max_examples=2_000, print_blob=True)
settings.register_profile("mutants", deadline=None, max_examples=10, derandomize=True, database=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "developer"))

pytest_plugins = [
    "pytester",
    "tests.summary.plugin",
    "tests.model.conformance",
    "tests.cluster.needs",
    "tests.cluster.plugin",
    "tests.cluster.deletion",
    "tests.faults.harness",
]


def pytest_sessionstart(session: pytest.Session) -> None:
    """Have pytest-rerunfailures' small messages between processes sent at once: else every test waits 40 ms for them.

    It writes twice and then reads, for which TCP keeps the second write back until the first is acknowledged.
    """
    connection = getattr(getattr(session.config, "failures_db", None), "sock", None)
    if connection is not None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
