"""Processes that stand still, as a machine that swaps or a virtual machine that is moved makes them do."""

from pathlib import Path

from tests.cluster.patience import until


def wait_until_frozen(pid: int) -> None:
    """After SIGSTOP: on a busy machine some threads of a process go on for a while until they notice it."""
    tasks = Path(f"/proc/{pid}/task")
    if tasks.exists():
        until(lambda: all(_state(task) in "TX" for task in tasks.iterdir()), f"process {pid} stands still")


def _state(task: Path) -> str:
    try:
        return (task / "stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"
