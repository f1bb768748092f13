"""Regenerate ``service/pulsar_sidecar/protobuf`` from the .proto files beside this script, or report what is stale.

Run it with the project's own interpreter: ``python proto/generate.py`` writes, ``python proto/generate.py --check``
compares and fails on any difference. The output names no path of the machine it was made on.
"""

import argparse
import filecmp
import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc

SOURCES = Path(__file__).resolve().parent
TARGET = SOURCES.parent / "service" / "pulsar_sidecar" / "protobuf"
ORIGINS = ("bookkeeper", "pulsar")
MYPY_PLUGIN = Path(sys.executable).with_name("protoc-gen-mypy")


def main(arguments: list[str]) -> int:
    """0 when the modules are written or up to date, 1 when they differ."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare only, write nothing")
    if parser.parse_args(arguments).check:
        return _check()
    _generate(TARGET)
    return 0


def _generate(target: Path) -> None:
    for stale in _generated(target):
        (target / stale).unlink()
    for origin in ORIGINS:
        folder = SOURCES / origin
        sources = sorted(path.name for path in folder.glob("*.proto"))
        plugin = f"--plugin=protoc-gen-mypy={MYPY_PLUGIN}"
        outputs = [f"--python_out={target}", f"--mypy_out=quiet:{target}"]
        if protoc.main(["protoc", f"--proto_path={folder}", plugin, *outputs, *sources]) != 0:
            raise SystemExit(f"protoc failed on {folder.name}")


def _check() -> int:
    with tempfile.TemporaryDirectory() as scratch:
        fresh = Path(scratch)
        _generate(fresh)
        wanted, present = _generated(fresh), _generated(TARGET)
        _, differing, unreadable = filecmp.cmpfiles(fresh, TARGET, wanted & present, shallow=False)
        stale = sorted({*differing, *unreadable, *(wanted ^ present)})
    if stale:
        sys.stderr.write(
            f"service/pulsar_sidecar/protobuf is out of date ({', '.join(stale)}): run python proto/generate.py\n"
        )
    return 1 if stale else 0


def _generated(folder: Path) -> set[str]:
    return {path.name for pattern in ("*_pb2.py", "*_pb2.pyi") for path in folder.glob(pattern)}


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
