"""The only place that writes to the terminal, so that results and remarks never mix.

Invariant: standard output carries results only, one write each, so it can be piped; everything said to a person goes
to standard error.
"""

import sys


def result(text: str) -> None:
    """Write a result to standard output."""
    print(text, file=sys.stdout, flush=True)


def info(text: str) -> None:
    """Say something to the person at the terminal, on standard error."""
    print(text, file=sys.stderr, flush=True)
