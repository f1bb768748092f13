"""How this project reaches executors that have only its Python packages."""

import shutil
from pathlib import Path

import pulsar_sidecar
from pyspark import SparkContext

_WHEEL = ".whl"


def ship_wheel(context: SparkContext, directory: Path) -> None:
    """If this project runs from a wheel (``--py-files``), let executors import it from there too.

    Spark sends each of them the wheel, but lets them import from ``.zip``, ``.egg`` and ``.jar`` alone
    (``SparkContext.PACKAGE_EXTENSIONS`` of 4.1), so the same archive goes to them under another name.

    Args:
        context: of a driver that has imported this project from where it will be shipped from.
        directory: the archive stays there while the context lives.
    """
    archive = Path(pulsar_sidecar.__file__).parents[1]
    if archive.suffix == _WHEEL and archive.is_file():
        context.addPyFile(str(shutil.copy(archive, directory / f"{archive.stem}.zip")))
