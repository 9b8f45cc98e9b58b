"""Variables that tell a process which rank it is, where an environment is shown: `env`, `export -p`, `set -x`, `kubectl describe pod`, a pod's YAML.

    RANK=5                                  declare -x WORLD_SIZE="8"            + export SLURM_PROCID=5
          RANK:              5              (kubectl describe pod)
        - name: RANK                        (kubectl get pod -o yaml)
          value: "5"
    node-3: task 12 of 16, SLURM_LOCALID=0

One fact a variable, `env.<name>`. Whether it is the rank of a process of the job is told later: operators give a pod that starts several processes its own
number under the same name, and then the size beside it is the number of pods.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from pipelog.parsers._facts import joined
from pipelog.parsing import Block, Records, Row, Rows, block, lines

_NAMES = "RANK|WORLD_SIZE|SLURM_PROCID|SLURM_NTASKS|SLURM_NPROCS|OMPI_COMM_WORLD_RANK|OMPI_COMM_WORLD_SIZE|PMI_RANK|PMI_SIZE|MV2_COMM_WORLD_RANK|MV2_COMM_WORLD_SIZE"

_HOSTS = "HOSTNAME|SLURMD_NODENAME"
_HOST = r"[A-Za-z0-9][A-Za-z0-9_.-]*"


@lines(
    "environment",
    mark=("RANK=", "RANK: ", "_SIZE=", "_SIZE: ", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_NPROCS", "HOSTNAME=", "SLURMD_NODENAME"),
    pattern=(
        r"^(?:(?:declare -x |export |\++ (?:export )?)?(?:(?P<name>"
        + _NAMES
        + r")=['\"]?(?P<value>\d{1,7})|(?P<where>"
        + _HOSTS
        + r")=['\"]?(?P<host>"
        + _HOST
        + r"))['\"]?;?"
        r"| {4,}(?P<key>" + _NAMES + r"): +(?P<given>\d{1,7}))\s*$"
    ),
)
def variable(found: Records) -> Iterator[Rows]:
    """Give a variable that says a rank, how many there are, or the host, on a line of its own."""
    name = pc.coalesce(found["name"], found["key"], found["where"])
    value = pc.coalesce(found["value"], found["given"])
    yield found.rows("fact", joined("env.", name), value=pc.cast(value, pa.float64()), text=pc.coalesce(value, found["host"]))


# node-3: task 12 of 16, SLURM_LOCALID=0, CUDA devices: 4
# srun task 12/16 on node-3
@lines(
    "environment-task",
    mark=(": task ", "srun task ", "SLURM task "),
    pattern=(
        r"^(?:(?P<host>" + _HOST + r"): task (?P<task>\d{1,7})(?: of |/)(?P<size>\d{1,7})"
        r"|(?:srun|SLURM) task (?P<number>\d{1,7})(?: of |/)(?P<many>\d{1,7}) on (?:host |node )?(?P<on>" + _HOST + r"))(?:[\s,;]|$)"
    ),
)
def task(found: Records) -> Iterator[Rows]:
    """Give the number of a task, how many there are, and the host, as a script prints them, for the variables that they come from."""
    host = pc.coalesce(found["host"], found["on"])
    for name, groups in (("env.SLURM_PROCID", ("task", "number")), ("env.SLURM_NTASKS", ("size", "many"))):
        value = pc.coalesce(*(found[group] for group in groups))
        yield found.rows("fact", name, host=host, value=pc.cast(value, pa.float64()), text=value)


_VALUE = re.compile(r"\s*value: ['\"]?(\d{1,7})['\"]?\s*$")


@block("environment-yaml", mark=("name: RANK", "name: WORLD_SIZE"), head=r"^\s*- $", most=2)
def listed(found: Block) -> Iterator[Row]:
    """Give a variable of a container in the YAML of its pod, at the line of its name."""
    name = re.fullmatch(r"name: (RANK|WORLD_SIZE)\s*", found.first)
    for _, text in found.lines():
        if name is not None and (value := _VALUE.match(text)):
            yield {"kind": "fact", "name": f"env.{name.group(1)}", "value": float(value.group(1)), "text": value.group(1)}


# Name:             trainer-worker-4
@lines("kubernetes-pod", mark="Name:  ", pattern=r"^Name: {2,}(?P<pod>[a-z0-9][a-z0-9.-]*)\s*$")
def pod(found: Records) -> Iterator[Rows]:
    """Give the pod that `kubectl describe` tells of from here on."""
    yield found.rows("fact", "pod.name", text=found["pod"])
