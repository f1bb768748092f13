"""The audit's report as a browser shows it: names are plain text, and the page loads nothing."""

import re
import subprocess
from pathlib import Path

import pytest
from pulsar_sidecar.features.audit.results.report import ReportRows, report_html

from tests.cluster.needs import browser
from tests.unit.audit.findings import orphan, summary

_SECONDS = 120
_HOSTILE = (
    "<img src=//127.0.0.1:1/x onerror=\"document.title='taken over'\"><script>document.title='taken over'</script>"
)


@pytest.mark.browser
def test_names_are_text(tmp_path: Path) -> None:
    topic = f"persistent://public/default/{_HOSTILE}"
    row = orphan(3, topic=topic)
    page = tmp_path / "report.html"
    page.write_text(report_html(summary([row]), ReportRows(orphans=[row])))
    program = browser()
    assert program is not None
    shown = subprocess.run(
        [
            program,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--enable-logging=stderr",
            "--dump-dom",
            page.as_uri(),
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=_SECONDS,
    )
    assert "<title>taken over</title>" not in shown.stdout
    assert "<img" not in shown.stdout
    assert "&lt;img src=" in shown.stdout
    assert not re.findall(r".*CONSOLE.*", shown.stderr)
