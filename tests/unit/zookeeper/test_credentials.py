"""``metadataStoreAuth`` in each of its forms, and what commands take of TLS from the environment."""

from pathlib import Path

import pytest
from pulsar_sidecar.adapters.metadata_access import StoreCredential, StoreTls, parse_credential
from pulsar_sidecar.bootstrap.store_access import command_session
from pulsar_sidecar.model.errors import InvalidInputError

SECRET = "s3cret"
PREFIX = "PULSAR_SIDECAR_METADATA_STORE_TLS_"


@pytest.mark.parametrize("scheme", ["digest", "sasl"])
def test_a_credential_stands_in_the_setting_or_in_a_file(scheme: str, tmp_path: Path) -> None:
    text = f"{scheme}:user:{SECRET}:x"
    file = tmp_path / "my file"
    file.write_text(f"{text}\n")
    for form in (text, f"file://{str(file).replace(' ', '%20')}", f"file:{str(file).replace(' ', '%20')}"):
        credential = parse_credential(form)
        assert credential == StoreCredential(scheme, f"user:{SECRET}:x")
        assert credential.sasl == (("user", f"{SECRET}:x") if scheme == "sasl" else None)
        assert SECRET not in repr(credential)
    assert parse_credential(None) is None


@pytest.mark.parametrize("content", [SECRET, "digest:", f"sasl:{SECRET}", "", f"\xff{SECRET}"])
def test_invalid_credential_is_refused_and_not_shown(content: str, tmp_path: Path) -> None:
    file = tmp_path / "credential"
    file.write_bytes(content.encode("latin-1"))
    for form in (content, f"file://{file}"):
        with pytest.raises(InvalidInputError, match="metadataStoreAuth") as raised:
            parse_credential(form)
        assert SECRET not in str(raised.value)
    with pytest.raises(InvalidInputError, match="/no/such"):
        parse_credential("file:///no/such")


def test_commands_take_tls_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert command_session(None).tls is None
    monkeypatch.setenv(f"{PREFIX}TRUST_CERTS_FILE_PATH", "/ca.pem")
    assert command_session(None).tls == StoreTls(Path("/ca.pem"))
    monkeypatch.setenv(f"{PREFIX}CERTIFICATE_FILE_PATH", "/c.pem")
    monkeypatch.setenv(f"{PREFIX}KEY_FILE_PATH", "/k.pem")
    assert command_session(None).tls == StoreTls(Path("/ca.pem"), Path("/c.pem"), Path("/k.pem"))
