"""The traces that a test session sees on a cluster, replayed in the model when it ends, in one run of Alloy.

The oracles hand each test's events to `note`. With ``PULSAR_SIDECAR_TEST_TRACES=FILE`` what is not among the known
traces is replayed: a trace that the model refuses fails the session and is shown with its ledger and events, and the
file gets the legal ones, a line each, for ``known_traces.json``.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.model.traces import Line, Trace, as_document, illegal, known_traces, traces

_seen: dict[Trace, str] = {}
_refused: dict[Trace, str] = {}


def note(lines: Sequence[Line]) -> None:
    """Keep the traces of the running test's lines of the outcome topic."""
    where = os.environ.get("PYTEST_CURRENT_TEST", "no test")
    for ledger_id, trace in traces(lines).items():
        if trace not in _seen:
            own = [line for line in lines if line[2].get("ledgerId") == ledger_id]
            _seen[trace] = f"ledger {ledger_id} in {where}:\n" + "\n".join(f"    {line}" for line in own)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Replay new traces."""
    file = os.environ.get("PULSAR_SIDECAR_TEST_TRACES")
    if not file or exitstatus == pytest.ExitCode.INTERRUPTED:
        return
    unseen = sorted(_seen.keys() - set(known_traces()), key=str)
    refused = illegal(unseen)
    _refused.update({trace: _seen[trace] for trace in refused})
    if refused:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    with Path(file).open("a") as lines:
        lines.writelines(f"{json.dumps(as_document(trace))}\n" for trace in unseen if trace not in refused)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show the traces that the model refused."""
    for trace, events in _refused.items():
        terminalreporter.write_line(f"ILLEGAL STEP, the model does not allow: {trace}\n  {events}", red=True)
