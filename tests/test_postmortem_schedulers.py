"""What one asks the batch system: the commands of the system whose word it is, with the number of the job where it is there."""

from __future__ import annotations

import pandas as pd
import pytest

from pipelog.postmortem.schedulers import of_a_node, system, warning, what_was_taken, who

SLURM = "slurmstepd: error: *** STEP 88120.0 ON hn-3 CANCELLED AT 2025-07-01T21:18:20 ***"
ARRAY = "slurmstepd: error: *** JOB 771_4 ON hn-3 CANCELLED AT 2025-07-01T21:18:20 DUE TO TIME LIMIT ***"
FLUX = "job.exception type=cancel severity=0 wrong lr, restarting with warmup"
LSF = "TERM_RUNLIMIT: job killed after reaching LSF run time limit."
PBS = "PBS: job killed: walltime 43252 exceeded limit 43200"
QDEL = "Job to be deleted at request of kim@login2"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (SLURM, "slurm"),
        (ARRAY, "slurm"),
        (FLUX, "flux"),
        (LSF, "lsf"),
        (PBS, "pbs"),
        (QDEL, "pbs"),
        ("KeyboardInterrupt", None),
        ("got signal: 15", None),
    ],
)
def test_the_system_is_known_by_its_own_words(text: str, name: str | None) -> None:
    assert system(text) == name


def test_who_ended_it() -> None:
    assert "sacct -j 88120 --format=JobID,State%40,End" in who(SLURM)
    assert "sacct -j 771_4 " in who(ARRAY)
    assert "flux job eventlog" in who(FLUX)
    assert "sacct" not in who(FLUX)
    assert "tracejob" in who(QDEL)
    assert who("KeyboardInterrupt").startswith("whoever started it")


@pytest.mark.parametrize(
    ("text", "files", "stated", "command"),
    [
        (FLUX, ("flux-fdFmCpYwQZ5.out",), (), "`flux job eventlog fdFmCpYwQZ5`"),
        (FLUX, ("flux.out",), (), "`flux job eventlog JOBID`"),
        ("TERM_OWNER: job killed by owner.", ("out/lsf.4471.out",), (), "`bhist -l 4471`"),
        ("TERM_OWNER: job killed by owner.", ("rank_3.out",), (), "`bhist -l JOBID`"),
        ("TERM_OWNER: job killed by owner.", ("rank_3.out",), ("812",), "`bhist -l 812`"),
        (QDEL, ("tracejob.txt", "pp.o8121"), (), "`qstat -xf 8121`"),
        (QDEL, ("tracejob.txt", "pp.o8121", "pp.o8122"), (), "`qstat -xf JOBID`"),
        ("Job was aborted. via condor_rm (by user kim)", ("job.4711.log",), (), "`condor_history -l 4711`"),
        (SLURM, ("slurm-99.out",), ("98",), "`sacct -j 88120 "),
    ],
)
def test_the_number_of_the_job_where_the_files_name_it(text: str, files: tuple[str, ...], stated: tuple[str, ...], command: str) -> None:
    assert command in who(text, files, stated)


def test_the_warning_before_the_limit() -> None:
    assert "--signal=B:USR1@300" in warning(ARRAY)
    assert "bsub -wa" in warning(LSF)
    assert "--signal=B" not in warning(LSF) + warning(PBS)
    assert warning("reached the time limit of the service") == ""


def test_where_the_system_tells_of_a_node() -> None:
    assert "slurmctld" in of_a_node("*** STEP 1.0 ON n1 CANCELLED AT 2025-07-01T21:18:20 DUE TO NODE FAILURE ***")
    assert "slurmctld" not in of_a_node("job.exception type=node-failure severity=0 node failure on node7 (shell rank 5)")
    assert of_a_node("Kernel panic - not syncing") == ""


POD = "Normal  Preempted  pod/train-2  Preempted by pod 7b0a-55 on node gke-k2xd"


@pytest.mark.parametrize(
    ("hosts", "texts", "said"),
    [
        (("gke-k2xd",), [POD, POD], " (pod train-2 was taken from it, on gke-k2xd)"),
        (("spot-7",), ["Spot interruption notice for spot-7"], " (spot-7 was taken from it)"),
        (("gke-k2xd",), [POD, POD.replace("train-2", "train-3")], ""),
        (("a", "b"), [POD], ""),
        ((), [POD], ""),
    ],
)
def test_a_pod_is_taken_and_not_its_node(hosts: tuple[str, ...], texts: list[str], said: str) -> None:
    assert what_was_taken(hosts, pd.Series([*texts, None])) == said
