"""A string's hash is the one that Java gives it."""

import pytest
from pulsar_sidecar.model.java_strings import java_string_hash


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("", 0),
        ("a", 97),
        ("abc", 96354),
        ("hello", 99162322),
        ("polygenelubricants", 0),
        ("\N{LATIN SMALL LETTER U WITH DIAERESIS}\N{EURO SIGN}", 16176),
        ("\N{GRINNING FACE}", 0xD83D * 31 + 0xDE00),
        ("\ud83d", 0xD83D),
    ],
)
def test_the_hash_of_a_string_is_java_s_without_its_sign(text: str, number: int) -> None:
    """The fifth has ``hashCode() == Integer.MIN_VALUE``; characters beyond the first plane are two."""
    assert java_string_hash(text) == number
