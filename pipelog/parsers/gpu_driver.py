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
        r"^(?:\S[^'\"]*?[:>\])] ?)??(?:Failed to initialize NVML: \S|Unable to determine the device handle for (?:gpu|GPU) ?(?P<pci>[0-9A-Fa-f:.]+[0-9A-Fa-f]): "
        r"|NVIDIA-SMI has failed because |No devices were found\s*$|.*GPU is lost\b|.*nvmlInit(?:_v2)?(?:\(\))? ?(?:[Ff]ailed|error|returned)|Unable to detect any supported GPU"
        r"|.*[Ff]abric [Mm]anager is not running|.*FABRIC_MANAGER.*(?:FAIL|ERROR)|.*rocm_smi_lib.*(?:[Ff]ail|error)|.*Driver not initialized \(amdgpu not found)"
    ),
)
def driver(found: Records) -> Iterator[Rows]:
    """Give a line that says that driver and GPU do not talk (group: PCI address where named)."""
    yield found.rows("error", "gpu-driver", group=found["pci"], text=found["line"])
