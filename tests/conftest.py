"""What every test may ask for: a real cluster, chosen in ``tests.cluster.choosing``.

Generated examples are new in every run on a developer's machine; where ``CI`` is set they are the same in every run, so
that a change is judged by what it changes. The fast check looks at 50 examples of each. ``HYPOTHESIS_PROFILE`` chooses
another profile: ``thorough`` looks at 2,000 of each (`make test-faults`), ``mutants`` at few (`make mutants` runs the
tests some thousand times).
"""

import os

from hypothesis import settings

settings.register_profile("developer", deadline=None, max_examples=50)
settings.register_profile("ci", deadline=None, max_examples=50, derandomize=True, database=None, print_blob=True)
settings.register_profile("thorough", deadline=None, max_examples=2_000, print_blob=True)
settings.register_profile("mutants", deadline=None, max_examples=10, derandomize=True, database=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "developer"))

pytest_plugins = ["tests.model.conformance", "tests.cluster.plugin", "tests.cluster.deletion", "tests.faults.harness"]
