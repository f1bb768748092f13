"""Names that a cluster's users choose, as people see them: nothing hides in them, and a shell takes what is shown.

A name may hold characters that turn the text around it (U+202E), or that a terminal obeys (escape, line feed).
"""

import shlex
from collections.abc import Iterable


def printable(text: str, kept: str = "\n") -> str:
    """The text with everything escaped that is not printable, but for the characters that are kept."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each in kept else _escaped(each) for each in text)


def quoted(word: str) -> str:
    """A word for a shell's command line, where it is printable as a whole; escapes in it are those of bash and zsh."""
    if word.isprintable():
        return shlex.quote(word)
    inner = "".join(f"\\{each}" if each in "\\'" else printable(each, "") for each in word)
    return f"$'{inner}'"


def command_line(words: Iterable[str]) -> str:
    """Words as a shell takes them."""
    return " ".join(map(quoted, words))


def _escaped(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x80 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
