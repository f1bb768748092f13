"""Structs are decoded by several threads at once, also for the first time in a process."""

import importlib
import inspect
import pkgutil
import subprocess
import sys
from collections.abc import Iterator

import msgspec
import pulsar_sidecar

THREADS_THAT_DECODE_AT_ONCE = """
import sys, threading
from pulsar_sidecar.adapters.pulsar_rest.topic_stats import parse_internal_stats
from pulsar_sidecar.model.names import parse_topic_name

document = {"ledgers": [{"ledgerId": 1}], "cursors": {"sub": {"markDeletePosition": "1:2"}}}
topic = parse_topic_name("persistent://public/default/orders")
barrier = threading.Barrier(16)
sys.setswitchinterval(1e-6)

def decode():
    barrier.wait()
    try:
        parse_internal_stats(document, topic, "broker-1")
    except Exception:
        pass  # only a crash matters here

threads = [threading.Thread(target=decode) for _ in range(16)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def structs(of: type = msgspec.Struct) -> Iterator[type]:
    for each in of.__subclasses__():
        yield each
        yield from structs(each)


def test_the_first_decoding_by_many_threads_does_not_end_the_process() -> None:
    for _ in range(5):
        ran = subprocess.run([sys.executable, "-c", THREADS_THAT_DECODE_AT_ONCE], check=False, timeout=120)
        assert ran.returncode == 0


def is_decodable(struct: type) -> bool:
    module = inspect.getsource(sys.modules[struct.__module__])
    if f"class {struct.__name__}" in module:
        return "@decodable" in inspect.getsource(struct)
    return f"{struct.__name__}: Final = decodable(" in module  # made by `defstruct`


def test_every_struct_is_decodable_from_the_beginning() -> None:
    for module in pkgutil.walk_packages(pulsar_sidecar.__path__, "pulsar_sidecar."):
        if "_pb2" not in module.name and not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    ours = {each for each in structs() if each.__module__.startswith("pulsar_sidecar.")}
    assert len(ours) > 20
    assert {each for each in ours if not is_decodable(each)} == set()
