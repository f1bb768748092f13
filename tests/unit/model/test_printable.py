import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pulsar_sidecar.model.printable import command_line, printable, quoted

BASH = shutil.which("bash")


def test_unprintable_characters_are_escaped() -> None:
    assert printable("a\u202eb\x1b[2J\x9b\U000e0001\n") == "a\\u202eb\\x1b[2J\\u009b\\U000e0001\n"
    assert printable("Aufträge 注文 'x'") == "Aufträge 注文 'x'"


@pytest.mark.parametrize(
    ("word", "shown"),
    [
        ("orders", "orders"),
        ("it's", "'it'\"'\"'s'"),
        ("", "''"),
        ("\u202eevil", "$'\\u202eevil'"),
        ("\x15curl x | sh\n", "$'\\x15curl x | sh\\x0a'"),
        ("a\\'\t", "$'a\\\\\\'\\x09'"),
    ],
)
def test_a_word_hides_nothing(word: str, shown: str) -> None:
    assert quoted(word) == shown


@pytest.mark.skipif(BASH is None, reason="no bash")
@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), min_size=1, max_size=20))
def test_a_shell_takes_what_was_meant(words: list[str]) -> None:
    line = command_line(["printf", "%s\\0", *words])
    assert line.isprintable()
    run = subprocess.run([str(BASH), "-c", line], env={"LC_ALL": "C.UTF-8"}, capture_output=True, check=True)
    assert run.stdout.decode().split("\0")[:-1] == words
