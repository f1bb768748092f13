"""Puts an audit's metrics.prom into a Pushgateway: a pod is gone before anybody could scrape it.

``push_metrics.py FILE URL``: the URL names a group, such as ``http://HOST:9091/metrics/job/pulsar-sidecar-audit``. The
group is replaced as a whole, so nothing of an earlier audit stays. Any Python 3.9 or later runs this.
"""

import sys
import urllib.request
from http.client import HTTPException
from pathlib import Path

_HEADERS = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}


def push(file: Path, url: str) -> None:
    """Replace what the group holds.

    Raises:
        OSError, HTTPException: the Pushgateway did not take it.
        ValueError: no URL of HTTP.
    """
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"{url} begins with neither http:// nor https://")
    request = urllib.request.Request(url, file.read_bytes(), _HEADERS, method="PUT")  # noqa: S310 - looked at above
    with urllib.request.urlopen(request, timeout=60):  # noqa: S310
        pass


def main(words: list[str]) -> int:
    """0 if the Pushgateway took the file, else 1."""
    if len(words) != 2:
        sys.stderr.write("usage: push_metrics.py FILE URL\n")
        return 1
    try:
        push(Path(words[0]), words[1])
    except (OSError, HTTPException, ValueError) as error:
        sys.stderr.write(f"the metrics were not pushed to {words[1]}: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
