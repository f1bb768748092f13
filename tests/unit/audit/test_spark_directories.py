"""Directories of the Spark job on a file system that Spark lacks or cannot reach, with Hadoop's classes replaced."""

from types import SimpleNamespace
from typing import Any

import pytest
from pulsar_sidecar.model.errors import InvalidInputError

from pyspark_jobs.running.directories import Directory


def spark_with(path: object) -> Any:
    jvm: object = SimpleNamespace(Path=lambda _: path)
    for package in ("fs", "hadoop", "apache", "org"):
        jvm = SimpleNamespace(**{package: jvm})
    return SimpleNamespace(_jvm=jvm, _jsc=SimpleNamespace(hadoopConfiguration=dict))


def test_an_address_without_a_connector_is_refused_with_the_next_step() -> None:
    def no_file_system(_: object) -> None:
        raise RuntimeError('No FileSystem for scheme "s3a"\n\tat org.apache.hadoop')

    spark = spark_with(SimpleNamespace(getFileSystem=no_file_system))
    with pytest.raises(InvalidInputError, match=r'\(No FileSystem for scheme "s3a"\).*hadoop-aws:VERSION'):
        Directory(spark, "s3a://bucket/dump")


def test_an_output_that_cannot_be_looked_for_is_not_taken_for_absent() -> None:
    def refuse(_: object) -> bool:
        raise PermissionError("403")

    system = SimpleNamespace(makeQualified=lambda path: path, exists=refuse)
    spark = spark_with(SimpleNamespace(getFileSystem=lambda _: system))
    with (
        pytest.raises(InvalidInputError, match=r"cannot be checked \(403\)"),
        Directory(spark, "s3a://b/a").making(),
    ):
        pass
