#!/usr/bin/env python
"""Starts what Spark requests of a pod on Kubernetes, "driver ..." or "executor", or any other command unchanged.

The words and variables are those that Spark's own features of pods write (DriverCommandFeatureStep,
BasicExecutorFeatureStep).
"""

import os
import re
import sys
from collections.abc import Mapping, Sequence

BACKEND = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
EXECUTOR_OPTIONS = {
    "--driver-url": "SPARK_DRIVER_URL",
    "--executor-id": "SPARK_EXECUTOR_ID",
    "--cores": "SPARK_EXECUTOR_CORES",
    "--app-id": "SPARK_APPLICATION_ID",
    "--hostname": "SPARK_EXECUTOR_POD_IP",
    "--resourceProfileId": "SPARK_RESOURCE_PROFILE_ID",
    "--podName": "SPARK_EXECUTOR_POD_NAME",
}


def command(words: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """Return the command to execute; raise `KeyError` if a variable that Spark sets is missing."""
    if words[:1] == ["driver"]:
        bound = f"spark.driver.bindAddress={environment['SPARK_DRIVER_BIND_ADDRESS']}"
        submit = f"{environment['SPARK_HOME']}/bin/spark-submit"
        return [submit, "--conf", bound, "--deploy-mode", "client", *words[1:]]
    if words[:1] == ["executor"]:
        return [
            f"{environment['JAVA_HOME']}/bin/java",
            *java_options(environment),
            "-cp",
            class_path(environment),
            BACKEND,
            *(word for name, variable in EXECUTOR_OPTIONS.items() for word in (name, environment[variable])),
        ]
    return list(words)


def java_options(environment: Mapping[str, str]) -> list[str]:
    """Return the environment's numbered options in order, and the memory."""
    numbered = {
        int(found[1]): option
        for name, option in environment.items()
        if (found := re.fullmatch(r"SPARK_JAVA_OPT_(\d+)", name))
    }
    memory = environment["SPARK_EXECUTOR_MEMORY"]
    return [*(numbered[number] for number in sorted(numbered)), f"-Xms{memory}", f"-Xmx{memory}"]


def class_path(environment: Mapping[str, str]) -> str:
    given = (environment.get("SPARK_CONF_DIR"), environment.get("SPARK_CLASSPATH"))
    return ":".join([*filter(None, given), f"{environment['SPARK_HOME']}/jars/*"])


if __name__ == "__main__":
    found = command(sys.argv[1:], os.environ)
    os.execvp(found[0], found)  # noqa: S606 - the pod's own words
