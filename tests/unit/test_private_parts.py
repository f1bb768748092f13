"""Private parts of libraries that the service reaches into are there, and no release that may change them is admitted.

Before an upper bound in pyproject.toml is raised, the tests on a real cluster have to pass with the new release. That
PUT and DELETE are not sent twice, against which aiohttp has no option, is shown by the tests of passed requests.
"""

import asyncio
import inspect
import tomllib
from importlib.metadata import version
from typing import Any

import _pulsar
import aiohttp
import pulsar
import pytest
from kazoo.client import KazooClient
from packaging.requirements import Requirement
from packaging.version import Version
from pyspark.sql import SparkSession
from uvicorn import Server
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tests.cluster.choosing import PROJECT

BOUNDED = ("aiohttp", "kazoo", "pulsar-client", "pyspark", "uvicorn")


def parameters(function: Any) -> list[str]:
    return list(inspect.signature(function).parameters)


@pytest.mark.parametrize("library", BOUNDED)
def test_newer_minor_releases_are_excluded(library: str) -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    lines = map(Requirement, [*project["dependencies"], *project["optional-dependencies"]["spark"]])
    (bounds,) = (line.specifier for line in lines if line.name == library)
    (upper,) = (Version(bound.version) for bound in bounds if bound.operator == "<")
    installed = Version(version(library))
    assert installed < upper
    assert (upper.major, upper.minor) <= (installed.major, installed.minor + (3 if library == "pyspark" else 1))


def test_kazoo() -> None:
    client = KazooClient()
    assert parameters(client._call) == ["request", "async_object"]
    assert parameters(client._session_callback) == ["state"]
    assert parameters(client._connection._read_watch_event) == ["buffer", "offset"]
    assert {"_socket", "_connection_routine"} <= vars(client._connection).keys()


def test_aiohttp() -> None:
    async def setting() -> bool:
        async with aiohttp.ClientSession() as session:
            return session._retry_connection

    assert asyncio.run(setting()) is True
    assert "_retry_connection" in aiohttp.ClientSession._request.__code__.co_names


def test_pulsar_client() -> None:
    message = pulsar.Message._wrap(_pulsar.MessageBuilder().content(b"payload").build())
    assert message._message.data() == b"payload"
    assert isinstance(pulsar.MessageId(-1, 1, 2, -1)._msg_id, _pulsar.MessageId)
    assert "_producer" in pulsar.Producer.send_async.__code__.co_names


def test_pyspark() -> None:
    assert {"_jvm", "_jsc"} <= set(SparkSession.__init__.__code__.co_names)


def test_uvicorn() -> None:
    assert parameters(Server.startup) == parameters(Server.shutdown) == ["self", "sockets"]
    assert parameters(Server.handle_exit) == ["self", "sig", "frame"]
    assert {"on_headers_complete", "on_message_complete", "on_response_complete"} <= vars(HttpToolsProtocol).keys()
