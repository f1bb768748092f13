"""Resolve the dependencies once and write the locks: ``make lock``, or ``make lock LOCK_OPTIONS=--upgrade``.

A lock may begin with ``-r``; it then adds to the lock named there, so that each package is pinned in one place. Without
``--upgrade`` pins stay unless pyproject.toml excludes them. Hashes are those of the wheels for Linux (x86_64 and arm64,
glibc) and macOS (arm64) with the supported versions of Python. Elsewhere pip builds from sources: a package that has no
wheel for all platforms has its source's hash as well.
"""

import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from packaging.tags import Tag
from packaging.utils import parse_wheel_filename

DEPLOY = Path(__file__).parent
PYTHONS = {"cp311", "cp312", "cp313", "cp314"}
PLATFORMS = re.compile(r"any|manylinux\w+_(x86_64|aarch64)|macosx\w+_(arm64|universal2)")


@dataclass(frozen=True, slots=True)
class Lock:
    """The extras and dependency groups of pyproject.toml that a file adds to the lock named ``base``.

    Attributes:
        apart: packages with a version of their own, for an environment of its own.
    """

    extras: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    base: str | None = None
    apart: frozenset[str] = frozenset()

    @property
    def options(self) -> list[str]:
        below = LOCKS[self.base].options if self.base else []
        extras = [f"--extra={extra}" for extra in self.extras]
        project = ["pyproject.toml", *extras] if extras else []
        return [*below, *project, *(f"--group={group}" for group in self.groups)]


LOCKS = {
    "requirements.lock": Lock(extras=("telemetry",)),
    "requirements-audit.lock": Lock(extras=("audit",), base="requirements.lock"),
    "requirements-spark.lock": Lock(extras=("spark",), base="requirements-audit.lock"),
    "requirements-dev.lock": Lock(extras=("rocksdb",), groups=("dev",), base="requirements-spark.lock"),
    "requirements-tools.lock": Lock(groups=("tools",), base="requirements-dev.lock"),
    "requirements-image.lock": Lock(groups=("image",)),
    "requirements-openapi-client.lock": Lock(groups=("openapi-client",), apart=frozenset({"typer"})),
}


def main(*options: str) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        pins = Path(scratch, "pins.txt")
        together = {name: lock for name, lock in LOCKS.items() if not lock.apart}
        pins.write_text("\n".join(pin for name in together for pin in pinned(DEPLOY / name)))
        _resolve(pins, *options, *(option for lock in together.values() for option in lock.options))
        blocks = {name: _resolved(lock, pins) for name, lock in LOCKS.items()}
    for name, lock in LOCKS.items():
        include = [f"-r {lock.base}\n"] if lock.base else []
        below = blocks[lock.base] if lock.base else []
        (DEPLOY / name).write_text("".join([*include, *(block for block in blocks[name] if block not in below)]))


def pinned(lock: Path) -> list[str]:
    """The pins in a lock, as lines without hashes."""
    text = lock.read_text() if lock.exists() else ""
    return re.findall(r"^\w\S*==.*?(?= \\$|$)", text, re.MULTILINE)


def _resolved(lock: Lock, pins: Path) -> list[str]:
    constraints, output = pins.with_name("constraints.txt"), pins.with_name("pylock.toml")
    lines = pins.read_text().splitlines(keepends=True)
    constraints.write_text("".join(line for line in lines if line.partition("==")[0] not in lock.apart))
    _resolve(output, "--format=pylock.toml", f"--constraint={constraints}", *lock.options)
    packages = tomllib.loads(output.read_text())["packages"]
    return [_block(package) for package in packages if package.get("marker") != "sys_platform == 'win32'"]


def _resolve(output: Path, *options: str) -> None:
    uv = Path(sys.executable).with_name("uv")
    how = ("--quiet", "--universal", "--python-version=3.11", "--no-header", "--no-annotate", f"--output-file={output}")
    subprocess.run([uv, "pip", "compile", *how, *options], check=True, cwd=DEPLOY.parent)  # noqa: S603


def _block(package: dict[str, Any]) -> str:
    pin = f"{package['name']}=={package['version']}"
    marker = f" ; {package['marker']}" if "marker" in package else ""
    hashes = sorted(f"    --hash=sha256:{file['hashes']['sha256']}" for file in _files(package))
    return " \\\n".join([pin + marker, *hashes]) + "\n"


def _files(package: dict[str, Any]) -> Iterator[dict[str, Any]]:
    tags = {wheel["url"]: _tags(wheel["url"]) for wheel in package.get("wheels", ())}
    yield from (wheel for wheel in package.get("wheels", ()) if any(map(_supported, tags[wheel["url"]])))
    if "sdist" in package and not any(tag.platform == "any" for each in tags.values() for tag in each):
        yield package["sdist"]


def _tags(url: str) -> frozenset[Tag]:
    return parse_wheel_filename(unquote(url.rpartition("/")[2]))[3]


def _supported(tag: Tag) -> bool:
    python = tag.abi == "abi3" or (tag.interpreter in PYTHONS | {"py3"} and tag.abi in {tag.interpreter, "none"})
    return python and PLATFORMS.fullmatch(tag.platform) is not None


if __name__ == "__main__":
    main(*sys.argv[1:])
