"""What every test may ask for: a real cluster, chosen in ``tests.cluster.choosing``.

Generated examples are new in every run on a developer's machine; where ``CI`` is set they are the same in every run, so
that a change is judged by what it changes.
"""

import os

from hypothesis import settings

settings.register_profile("developer", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, database=None, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "developer")

pytest_plugins = ["tests.cluster.plugin", "tests.cluster.deletion", "tests.faults.harness"]
