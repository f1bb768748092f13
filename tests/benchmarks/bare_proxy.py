"""``python -m tests.benchmarks.bare_proxy URL PORT``: an ASGI proxy that does nothing but pass requests on.

It stands on the same server and the same client library as the sidecar, so that a comparison shows what the sidecar
adds to them.
"""

import sys

import aiohttp
import uvicorn
from starlette.types import Receive, Scope, Send


class BareProxy:
    def __init__(self, url: str) -> None:
        self._url = url
        self._session: aiohttp.ClientSession | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._session is None:
            self._session = aiohttp.ClientSession(auto_decompress=False)
        body = bytearray()
        more = True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        headers = [(name.decode(), value.decode()) for name, value in scope["headers"] if name != b"host"]
        target = self._url + scope["raw_path"].decode()
        async with self._session.request(scope["method"], target, headers=headers, data=bytes(body) or None) as answer:
            await send({"type": "http.response.start", "status": answer.status, "headers": answer.raw_headers})
            await send({"type": "http.response.body", "body": await answer.read()})


if __name__ == "__main__":
    uvicorn.run(BareProxy(sys.argv[1]), port=int(sys.argv[2]), log_level="error", lifespan="off", date_header=False)
