"""How long work reports its progress to the person who waits for it: to a callable that nothing depends on."""

from collections.abc import Callable

Report = Callable[[str], None]
"""Shows a line of text."""

ReportCount = Callable[[int, int], None]
"""Shows how many rows are done, and how many there are."""
