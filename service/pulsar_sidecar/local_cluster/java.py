"""Finding a Java runtime and writing the command lines that ``bin/pulsar`` would write, with small heaps.

The distribution's script is not used: it runs a shell and ``java -version`` per member and leaves its logs and its
unpacked native libraries in places that ``down`` would not know about. Invariant: whatever a member's JVM writes,
it writes below that member's own directory.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pulsar_sidecar.local_cluster.failures import MissingPrerequisiteError
from pulsar_sidecar.local_cluster.spec import Role

OLDEST_JAVA = 17
_FIRST_JAVA_THAT_WARNS_ABOUT_UNSAFE = 23
_PULSAR_METADATA = "org.apache.pulsar.metadata.bookkeeper"
_OPENED_PACKAGES = (
    "java.base/java.io",
    "java.base/java.util.zip",
    "java.management/sun.management",
    "jdk.management/com.sun.management.internal",
    "java.base/java.nio",
    "java.base/jdk.internal.misc",
    "java.base/jdk.internal.platform",
)
_MEMORY: Mapping[Role, tuple[str, ...]] = {
    Role.ZOOKEEPER: ("-Xms32m", "-Xmx128m", "-XX:MaxDirectMemorySize=32m"),
    Role.BOOKIE: ("-Xms48m", "-Xmx160m", "-XX:MaxDirectMemorySize=192m"),
    Role.BROKER: ("-Xms96m", "-Xmx320m", "-XX:MaxDirectMemorySize=256m"),
}


@dataclass(frozen=True, slots=True)
class JavaRuntime:
    """A Java runtime that is new enough for Pulsar.

    Attributes:
        executable: the ``java`` program.
        major_version: 17 for Java 17.
        build: everything it says about its version, which tells two builds apart.
    """

    executable: Path
    major_version: int
    build: str


def find_java() -> JavaRuntime:
    """The runtime of ``JAVA_HOME``, else the first ``java`` on the path.

    Raises:
        MissingPrerequisiteError: there is none, it does not run, or it is older than Java 17.
    """
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if found is None or not Path(found).exists():
        where = f"JAVA_HOME is {home}, which has no bin/java" if home else "no java on the path"
        raise MissingPrerequisiteError(f"Pulsar needs a JDK {OLDEST_JAVA} or later: {where}; install one")
    build = _version_text(found)
    major = _major_version(found, build)
    if major < OLDEST_JAVA:
        raise MissingPrerequisiteError(
            f"Pulsar needs a JDK {OLDEST_JAVA} or later and {found} is version {major}; "
            "install one, or point JAVA_HOME at it"
        )
    return JavaRuntime(Path(found), major, build)


def _version_text(java: str) -> str:
    try:
        answer = subprocess.run(  # noqa: S603 - the user's own java
            [java, "-version"], capture_output=True, text=True, check=False, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MissingPrerequisiteError(f"{java} does not run: {error}; install a JDK {OLDEST_JAVA}") from error
    return answer.stderr + answer.stdout


def _major_version(java: str, text: str) -> int:
    version = re.search(r'version "(?:1\.)?(\d+)', text)
    if version is None:
        raise MissingPrerequisiteError(f"{java} -version tells no version; install a JDK {OLDEST_JAVA}")
    return int(version.group(1))


def class_path(distribution: Path) -> str:
    """Every jar of the distribution, in an order that is the same on every machine."""
    return os.pathsep.join(str(jar) for jar in sorted((distribution / "lib").glob("*.jar")))


def jvm_argv(java: JavaRuntime, role: Role, distribution: Path, directory: Path) -> list[str]:
    """The command up to the main class: runtime, memory, the options of ``bin/pulsar``, class path.

    Args:
        java: the runtime.
        role: decides the memory.
        distribution: the unpacked distribution.
        directory: the member's own directory; its ``tmp`` must exist.
    """
    return [
        str(java.executable),
        *_MEMORY[role],
        *_quick_start_options(directory),
        *_options_of_bin_pulsar(java),
        "-cp",
        class_path(distribution),
    ]


def _quick_start_options(directory: Path) -> list[str]:
    """Start soon and stay small, which matters more here than speed after an hour."""
    return [
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        "-XX:-UsePerfData",
        "-XX:+ExitOnOutOfMemoryError",
        "-XX:-HeapDumpOnOutOfMemoryError",
        f"-XX:ErrorFile={directory}/hs_err.log",
        f"-Djava.io.tmpdir={directory / 'tmp'}",
        f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.xml').as_uri()}",
        "-Dlog4j.shutdownHookEnabled=false",
        "-Dlog4j2.is.webapp=false",
    ]


def _options_of_bin_pulsar(java: JavaRuntime) -> list[str]:
    """What ``bin/pulsar`` of 3.3.6 and 4.0.8 passes, without memory, logging and functions."""
    options = [f"--add-opens={package}=ALL-UNNAMED" for package in _OPENED_PACKAGES]
    if java.major_version >= _FIRST_JAVA_THAT_WARNS_ABOUT_UNSAFE:
        options.append("--sun-misc-unsafe-memory-access=allow")
    return [
        *options,
        "--enable-native-access=ALL-UNNAMED",
        "-Djava.net.preferIPv4Stack=true",
        "-Djute.maxbuffer=10485760",
        "-Dzookeeper.clientTcpKeepAlive=true",
        "-Dio.netty.tryReflectionSetAccessible=true",
        "-Dorg.apache.pulsar.shade.io.netty.tryReflectionSetAccessible=true",
        "-Dio.netty.leakDetection.level=disabled",
        "-Dio.netty.recycler.maxCapacityPerThread=4096",
        "-Dpulsar.allocator.exit_on_oom=true",
        "-Dzookeeper.4lw.commands.whitelist=*",
        "-Dzookeeper.snapshot.trust.empty=true",
        "-Dzookeeper.tcpKeepAlive=true",
        f"-Dbookkeeper.metadata.bookie.drivers={_PULSAR_METADATA}.PulsarMetadataBookieDriver",
        f"-Dbookkeeper.metadata.client.drivers={_PULSAR_METADATA}.PulsarMetadataClientDriver",
    ]
