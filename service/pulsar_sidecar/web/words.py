"""Command lines that a page shows beside what it does."""

import shlex


def command(*words: str) -> str:
    """A command line that a shell takes as it is."""
    return shlex.join(["pulsar-sidecar", *words])
