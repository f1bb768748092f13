"""``python -m tests.benchmarks.closed_loop URL CONNECTIONS SECONDS``: GET as fast as answers come, on kept connections.

It prints one JSON object: answers a second, and the 50th and 99th percentile of the latency in milliseconds.
"""

import asyncio
import json
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from urllib.parse import urlsplit

_HUNDREDTHS = 100


@dataclass(frozen=True, slots=True)
class Load:
    """A contender's results under load."""

    per_second: float
    p50_ms: float
    p99_ms: float


def load(url: str, connections: int, seconds: float) -> Load:
    """Measure in a process of its own."""
    command = [sys.executable, "-m", "tests.benchmarks.closed_loop", url, str(connections), str(seconds)]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=seconds + 60)
    return Load(**json.loads(ended.stdout))


async def _measure(url: str, connections: int, seconds: float) -> dict[str, float]:
    parts = urlsplit(url)
    request = f"GET {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nAccept: application/json\r\n\r\n".encode()
    taken: list[float] = []
    begin = time.perf_counter()

    async def ask() -> None:
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        while time.perf_counter() < begin + seconds:
            sent = time.perf_counter()
            writer.write(request)
            await _answer(reader)
            taken.append(time.perf_counter() - sent)
        writer.close()

    await asyncio.gather(*(ask() for _ in range(connections)))
    hundredths = statistics.quantiles(taken, n=_HUNDREDTHS)
    return {
        "per_second": len(taken) / (time.perf_counter() - begin),
        "p50_ms": hundredths[49] * 1000,
        "p99_ms": hundredths[98] * 1000,
    }


async def _answer(reader: asyncio.StreamReader) -> None:
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    if not head.startswith(b"http/1.1 200"):
        raise RuntimeError(head.decode())
    if b"content-length:" in head:
        await reader.readexactly(int(head.split(b"content-length:")[1].split(b"\r\n")[0]))
        return
    while (size := int(await reader.readline(), 16)) > 0:
        await reader.readexactly(size + 2)
    await reader.readline()


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_measure(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))))  # noqa: T201
