from pathlib import Path

import pytest
from pulsar_sidecar.model.errors import InvalidInputError
from pulsar_sidecar.settings.sources import flag, properties, setting_key

JAVA_PROPERTIES = r"""
# a comment
! another
plain=value
 spaced   =   value with spaces
colon: value
blank
empty=
separator value of it
url=http://host:8080/path?a=b#c
escaped\=key = x\ty
continued = one, \
    two, \
    three
unicode=\u00e4
double\\=back\\slash
twice=1
twice=2
last=line\
"""


def test_the_grammar_of_java_properties(tmp_path: Path) -> None:
    path = tmp_path / "x.properties"
    path.write_text(JAVA_PROPERTIES, encoding="utf-8")
    assert properties(path) == {
        "plain": "value",
        "spaced": "value with spaces",
        "colon": "value",
        "blank": "",
        "empty": "",
        "separator": "value of it",
        "url": "http://host:8080/path?a=b#c",
        "escaped=key": "x\ty",
        "continued": "one, two, three",
        "unicode": "ä",
        "double\\": "back\\slash",
        "twice": "2",
        "last": "line",
    }


def test_line_ends_of_windows(tmp_path: Path) -> None:
    path = tmp_path / "x.properties"
    path.write_bytes(b"a=1\r\n# c\r\nb=2\\\r\n  3\r\n")
    assert properties(path) == {"a": "1", "b": "23"}


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe")
    for path in (tmp_path / "missing", tmp_path, binary):
        with pytest.raises(InvalidInputError, match="cannot read the configuration file"):
            properties(path)


@pytest.mark.parametrize(
    ("field", "key"),
    [
        ("two_phase_deletion_outcome_retention_size_in_mb", "twoPhaseDeletionOutcomeRetentionSizeInMB"),
        ("openid_allowed_token_issuers", "openIDAllowedTokenIssuers"),
        ("openid_key_id_cache_miss_refresh_seconds", "openIDKeyIdCacheMissRefreshSeconds"),
    ],
)
def test_settings_are_spelled_as_in_broker_conf_and_as_options(field: str, key: str) -> None:
    assert (setting_key(field), flag(field)) == (key, "--" + field.replace("_", "-"))
