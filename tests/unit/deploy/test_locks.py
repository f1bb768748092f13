"""The locks agree with each other and with pyproject.toml, and show no address."""

import re
import tomllib
from collections import defaultdict
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from deploy.lock import DEPLOY, LOCKS, Lock, pinned
from tests.cluster.choosing import PROJECT

PROJECT_FILE = tomllib.loads((PROJECT / "pyproject.toml").read_text())
OWN = PROJECT_FILE["project"]["name"]


def pins(lock: str) -> dict[str, list[Requirement]]:
    found = defaultdict(list)
    for line in pinned(DEPLOY / lock):
        found[(pin := Requirement(line)).name].append(pin)
    return found


def wanted(lock: Lock) -> list[Requirement]:
    extras, groups = PROJECT_FILE["project"]["optional-dependencies"], PROJECT_FILE["dependency-groups"]
    lines = [*(extras[each] for each in lock.extras), *(groups[each] for each in lock.groups)]
    if lock.extras and lock.base is None:
        lines.append(PROJECT_FILE["project"]["dependencies"])
    return [each for line in lines for each in map(Requirement, line) if each.name != OWN]


def with_bases(lock: str) -> list[str]:
    base = LOCKS[lock].base
    return [lock, *(with_bases(base) if base else ())]


def test_every_lock_is_written_by_make_lock() -> None:
    assert {path.relative_to(DEPLOY) for path in DEPLOY.rglob("*.lock")} == set(map(Path, LOCKS))


def test_a_package_has_the_same_pins_in_all_locks() -> None:
    versions = defaultdict(set)
    for lock, described in LOCKS.items():
        for name, found in pins(lock).items():
            if name not in described.apart:
                versions[name].add(frozenset(str(pin.specifier) for pin in found))
    assert {name: found for name, found in versions.items() if len(found) > 1} == {}


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_adds_to_the_one_that_it_includes(lock: str) -> None:
    text = (DEPLOY / lock).read_text()
    base = LOCKS[lock].base
    assert re.findall(r"^-r (.*)$", text, re.MULTILINE) == ([base] if base else [])
    below = {name for each in with_bases(lock)[1:] for name in pins(each)}
    assert below.isdisjoint(pins(lock))


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_has_what_the_project_demands_of_it(lock: str) -> None:
    here = {name: found for each in reversed(with_bases(lock)) for name, found in pins(each).items()}
    for requirement in wanted(LOCKS[lock]):
        for pin in here[requirement.name]:
            (version,) = pin.specifier
            assert requirement.specifier.contains(version.version), f"{requirement}, but {pin}: run `make lock`"


@pytest.mark.parametrize("lock", LOCKS)
def test_each_pin_has_hashes_and_no_address(lock: str) -> None:
    text = (DEPLOY / lock).read_text()
    assert "://" not in text
    blocks = re.split(r"^(?=\w)", text, flags=re.MULTILINE)[1:]
    assert [block for block in blocks if "--hash=sha256:" not in block] == []


def test_the_image_of_the_audit_differs_by_arrow_alone() -> None:
    assert list(pins("requirements-audit.lock")) == ["pyarrow"]
