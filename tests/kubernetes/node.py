"""A Kubernetes node on this machine: API server, controllers, scheduler, kubelet, kube-proxy, DNS and containerd.

Invariant: the node lives in namespaces of processes, network and mounts of its own. When the command for which it was
started ends, however it ends, the kernel ends every process in them, and nothing of this machine was changed, but for
empty control groups below ``k8s.io``. The command runs in the same namespaces, so it reaches pods and services by
address and by name. Pods reach nothing else.
"""

import hashlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from tests.cluster.choosing import PROJECT
from tests.cluster.patience import until
from tests.kubernetes.authority import Authority
from tests.kubernetes.programs import PLUGINS, Programs, node_programs

ADDRESS = "10.99.0.1"
_PODS = "10.98.0.0/24"
_GATEWAY = "10.98.0.1"
_SERVICES = "10.96.0.0/16"
_API_SERVICE = "10.96.0.1"
_NAME = "node"
_PAUSE_IMAGE = "localhost/pause:tests"
_INSIDE = "_PULSAR_SIDECAR_NODE"
_DOCKER = Path("/var/run/docker.sock")
_VOLUMES = 4
_START_SECONDS = 120


def run_on_a_node(command: Sequence[str]) -> int:
    """Run a command beside a node of its own; the command's exit code.

    Raises:
        ToolMissingError: this machine lacks something that a node needs.
    """
    node_programs()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with tempfile.TemporaryDirectory(prefix="pulsar-sidecar-node-", ignore_cleanup_errors=True) as directory:
        namespaces = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        # A shell is the first process: it collects the processes that their parents left, which Python does not.
        begin = ["sh", "-c", '"$@"; exit $?', "sh", sys.executable, "-m", "tests.kubernetes", *command]
        environment = os.environ | {_INSIDE: directory}
        return subprocess.run([*namespaces, *begin], cwd=PROJECT, env=environment, check=False).returncode


def is_inside() -> bool:
    """Return True in a process started by `run_on_a_node`."""
    return _INSIDE in os.environ


def run_inside(command: Sequence[str]) -> int:
    """Start the node in these namespaces, and run the command; its exit code."""
    directory = Path(os.environ.pop(_INSIDE))
    node = _Node(directory, node_programs())
    node.start()
    return subprocess.run(command, env=os.environ | node.environment, check=False).returncode


def load_images(names: Sequence[str]) -> None:
    """Copy images of the container engine into the node that this process runs beside."""
    with subprocess.Popen(["docker", "save", *names], stdout=subprocess.PIPE) as saved:
        _import(os.environ["CONTAINERD_ADDRESS"], os.environ["CONTAINERD_SNAPSHOTTER"], "-", stdin=saved.stdout)
    if saved.returncode:
        raise RuntimeError(f"docker save failed for {' '.join(names)}")


class _Node:
    def __init__(self, directory: Path, programs: Programs) -> None:
        self._directory = directory
        self._programs = programs
        self._log = directory / "log"
        self._socket = directory / "containerd" / "socket"
        self._engine = directory / "docker.sock"
        self._authority = Authority(directory / "pki")
        self._server = f"https://{ADDRESS}:6443"
        self._admin = self._authority.kubeconfig(self._server, "admin", "system:masters")
        self._path = ":".join([*map(str, programs.directories), os.environ["PATH"]])

    @property
    def environment(self) -> dict[str, str]:
        """Environment for the node's users: kubectl and helm with the administrator's rights, and the image store."""
        return {
            "PATH": self._path,
            "KUBECONFIG": str(self._admin),
            "CONTAINERD_ADDRESS": str(self._socket),
            "CONTAINERD_SNAPSHOTTER": _snapshotter(),
            **({"DOCKER_HOST": f"unix://{self._engine}"} if self._engine.exists() else {}),
        }

    def start(self) -> None:
        """Start the node, and wait until it is ready for pods."""
        self._log.mkdir()
        self._separate()
        self._connect()
        self._start_control()
        self._start_containerd()
        self._start_kubelet()
        self._start_network()
        self._make_volumes()
        until(lambda: "True" in self._kubectl("get", "node", _NAME, "-o", _READY), "the node is ready", _START_SECONDS)

    # --- namespaces ------------------------------------------------------------------------------------------------

    def _separate(self) -> None:
        """Members write below /run and /var by fixed names: those writes go into the directory."""
        _run("mount", "--make-rshared", "/")
        if "DOCKER_HOST" not in os.environ and _DOCKER.exists():  # nobody listens at its copy in an overlay
            self._engine.touch()
            _run("mount", "--bind", str(_DOCKER.resolve()), str(self._engine))
        for name in ("run", "var"):
            upper, work = self._directory / name, self._directory / f"{name}.work"
            upper.mkdir()
            work.mkdir()
            options = f"lowerdir=/{name},upperdir={upper},workdir={work}"
            _run("mount", "-t", "overlay", "overlay", "-o", options, f"/{name}")
        resolver = self._write("resolv.conf", f"nameserver {ADDRESS}\n")
        _run("mount", "--bind", str(resolver), os.path.realpath("/etc/resolv.conf"))

    def _connect(self) -> None:
        for words in (
            "link set lo up",
            f"address add {ADDRESS}/24 dev lo",
            "link add cni0 type bridge",
            f"address add {_GATEWAY}/24 dev cni0",
            "link set cni0 up",
            "route add default dev cni0",
        ):
            _run("ip", *words.split())
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1")

    # --- members ---------------------------------------------------------------------------------------------------

    def _start_control(self) -> None:
        names = (ADDRESS, "127.0.0.1", _API_SERVICE, "localhost", "kubernetes.default.svc", _NAME)
        certificate, key = self._authority.issue("kube-apiserver", None, names)
        public, private = self._authority.key_pair("service-accounts")
        admin_key = self._admin.with_suffix(".key")
        etcd = "http://127.0.0.1:2379"
        self._start(
            "etcd", "--unsafe-no-fsync", f"--data-dir={self._directory / 'etcd'}", f"--listen-client-urls={etcd}",
            f"--advertise-client-urls={etcd}", "--listen-peer-urls=http://127.0.0.1:2380",
        )  # fmt: skip
        self._start(
            "kube-apiserver", f"--etcd-servers={etcd}", f"--bind-address={ADDRESS}", f"--advertise-address={ADDRESS}",
            f"--tls-cert-file={certificate}", f"--tls-private-key-file={key}", "--authorization-mode=Node,RBAC",
            f"--client-ca-file={self._authority.file}", f"--service-cluster-ip-range={_SERVICES}",
            "--service-account-issuer=https://kubernetes.default.svc", f"--service-account-key-file={public}",
            f"--service-account-signing-key-file={private}", "--allow-privileged=true",
            f"--kubelet-client-certificate={self._admin.with_suffix('.crt')}", f"--kubelet-client-key={admin_key}",
            "--kubelet-preferred-address-types=InternalIP",
        )  # fmt: skip
        until(lambda: self._kubectl("get", "--raw", "/readyz") == "ok", "the API server is ready", _START_SECONDS)
        local = ("--bind-address=127.0.0.1", "--leader-elect=false")
        self._start(
            "kube-controller-manager", f"--kubeconfig={self._config('kube-controller-manager')}", *local,
            f"--service-account-private-key-file={private}", f"--root-ca-file={self._authority.file}",
            "--use-service-account-credentials",
        )  # fmt: skip
        self._start("kube-scheduler", f"--kubeconfig={self._config('kube-scheduler')}", *local)

    def _start_containerd(self) -> None:
        home = self._socket.parent
        home.mkdir()
        network = {
            "cniVersion": "0.4.0",
            "name": "pods",
            "plugins": [
                {
                    "type": "bridge",
                    "bridge": "cni0",
                    "isGateway": True,
                    "ipam": {
                        "type": "host-local",
                        "ranges": [[{"subnet": _PODS, "gateway": _GATEWAY}]],
                        "routes": [{"dst": "0.0.0.0/0"}],
                    },
                }
            ],
        }
        self._write("cni/pods.conflist", json.dumps(network))
        config = self._write("containerd/config.toml", self._containerd())
        self._start("containerd", "--config", str(config))
        until(self._socket.exists, "containerd is ready", _START_SECONDS)
        pause = self._directory / "pause.tar"
        _write_image(pause, self._programs.pause)
        until(lambda: _imports(self._socket, pause), "containerd takes images", _START_SECONDS)

    def _containerd(self) -> str:
        home = self._socket.parent
        cri = '[plugins."io.containerd.grpc.v1.cri"'
        return f"""version = 2
root = "{home / "root"}"
state = "{home / "state"}"
[grpc]
address = "{self._socket}"
{cri}]
sandbox_image = "{_PAUSE_IMAGE}"
restrict_oom_score_adj = true
{cri}.cni]
bin_dir = "{PLUGINS}"
conf_dir = "{self._directory / "cni"}"
{cri}.containerd]
snapshotter = "{_snapshotter()}"
{cri}.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
"""

    def _start_kubelet(self) -> None:
        config = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": ADDRESS,
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(self._authority.file)},
            },
            "authorization": {"mode": "Webhook"},
            "cgroupDriver": "cgroupfs",
            "cgroupsPerQOS": False,
            "enforceNodeAllocatable": [],
            "failCgroupV1": False,
            "failSwapOn": False,
            "containerRuntimeEndpoint": f"unix://{self._socket}",
            "clusterDNS": [ADDRESS],
            "clusterDomain": "cluster.local",
            "makeIPTablesUtilChains": False,
            "localStorageCapacityIsolation": False,
            "imageGCHighThresholdPercent": 100,
            "imageGCLowThresholdPercent": 99,
            # A disk that is nearly full, as developers' are, must not evict the pods.
            "evictionHard": {"memory.available": "1Mi"},
        }
        self._start(
            "kubelet", f"--config={self._write('kubelet.json', json.dumps(config))}", f"--node-ip={ADDRESS}",
            f"--kubeconfig={self._authority.kubeconfig(self._server, f'system:node:{_NAME}', 'system:nodes')}",
            f"--hostname-override={_NAME}", f"--root-dir={self._directory / 'kubelet'}",
            f"--cert-dir={self._directory / 'kubelet-pki'}",
        )  # fmt: skip

    def _start_network(self) -> None:
        proxy = {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "nftables",
            "clientConnection": {"kubeconfig": str(self._admin)},
            "clusterCIDR": _PODS,
            "hostnameOverride": _NAME,
            "conntrack": {"maxPerCore": 0, "min": 0},
        }
        self._start("kube-proxy", f"--config={self._write('proxy.json', json.dumps(proxy))}")
        zone = f"  bind {ADDRESS}\n  kubernetes cluster.local {{\n    kubeconfig {self._admin} node\n  }}\n  errors\n"
        self._start("coredns", "-conf", str(self._write("Corefile", f"cluster.local:53 {{\n{zone}}}\n")))

    def _make_volumes(self) -> None:
        """Directories for claims; Kubernetes gives a plain directory to no group, so anyone may write there."""
        made: list[dict[str, object]] = [
            {
                "apiVersion": "storage.k8s.io/v1",
                "kind": "StorageClass",
                "metadata": {"name": "node", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
                "provisioner": "kubernetes.io/no-provisioner",
            }
        ]
        for number in range(_VOLUMES):
            place = self._directory / "volumes" / str(number)
            place.mkdir(parents=True)
            place.chmod(0o777)
            spec = {
                "storageClassName": "node",
                "accessModes": ["ReadWriteOnce", "ReadWriteMany"],
                "capacity": {"storage": "100Gi"},
                "hostPath": {"path": str(place)},
            }
            name = {"name": f"volume-{number}"}
            made.append({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": name, "spec": spec})
        volumes = self._write("volumes.json", json.dumps({"apiVersion": "v1", "kind": "List", "items": made}))
        self._kubectl("apply", "-f", str(volumes))

    # --- small things ----------------------------------------------------------------------------------------------

    def _config(self, member: str) -> Path:
        return self._authority.kubeconfig(self._server, f"system:{member}")

    def _write(self, name: str, text: str) -> Path:
        path = self._directory / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return path

    def _start(self, program: str, *arguments: str) -> None:
        found = shutil.which(program, path=self._path) or program
        with (self._log / program).open("ab") as log:
            environment = os.environ | {"PATH": self._path}
            subprocess.Popen([found, *arguments], env=environment, stdout=log, stderr=log, start_new_session=True)

    def _kubectl(self, *arguments: str) -> str:
        kubectl = shutil.which("kubectl", path=self._path) or "kubectl"
        asked = [kubectl, f"--kubeconfig={self._admin}", *arguments]
        return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()


_READY = 'jsonpath={.status.conditions[?(@.type=="Ready")].status}'


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


def _snapshotter() -> str:
    """Layers of images are mounted over each other where the kernel can, else copied."""
    return "overlayfs" if "overlay" in Path("/proc/filesystems").read_text() else "native"


def _imports(socket: Path, image: Path) -> bool:
    try:
        _import(str(socket), _snapshotter(), str(image))
    except subprocess.CalledProcessError:
        return False
    return True


def _import(socket: str, snapshotter: str, image: str, stdin: IO[bytes] | None = None) -> None:
    images = ["ctr", "--address", socket, "--namespace", "k8s.io", "images"]
    subprocess.run(
        [*images, "import", "--snapshotter", snapshotter, image], check=True, stdin=stdin, capture_output=True
    )


def _write_image(path: Path, program: Path) -> None:
    """Write an image of one program, as ``docker save`` does."""
    layer = path.with_suffix(".layer")
    with tarfile.open(layer, "w") as archive:
        archive.add(program, program.name)
    digest = hashlib.sha256(layer.read_bytes()).hexdigest()
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Entrypoint": [f"/{program.name}"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [_PAUSE_IMAGE], "Layers": ["layer.tar"]}]
    with tarfile.open(path, "w") as archive:
        for name, document in (("config.json", config), ("manifest.json", manifest)):
            data = json.dumps(document).encode()
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
        archive.add(layer, "layer.tar")
