"""Command lines that a page shows beside what it does."""

from pulsar_sidecar.model.printable import command_line


def command(*words: str) -> str:
    """A command line that a shell takes as it is."""
    return command_line(["pulsar-sidecar", *words])
