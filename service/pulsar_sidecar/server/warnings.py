"""Header for warnings in responses without a body."""

from collections.abc import Iterable
from typing import Final

WARNING_HEADER: Final = "X-Pulsar-Sidecar-Warning"
_LONGEST: Final = 1000


def warning_headers(warnings: Iterable[str]) -> dict[str, str]:
    """Return the header with these warnings, each once; no header without any."""
    text = "; ".join(dict.fromkeys(warnings)).encode("ascii", "replace").decode()
    return {WARNING_HEADER: text[:_LONGEST]} if text else {}
