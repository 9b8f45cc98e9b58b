"""Containers that do not start: Docker, containerd, NVIDIA's hook, Apptainer and Singularity, Slurm's pyxis; pods that wait or start again and again.

docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]].
nvidia-container-cli: initialization error: driver error: failed to process request
slurmstepd: error: pyxis: container start failed with error code: 1
trainer-0   0/1     CrashLoopBackOff   5 (2m10s ago)   12m
"""

from __future__ import annotations

from collections.abc import Iterator

from pipelog.parsing import Records, Rows, lines


# FATAL:   could not open image /images/train.sif: failed to retrieve path for /images/train.sif: lstat /images/train.sif: no such file or directory
# FATAL:   While making image from oci registry: error fetching image to cache: while building SIF from layers: conveyor failed to get: no descriptor found
@lines(
    "container",
    mark=(
        "Error response from daemon: ",
        "OCI runtime ",
        "nvidia-container-cli",
        "error: pyxis: ",
        "container creation failed",
        "could not open image",
        "FATAL:   While ",
        "FATAL:   Unable to ",
        "failed to create shim task",
        "standard_init_linux.go:",
        "enroot-",
        "exec format error",
    ),
    pattern=(
        r"^(?:(?:\S*/)?(?:docker|podman|nerdctl|ctr|optirun|crictl)?(?:: )?(?:Error: )?Error response from daemon: |(?:\S[^'\"]*: )?OCI runtime (?:create|exec|start|attempted)|(?:\S[^'\"]*[: ])?nvidia-container-cli(?:\.real)?: "
        r"|(?:slurmstepd\S*|srun): error: pyxis: |FATAL: +(?:container creation failed|could not open image|While |Unable to )|(?:\S[^'\"]*: )?failed to create shim task|(?:\S+ )?standard_init_linux\.go:\d+: |\[(?:ERROR|FATAL)\] .*enroot-"
        r"|exec /\S+: exec format error)"
    ),
)
def container(found: Records) -> Iterator[Rows]:
    """Give a line of a container runtime that could not start or enter a container."""
    yield found.rows("error", "container", text=found["line"])


# Warning  BackOff    2m (x5 over 12m)  kubelet  Back-off restarting failed container trainer in pod trainer-0_default(7f8061d3)
#     Reason:       ImagePullBackOff
# Warning  FailedScheduling  3m  default-scheduler  0/12 nodes are available: 12 Insufficient nvidia.com/gpu.
@lines(
    "kubernetes-waiting",
    mark=(
        "CrashLoopBackOff",
        "ImagePullBackOff",
        "ErrImagePull",
        "CreateContainerConfigError",
        "CreateContainerError",
        "RunContainerError",
        "Back-off restarting failed container",
        "Back-off pulling image",
        "Failed to pull image",
        "FailedScheduling",
        "FailedMount",
        "FailedCreatePodSandBox",
        "nodes are available: ",
    ),
    pattern=(
        r"^(?: *Reason: +|\s*reason: +|\S+ +\d+/\d+ +|(?:\S+ +)? *Warning +(?:[^'\"]*? )?|\S*[ \t]+pod/\S+ +|0/\d+ )"
        r"(?:CrashLoopBackOff|ImagePullBackOff|ErrImagePull|CreateContainer(?:Config)?Error|RunContainerError|Back-off (?:restarting|pulling)|Failed to pull image|Failed(?:Scheduling|Mount|CreatePodSandBox)|nodes are available: )"
    ),
)
def waiting(found: Records) -> Iterator[Rows]:
    """Give a pod that cannot be placed or started, as `kubectl get`, `describe` and events word it."""
    yield found.rows("error", "container", text=found["line"])
