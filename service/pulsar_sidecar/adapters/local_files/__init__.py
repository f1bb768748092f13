"""Files of this machine that a command reads or keeps for its next run."""

import os
from pathlib import Path


def sync_directory(directory: Path) -> None:
    """Have the names in it on the disk, as they are now."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
