"""The programs of a Kubernetes node: its own, built once from its Go module into the project's cache, and Debian's.

Kubernetes' module replaces its staging modules by directories that its archive lacks, and publishes them with each
release: a module that requires those builds all programs of one version, in about six minutes on two processors.
"""

import json
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from pulsar_sidecar.local_cluster.processes import exclusive
from pulsar_sidecar.local_cluster.spec import cache_directory

from tests.cluster.go_tools import COREDNS, HELM, ToolMissingError, path_of

VERSION = "1.34.4"
_STAGING_VERSION = "0" + VERSION[1:]
_OWN = ("kubectl", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy")
_PACKAGED = {
    "etcd": "etcd-server", "containerd": "containerd", "ctr": "containerd", "runc": "runc", "nft": "nftables",
    "conntrack": "conntrack", "ip": "iproute2", "unshare": "util-linux", "mount": "mount",
}  # fmt: skip
PLUGINS = Path("/usr/lib/cni")
_BUILD_SECONDS = 1_800
_PAUSE = """package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGTERM, syscall.SIGINT)
	<-ended
}
"""


@dataclass(frozen=True, slots=True)
class Programs:
    """Directories for PATH, and the program that keeps a pod's namespaces."""

    directories: tuple[Path, ...]
    pause: Path


def node_programs() -> Programs:
    """Return the node's programs, built first where the cache has none.

    Raises:
        ToolMissingError: something has to be installed; the text names it.
    """
    missing = sorted({package for program, package in _PACKAGED.items() if shutil.which(program) is None})
    if not (PLUGINS / "bridge").exists():
        missing.append("containernetworking-plugins")
    if missing:
        raise ToolMissingError(f"a node needs more of this machine: apt-get install {' '.join(missing)}")
    others = (path_of(COREDNS), path_of(HELM))
    own = _kubernetes()
    return Programs((own, *(_under_its_name(own, each) for each in others)), own / "pause")


def _under_its_name(own: Path, tool: Path) -> Path:
    """Return a directory in which a tool of the cache has its plain name."""
    directory = own / "links"
    directory.mkdir(exist_ok=True)
    link = directory / tool.name.partition("-")[0]
    if not link.is_symlink():
        link.symlink_to(tool)
    return directory


def _kubernetes() -> Path:
    """Kubernetes' own programs and ``pause``; the directory appears when all of them are built."""
    built = cache_directory() / "tools" / f"kubernetes-{VERSION}"
    if built.exists():
        return built
    go = shutil.which("go")
    if go is None:
        raise ToolMissingError("no Kubernetes: choose one by KUBECONFIG, or install Go, with which one is built once")
    work = built.with_name(f".{built.name}.build")
    work.mkdir(parents=True, exist_ok=True)
    with exclusive(work):
        if not built.exists():
            _build(go, work)
            (work / "bin").rename(built)
    shutil.rmtree(work, ignore_errors=True)
    return built


def _build(go: str, work: Path) -> None:
    (work / "go.mod").write_text("module tools\n\ngo 1.24.0\n")
    downloaded = _run(work, go, "mod", "download", "-json", f"k8s.io/kubernetes@v{VERSION}")
    source = Path(json.loads(downloaded)["Dir"])
    (work / "go.mod").write_text(_module(source.joinpath("go.mod").read_text()))
    major, minor, _ = VERSION.split(".")
    named = {"gitVersion": f"v{VERSION}", "gitMajor": major, "gitMinor": minor}
    flags = "-s -w " + " ".join(f"-X k8s.io/component-base/version.{name}={value}" for name, value in named.items())
    for program in _OWN:
        built = work / "bin" / program
        options = ("-mod=mod", "-buildvcs=false", "-trimpath", "-ldflags", flags, "-o", str(built))
        _run(work, go, "build", *options, f"k8s.io/kubernetes/cmd/{program}")
    (work / "pause.go").write_text(_PAUSE)
    _run(work, go, "build", "-ldflags", "-s -w", "-o", str(work / "bin" / "pause"), "pause.go")


def _module(kubernetes: str) -> str:
    """Return a module that requires what Kubernetes requires, and its staging modules as they were published."""
    staging = re.findall(r"^\s*(\S+) => \./staging", kubernetes, re.MULTILINE)
    required = re.findall(r"^\t(\S+) (v\S+)(?: // indirect)?$", kubernetes, re.MULTILINE)
    published = f"v{_STAGING_VERSION}"
    lines = [f"\t{name} {published if name in staging else version}" for name, version in required]
    replaced = [f"\t{name} => {name} {published}" for name in staging]
    head = ("module tools", "", "go 1.24.0", "", "require (", f"\tk8s.io/kubernetes v{VERSION}")
    return "\n".join([*head, *lines, ")", "", "replace (", *replaced, ")", ""])


def _run(work: Path, *command: str) -> str:
    environment = os.environ | {"CGO_ENABLED": "0", "GOWORK": "off"}
    ran = subprocess.run(
        command, cwd=work, env=environment, capture_output=True, text=True, check=False, timeout=_BUILD_SECONDS
    )
    if ran.returncode:
        raise ToolMissingError(f"{' '.join(command[:3])} failed in {work}: {ran.stderr[-1_000:]}")
    return ran.stdout
