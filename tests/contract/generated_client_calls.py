"""Calls a sidecar with the client that was generated from its document, and prints the outcome as JSON.

`test_generated_client` runs it where the client's own dependencies are: ``python generated_client_calls.py URL TOKEN``.
"""

import json
import sys
from typing import Any

from sidecar_client import AuthenticatedClient, Client
from sidecar_client.api.ledger_deletion import (
    dead_letters,
    ledger_deletion_status,
    pause_ledger_deletion,
    remove_watch_hold,
)
from sidecar_client.api.persistent_topics import delete_topic
from sidecar_client.api.probes import readyz
from sidecar_client.models import PauseRequest


def main(url: str, token: str) -> None:
    allowed, forged = (AuthenticatedClient(base_url=url, token=each) for each in (token, token + "x"))
    topic = {"tenant": "public", "namespace": "default", "topic": "orders #1"}
    answers = {
        "ready": readyz.sync_detailed(client=Client(base_url=url)),
        "status": ledger_deletion_status.sync_detailed(client=allowed),
        "dead letters": dead_letters.sync_detailed(client=allowed, limit=1),
        "pause": pause_ledger_deletion.sync_detailed(client=allowed, body=PauseRequest(reason="a test")),
        "delete": delete_topic.sync_detailed(client=allowed, **topic),
        "unknown": remove_watch_hold.sync_detailed(client=allowed, hold="ledger:4711"),
        "wrong": dead_letters.sync_detailed(client=allowed, limit=-1),
        "forged": ledger_deletion_status.sync_detailed(client=forged),
    }
    json.dump({call: [answer.status_code, shown(answer.parsed)] for call, answer in answers.items()}, sys.stdout)


def shown(parsed: Any) -> Any:
    """The class that the client made of a response, with its content."""
    if isinstance(parsed, list):
        return [shown(item) for item in parsed]
    return None if parsed is None else {"class": type(parsed).__name__, **parsed.to_dict()}


if __name__ == "__main__":
    main(*sys.argv[1:])
