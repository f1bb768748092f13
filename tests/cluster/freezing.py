"""Frozen processes, as after swapping or the migration of a virtual machine."""

from pathlib import Path

from tests.cluster.patience import until


def wait_until_frozen(pid: int) -> None:
    """Wait after SIGSTOP until all threads have stopped, since some continue for a while on a busy machine."""
    tasks = Path(f"/proc/{pid}/task")
    if tasks.exists():
        until(lambda: all(_state(task) in "TX" for task in tasks.iterdir()), f"process {pid} stands still")


def _state(task: Path) -> str:
    try:
        return (task / "stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"
