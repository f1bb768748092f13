"""Fetching through Maven, on a stand-in ``mvn`` program: complete or absent, once for two runs, clear when it fails."""

import os
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pulsar_sidecar.local_cluster.planning import metadata_setup_argv, plan_member
from pulsar_sidecar.local_cluster.software import (
    JavaRuntime,
    Software,
    class_archives,
    find_etcd,
    find_java,
    find_software,
)
from pulsar_sidecar.local_cluster.spec import (
    ClusterSpec,
    DistributionError,
    MemberFailedError,
    MissingPrerequisiteError,
    cache_directory,
)
from pulsar_sidecar.model.errors import InvalidInputError

SPEC = ClusterSpec(Path("cluster"), version="4.0.8")


class Programs:
    """Programs that a test puts on the path, with Java 17 among them, and an empty cache."""

    def __init__(self, directory: Path, patch: pytest.MonkeyPatch) -> None:
        self._directory = directory
        patch.setenv("PULSAR_SIDECAR_CACHE", str(directory / "cache"))
        patch.setenv("PATH", f"{directory / 'bin'}{os.pathsep}{os.environ['PATH']}")
        patch.setenv("JAVA_HOME", str(directory))
        self.java('openjdk version "17.0.15"')

    def add(self, name: str, script: str) -> None:
        program = self._directory / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)

    def java(self, printed: str) -> None:
        self.add("java", f"echo '{printed}' >&2")


@pytest.fixture(autouse=True)
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    return Programs(tmp_path, monkeypatch)


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    content = tmp_path / "apache-pulsar-4.0.8"
    (content / "lib").mkdir(parents=True)
    (content / "lib" / "some.jar").write_text("jar")
    for name in ("bin", "conf"):
        (content / name).mkdir()
    for name in ("broker.conf", "bookkeeper.conf"):
        (content / "conf" / name).write_text("of 4.0.8")
    path = tmp_path / "pulsar-server-distribution-4.0.8-bin.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        tar.add(content, "apache-pulsar-4.0.8")
    return path


def copying_mvn(archive: Path) -> str:
    return (
        f'echo run >> "{archive.parent}/runs"; for a in "$@"; do o=${{a#-DoutputDirectory=}}; done; cp "{archive}" "$o"'
    )


def test_a_distribution_is_fetched_once_for_runs_at_the_same_time(
    tmp_path: Path, archive: Path, programs: Programs
) -> None:
    programs.add("mvn", copying_mvn(archive))
    progress = list[str]()
    with ThreadPoolExecutor(4) as pool:
        found = {
            software.distribution for software in pool.map(lambda _: find_software(SPEC, progress.append), range(4))
        }
    (directory,) = found
    assert (directory / "lib" / "some.jar").read_text() == "jar"
    assert (tmp_path / "runs").read_text() == "run\n"
    assert any("fetching" in text for text in progress)
    assert sorted(path.name for path in directory.parent.iterdir()) == [directory.name, f"{directory.name}.lock"]


@pytest.mark.parametrize("version", ["4.0.9", "4.2.4", "5.0.0-M1"])
def test_a_version_without_distribution_is_its_jars_with_its_own_defaults(
    tmp_path: Path, archive: Path, programs: Programs, version: str
) -> None:
    copy_pom = 'case "$*" in *copy-dependencies*) mkdir -p "$o"; cp "$6" "$o/from.pom"; exit 0;; esac'
    options = 'for a in "$@"; do o=${a#-DoutputDirectory=}; done'
    # mvn -B -q -U <goal> -f <pom> ...: the pom is the sixth argument.
    programs.add("mvn", f"{options}; {copy_pom}; {copying_mvn(archive)}")
    distribution = find_software(ClusterSpec(Path("cluster"), version=version), print).distribution
    assert distribution.name == f"pulsar-server-distribution-{version}"
    assert f"<version>{version}</version>" in (distribution / "lib" / "from.pom").read_text()
    assert (distribution / "conf" / "broker.conf").read_text() == ""
    assert (distribution / "conf" / "bookkeeper.conf").read_text() == "of 4.0.8"


@pytest.mark.parametrize("version", ["4.0.8", "4.0.6", "3.3.6", "4.0.8-rc1"])
def test_any_other_version_is_its_own_distribution(
    tmp_path: Path, archive: Path, programs: Programs, version: str
) -> None:
    programs.add("mvn", copying_mvn(archive))
    distribution = find_software(ClusterSpec(Path("cluster"), version=version), print).distribution
    assert (distribution / "lib" / "some.jar").exists()


def test_leftovers_of_a_killed_run_are_removed(tmp_path: Path, archive: Path, programs: Programs) -> None:
    programs.add("mvn", copying_mvn(archive))
    left = tmp_path / "cache" / "distributions" / ".pulsar-server-distribution-4.0.8-left"
    left.mkdir(parents=True)
    find_software(SPEC, print)
    assert not left.exists()


MAVEN_FAILED = """\x1b[0m\x1b[0m
[ERROR] Failed to execute goal: Could not find artifact the-artifact in central
[ERROR]
[ERROR] Try downloading the file manually from the project website.
[ERROR] To see the full stack trace of the errors, re-run Maven with the -e switch.
[ERROR] For more information about the errors and possible solutions, please read the following articles:
"""


@pytest.mark.parametrize(
    ("spec", "coordinates", "asked"),
    [
        (SPEC, "pulsar-server-distribution:4.0.8:tar.gz:bin", "*"),
        (ClusterSpec(Path("cluster"), version="4.2.99"), "pulsar-broker:4.2.99", "*copy-dependencies*"),
    ],
)
def test_a_fetch_that_fails_names_the_artifact_its_cause_and_what_to_do_and_leaves_nothing(
    tmp_path: Path, archive: Path, programs: Programs, spec: ClusterSpec, coordinates: str, asked: str
) -> None:
    fails = f'case "$*" in {asked}) echo "{MAVEN_FAILED}"; exit 1;; esac'
    programs.add("mvn", f"{fails}; {copying_mvn(archive)}")
    with pytest.raises(DistributionError) as raised:
        find_software(spec, print)
    text = str(raised.value)
    for part in (coordinates, "4.0.8", "~/.m2/settings.xml", "Could not find artifact the-artifact", "Try downloading"):
        assert part in text
    assert "full stack trace" not in text
    assert "\x1b" not in text
    assert not list((tmp_path / "cache" / "distributions").glob(f"*{spec.version}*[!k]"))


def test_a_version_without_offloaders_is_refused_with_one_that_has_them(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"no offloaders of Pulsar 4\.2\.4; .* take 4\.0\.8"):
        find_software(ClusterSpec(Path("cluster"), version="4.2.4", offloaders=True), print)


def test_truncated_archive_is_refused(tmp_path: Path, archive: Path, programs: Programs) -> None:
    archive.write_bytes(archive.read_bytes()[:60])
    programs.add("mvn", copying_mvn(archive))
    with pytest.raises(DistributionError, match="cannot be unpacked"):
        find_software(SPEC, print)
    assert [path.suffix for path in (tmp_path / "cache" / "distributions").iterdir()] == [".lock"]


def test_without_maven_the_message_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/bin" if not Path("/bin/mvn").exists() else str(tmp_path))
    with pytest.raises(MissingPrerequisiteError, match="install Maven"):
        find_software(SPEC, print)


def test_without_java_the_message_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingPrerequisiteError, match="JDK 17"):
        find_java()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    with pytest.raises(MissingPrerequisiteError, match="no bin/java"):
        find_java()


@pytest.mark.parametrize(
    ("printed", "major"), [('openjdk version "17.0.15" 2025-04-15', 17), ('openjdk version "25" 2025-09-16', 25)]
)
def test_a_new_enough_java_is_taken(tmp_path: Path, programs: Programs, printed: str, major: int) -> None:
    programs.java(printed)
    assert (find_java().major_version, find_java().executable) == (major, tmp_path / "bin" / "java")


@pytest.mark.parametrize("printed", ['java version "1.8.0_382"', 'openjdk version "11.0.2"', "no version here"])
def test_another_java_is_refused(tmp_path: Path, programs: Programs, printed: str) -> None:
    programs.java(printed)
    with pytest.raises(MissingPrerequisiteError, match="JDK 17"):
        find_java()


@pytest.mark.parametrize("version", ["", "../4.0.8", "4.0.8/x", "4 0"])
def test_version_unfit_as_a_file_name_is_refused(tmp_path: Path, version: str) -> None:
    with pytest.raises(InvalidInputError):
        find_software(ClusterSpec(tmp_path, version=version))


def test_the_cache_is_where_the_environment_puts_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PULSAR_SIDECAR_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_directory() == tmp_path / "pulsar-sidecar"
    monkeypatch.setenv("PULSAR_SIDECAR_CACHE", str(tmp_path / "own"))
    assert cache_directory() == tmp_path / "own"


def test_class_archives_are_recorded_once_for_a_java_and_a_distribution(tmp_path: Path) -> None:
    recorded = list[Path]()

    def record(directory: Path) -> None:
        recorded.append(directory)
        (directory / "broker.jsa").touch()

    software = Software(JavaRuntime(Path("java"), 17, "17.0.15"), tmp_path / "pulsar")
    first = class_archives(software, record, print)
    assert class_archives(software, record, print) == first
    assert first is not None
    assert (first / "broker.jsa").exists()
    assert len(recorded) == 1
    assert (
        class_archives(Software(JavaRuntime(Path("java"), 17, "17.0.16"), tmp_path / "pulsar"), record, print) != first
    )


def test_members_of_one_kind_use_the_archive_of_their_kind(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "bookkeeper.conf").touch()
    (tmp_path / "bookie.jsa").touch()
    software = Software(JavaRuntime(Path("java"), 17, "17.0.15"), tmp_path, class_archives=tmp_path)
    spec = ClusterSpec(tmp_path / "cluster")
    assert f"-XX:SharedArchiveFile={tmp_path}/bookie.jsa" in plan_member(spec, software, "bookie-2", "zk:h:1").argv
    assert "SharedArchiveFile" not in str(plan_member(spec, software, "zookeeper", "").argv)
    assert "SharedArchiveFile" not in str(metadata_setup_argv(spec, software, "zk:h:1", ()))


def test_a_recording_that_fails_is_reported_and_not_kept(tmp_path: Path) -> None:
    def fail(directory: Path) -> None:
        (directory / "broker.jsa").touch()
        raise MemberFailedError("broker-1 ended")

    printed = list[str]()
    software = Software(JavaRuntime(Path("java"), 17, "17.0.15"), tmp_path / "pulsar")
    assert class_archives(software, fail, printed.append) is None
    assert "broker-1 ended" in printed[-1]
    assert [path.suffix for path in (tmp_path / "cache" / "class-archives").iterdir()] == [".lock"]


def test_etcd_is_found_or_its_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("PULSAR_SIDECAR_ETCD", raising=False)
    with pytest.raises(MissingPrerequisiteError, match=r"package etcd-server.*PULSAR_SIDECAR_ETCD"):
        find_etcd()
    program = tmp_path / "etcd"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert find_etcd() == str(program)
    monkeypatch.setenv("PULSAR_SIDECAR_ETCD", str(tmp_path / "other"))
    with pytest.raises(MissingPrerequisiteError, match="other"):
        find_etcd()
