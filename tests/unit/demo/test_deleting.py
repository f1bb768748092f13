"""The demo when so much leaks at once that the watch brakes."""

import pytest
from pulsar_sidecar.demo.deleting import resume_if_braked

from tests.fakes.http_servers import Answer, Arrived, http_server, json_answer

WATCH = "/admin/v2/ledger-deletion/watch"


@pytest.mark.parametrize(
    ("braked", "asked"),
    [(None, [("GET", WATCH)]), ("51 references vanished", [("GET", WATCH), ("POST", f"{WATCH}/resume")])],
)
def test_a_watch_that_brakes_is_resumed_and_that_is_reported(braked: str | None, asked: list[tuple[str, str]]) -> None:
    def answer(arrived: Arrived) -> Answer:
        return json_answer({"braked": braked})

    lines: list[str] = []
    with http_server(answer) as sidecar:
        resume_if_braked(sidecar.url, lines.append)
        assert [(each.method, each.target) for each in sidecar.arrived] == asked
    assert len(lines) == len(asked) - 1
