"""GPUs that answer no more, as nvidia-smi, NVML, DCGM and rocm-smi say it outside the kernel's log.

Failed to initialize NVML: Driver/library version mismatch
Unable to determine the device handle for GPU 0000:3B:00.0: GPU is lost.  Reboot the system to recover this GPU
NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA driver is installed and running.
"""

from __future__ import annotations

from collections.abc import Iterator

from pipelog.parsing import Records, Rows, lines


@lines(
    "gpu-driver",
    mark=(
        "Failed to initialize NVML: ",
        "Unable to determine the device handle for ",
        "NVIDIA-SMI has failed because ",
        "GPU is lost",
        "No devices were found",
        "nvmlInit",
        "Unable to detect any supported GPU",
        "FABRIC_MANAGER",
        "fabric manager is not running",
        "Fabric Manager is not running",
        "rocm_smi_lib",
        "Driver not initialized (amdgpu not found in modules)",
    ),
    pattern=(
        r"^(?:\S[^'\"]{0,120}?[:>\])] ?)??(?:Failed to initialize NVML: \S|Unable to determine the device handle for (?:gpu|GPU) ?(?P<pci>[0-9A-Fa-f:.]+[0-9A-Fa-f]): "
        r"|NVIDIA-SMI has failed because |No devices were found\s*$|.{0,100}GPU is lost\b|.{0,60}nvmlInit(?:_v2)?(?:\(\))? ?(?:[Ff]ailed|error|returned)|Unable to detect any supported GPU"
        r"|.{0,100}[Ff]abric [Mm]anager is not running|.{0,60}FABRIC_MANAGER.{0,40}(?:FAIL|ERROR)|.{0,60}rocm_smi_lib.{0,40}(?:[Ff]ail|error)|.{0,40}Driver not initialized \(amdgpu not found)"
    ),
)
def driver(found: Records) -> Iterator[Rows]:
    """Give a line that says that driver and GPU do not talk (group: PCI address where named)."""
    yield found.rows("error", "gpu-driver", group=found["pci"], text=found["line"])
