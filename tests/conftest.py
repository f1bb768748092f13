"""What every test may ask for: a real cluster, chosen in ``tests.cluster.choosing``."""

pytest_plugins = ["tests.cluster.plugin", "tests.cluster.deletion"]
