"""docs/install-kubernetes.md, word by word, beside the Pulsar of the other tests.

Only what the page has its reader write is written here: names of Secrets and images. What builds and pushes images is
left out, since `Images` has done it.
"""

import os
import re
import shutil
import sys
from pathlib import Path

import pytest
import yaml

from tests.cluster.choosing import PROJECT
from tests.cluster.install_pages import commands_of, run, shown
from tests.kubernetes.images import Images
from tests.kubernetes.release import Release

pytestmark = pytest.mark.kubernetes

PAGE = PROJECT / "docs" / "install-kubernetes.md"
_MAKES_A_TOKEN = """#!{python}
import sys
import jwt
words = dict(zip(sys.argv[1::1], sys.argv[2::1]))
key = open(words["--secret-key"].removeprefix("file://"), "rb").read()
print(jwt.encode({{"sub": words["--subject"]}}, key, algorithm="HS256"))
"""
"""`pulsar tokens create`, which this machine need not have."""
_LISTENS = "until (exec 3<>/dev/tcp/127.0.0.1/8750) 2>/dev/null; do sleep 0.2; done"


def commands(namespace: str) -> list[str]:
    return [
        re.sub("--namespace pulsar$|--namespace pulsar ", f"--namespace {namespace} ", line)
        for line in commands_of(PAGE)
        if "docker" not in line
    ]


def edited(example: Path, images: Images) -> str:
    """Return the example as a reader edits it: a key of the sidecar's own, the images, and no operator for monitors."""
    values = yaml.safe_load(example.read_text())
    values["images"] = images.values
    values["auth"]["authentication"]["jwt"] = {"usingSecretKey": True, "secretName": "pulsar-sidecar-callers"}
    values["sidecar"]["podMonitor"]["enabled"] = values["sidecar"]["prometheusRule"]["enabled"] = False
    return str(yaml.safe_dump(values))


def test_every_command_of_the_page_in_its_order(release: Release, images: Images, tmp_path: Path) -> None:
    images.provide("audit")
    release.uninstall()
    shutil.copytree(PROJECT / "deploy", tmp_path / "deploy")
    (tmp_path / "edited").write_text(edited(tmp_path / "deploy/helm/examples/beside-pulsar-chart.yaml", images))
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in (
        ("pulsar", _MAKES_A_TOKEN.format(python=sys.executable)),
        ("editor", f'#!/bin/sh\ncp {tmp_path}/edited "$1"\n'),
    ):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    path = f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = os.environ | {"EDITOR": str(programs / "editor"), "PATH": path}
    script = "\n".join(
        shown(command) + (f"\n{_LISTENS}" if command.endswith("&") else "")
        for command in commands(release.namespace.name)
    )
    try:
        done = run(f"trap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n{script}", tmp_path, environment)
    finally:
        release.namespace.kubectl("delete", "secret", "pulsar-sidecar-callers", "--ignore-not-found")
        release.uninstall()
    assert done.returncode == 0, done.stdout[-3_000:]
    _, _, doctor = done.stdout.partition(" doctor\n")
    doctor, _, after = doctor.partition("port-forward")
    assert ", 0 failed" in doctor, doctor
    assert re.search(r"^ok +brokers ", doctor, re.MULTILINE), doctor
    assert "pulsar-sidecar-1" in after.partition("ledger-deletion status\n")[2], after
    assert "ledgers in the listing" in after
