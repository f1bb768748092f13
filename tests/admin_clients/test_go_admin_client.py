"""The Go admin client (``pulsaradmin``) at a broker and at a sidecar: the same calls, the same answers."""

import json
import subprocess
from pathlib import Path
from typing import Any

from tests.admin_clients.comparing import SIDES, Outcome
from tests.admin_clients.preparing import Preparing
from tests.cluster.patience import PATIENCE_SECONDS
from tests.cluster.sidecars import SidecarProcess
from tests.cluster.tokens import token

_APPLIED = 50


def test_calls_end_the_same(broker: str, sidecar: SidecarProcess, go_client: Path, preparing: Preparing) -> None:
    ended = []
    for url, side in zip((broker, sidecar.url), SIDES, strict=True):
        preparing.tenant(f"go-{side}")
        output = _run(go_client, "calls", url, f"go-{side}")
        ended.append([Outcome(0, line, "").comparable(form_only=False).output for line in output.splitlines()])
    assert len(ended[0]) >= 20
    assert ended[0] == ended[1]


def test_fifty_at_once(sidecar: SidecarProcess, go_client: Path, preparing: Preparing) -> None:
    """Like Terraform with a plan: each client makes, changes, reads and deletes a namespace with a topic."""
    preparing.tenant("applied")
    lines: list[dict[str, Any]] = [
        json.loads(line) for line in _run(go_client, "concurrently", sidecar.url, "applied").splitlines()
    ]
    assert [line for line in lines if line["error"]] == []
    assert [line["answer"] for line in lines] == [60] * _APPLIED


def _run(go_client: Path, what: str, url: str, tenant: str) -> str:
    command = [str(go_client), what, url, token("admin"), tenant]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE_SECONDS)
    return ended.stdout
