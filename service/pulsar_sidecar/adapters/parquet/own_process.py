"""What a process that is ours alone does before it touches Arrow."""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

_UNWANTED = "pandas"


def without_pandas() -> None:
    """Keep Arrow from importing pandas, where it is installed (for Spark), just to see whether it was handed some.

    It does so at the first array, which takes half a second in each process.
    """
    if _UNWANTED not in sys.modules:
        sys.meta_path.insert(0, _NoPandas())


class _NoPandas(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Say that there is none."""
        if fullname == _UNWANTED:
            raise ModuleNotFoundError(f"this process does without {_UNWANTED}", name=fullname)
        return None
