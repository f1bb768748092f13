"""The unit file is one that systemd takes, keeps its restrictions, and starts a command that exists."""

import configparser
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from pulsar_sidecar.settings.fields import load_settings
from pulsar_sidecar.settings.sources import environment_variable

from tests.cluster.choosing import PROJECT

FOLDER = PROJECT / "deploy" / "systemd"
UNIT = FOLDER / "pulsar-sidecar.service"
EXPOSURE = 1.1
"""Of 10, as docs/install-plain.md has it."""

_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="no systemd-analyze: install systemd to have the unit file checked"
)


def _unit() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[method-assign,assignment]
    parser.read(UNIT)
    return parser


def _analyze(*arguments: str) -> str:
    answer = subprocess.run(["systemd-analyze", *arguments], capture_output=True, text=True, check=False, timeout=60)
    return answer.stdout + answer.stderr


@_systemd
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    (command,) = re.findall(r"^ExecStart=(\S+)", UNIT.read_text(), re.MULTILINE)
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text().replace(command, "/bin/true"))
    assert _analyze("verify", "--man=no", str(copy)) == ""
    copy.write_text(copy.read_text().replace("ProtectSystem=", "ProtectSysten="))
    assert "ProtectSysten" in _analyze("verify", "--man=no", str(copy))


@_systemd
def test_the_unit_is_as_closed_as_the_page_has_it() -> None:
    report = _analyze("security", "--offline=true", "--no-pager", str(UNIT))
    if "Unknown" in report or "unrecognized option" in report:
        pytest.skip("this systemd-analyze is older than 250 and cannot judge a file")
    (exposure,) = re.findall(r"Overall exposure level for \S+: ([\d.]+)", report)
    assert float(exposure) <= EXPOSURE, report
    assert f"{EXPOSURE} of 10" in (PROJECT / "docs" / "install-plain.md").read_text()


def test_the_settings_that_it_comes_with_are_accepted(tmp_path: Path) -> None:
    (configuration,) = re.findall(r"--config (\S+)", _unit()["Service"]["ExecStart"])
    assert Path(configuration).name == "pulsar-sidecar.conf"
    written = (FOLDER / "pulsar-sidecar.conf").read_text()
    switched_on = re.sub(r"^#(?=\w+=)", "", written, flags=re.MULTILINE)
    for text in (written, switched_on):
        copy = tmp_path / "pulsar-sidecar.conf"
        copy.write_text(text)
        load_settings({}, {}, copy)


def test_the_environment_that_it_comes_with_names_settings() -> None:
    variables = re.findall(r"^#?(PULSAR_SIDECAR_\w+)=(\S*)", (FOLDER / "environment").read_text(), re.MULTILINE)
    lines: list[str] = []
    load_settings({}, dict(variables), FOLDER / "pulsar-sidecar.conf", warn=lines.append)
    assert variables
    assert lines == []
    assert environment_variable("instance_name") in dict(variables)
