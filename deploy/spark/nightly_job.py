"""The driver's program where a schedule can pass no new directory each night: audits the newest inputs.

``nightly_job.py DIRECTORY [options of the job]``: in DIRECTORY are ``dumps/``, ``listings/`` and ``audits/`` as
nightly.sh makes them, each with one directory a night, named by its time. The newest dump is audited with the listing
of the same name against the newest audit; a dump that was audited already is left alone. With ``PUSHGATEWAY_URL`` in
the environment the newest audit's metrics are pushed there, as nightly.sh does it.
"""

import os
import subprocess
import sys
from pathlib import Path

DONE, ERROR, FINDINGS = 0, 1, 2


def arguments(directory: Path) -> list[str] | None:
    """The job's arguments; None if the newest dump was audited already.

    Raises:
        FileNotFoundError: there is no dump with a listing.
    """
    complete = [path.parent.name for path in directory.glob("dumps/*/manifest.json")]
    names = sorted(name for name in complete if (directory / "listings" / name / "manifest.json").is_file())
    if not names:
        raise FileNotFoundError(f"there is no dump with a listing of the same name below {directory}")
    name = names[-1]
    audits = sorted(path.parent.name for path in directory.glob("audits/*/summary.json"))
    if name in audits:
        return None
    inputs = ["--dump", str(directory / "dumps" / name), "--listing", str(directory / "listings" / name)]
    previous = ["--previous", str(directory / "audits" / audits[-1])] if audits else []
    return [*inputs, "--output", str(directory / "audits" / name), *previous]


def published(directory: Path) -> int:
    """Push the newest audit's metrics; a run that finds nothing new makes up for a push that failed."""
    files = sorted(directory.glob("audits/*/metrics.prom"))
    url = os.environ.get("PUSHGATEWAY_URL")
    if not files or not url:
        return DONE
    command = ["pulsar-sidecar", "audit", "push", str(files[-1].parent), "--group-url", url]
    return subprocess.run(command, check=False).returncode  # noqa: S603 - the URL is the operator's own


def main(words: list[str]) -> int:
    """Audit; 0 with findings too, since Spark reports everything else as a failed run; the metrics show findings."""
    try:
        directory = Path(words[0])
        chosen = arguments(directory)
    except (IndexError, FileNotFoundError) as error:
        sys.stderr.write(f"{error}\nusage: nightly_job.py DIRECTORY [options of the job]\n")
        return ERROR
    if chosen is None:
        sys.stderr.write("the newest dump was audited already\n")
        return published(directory)
    from pyspark_jobs.orphan_ledgers.job import main as audit

    # Options that the job does not know leave by SystemExit(2), past this: a 2 that is returned is findings.
    code = int(audit([*chosen, *words[1:]]))
    return published(directory) or (DONE if code == FINDINGS else code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
