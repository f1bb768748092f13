"""Logging, set up once for the whole process: structlog for our lines, and the same line for those of libraries.

Each line is redacted (`redaction`), and names the request that it belongs to (`tracing`).
"""

import logging
import sys
from typing import Literal

import structlog
from structlog.typing import Processor

from pulsar_sidecar.observability.redaction import redact
from pulsar_sidecar.observability.tracing import add_request

_NOISY = ("kazoo", "urllib3", "uvicorn", "asyncio")
LogFormat = Literal["auto", "json", "text"]


def configure_logging(level: str, log_format: LogFormat) -> None:
    """Route every line of the process to standard error, redacted; ``auto`` is text on a terminal only."""
    stream = sys.stderr
    shared: list[Processor] = [
        add_request,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderer: Processor = structlog.processors.JSONRenderer(ensure_ascii=False)
    if log_format == "text" or (log_format == "auto" and stream.isatty()):
        traceback = structlog.dev.plain_traceback
        renderer = structlog.dev.ConsoleRenderer(colors=stream.isatty(), exception_formatter=traceback)
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, *shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.ExtraAdder(), *shared],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.format_exc_info,
                redact,
                renderer,
            ],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level)
    for name in _NOISY:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))
