"""Safe display of names that a cluster's users choose: nothing hides in them, and a shell takes what is shown.

A name may hold characters that reverse the text around it (U+202E), or control a terminal (escape, line feed).
"""

import shlex
from collections.abc import Iterable


def printable(text: str, kept: str = "\n") -> str:
    """Return the string with unprintable characters escaped, except those in ``kept``."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each in kept else _escaped(each) for each in text)


def quoted(word: str) -> str:
    """Quote a word for a shell's command line so that all of it is printable; escapes are those of bash and zsh."""
    if word.isprintable():
        return shlex.quote(word)
    inner = "".join(f"\\{each}" if each in "\\'" else printable(each, "") for each in word)
    return f"$'{inner}'"


def command_line(words: Iterable[str]) -> str:
    """Return a command line of these words, each quoted for a shell."""
    return " ".join(map(quoted, words))


def _escaped(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x80 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
