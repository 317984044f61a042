"""The metrics' names, units and labels: a table that docs/metrics.md and a test of it follow.

Those of GPUs are named as NVIDIA's DCGM exporter has them where they mean the same; counters among them are of no
type, for OpenMetrics would have their names end in _total.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from gpuplugin.processes import counts

OWN, DRIVER, ITS = "gpushim_device_plugin_", "gpushim_dra_driver_", "gpushim_gpu_"
IDENTITY = ("gpu", "UUID", "device", "modelName", "Hostname")
INSTANCE, HELD, REPLICA = ("GPU_I_ID", "GPU_I_PROFILE"), ("namespace", "pod", "container"), "vgpu"
CLAIM = ("claim", "driver")  # of a container that has it by a claim of Kubernetes' DRA
FREE = dict.fromkeys(HELD, "")  # said, for Prometheus with honor_labels would put the plugin's own pod there
SERIES = 48  # of one GPU or MIG instance, most: it may have 60 000 replicas
# nvmlClocksEventReasons: what keeps the clocks from being higher, by bit.
THROTTLES = (
    *("gpu_idle", "applications_clocks_setting", "sw_power_cap", "hw_slowdown", "sync_boost"),
    *("sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "display_clock_setting"),
)
SHARED = " Replicas of a shared GPU (label vgpu) have the GPU's own value each: take max by (gpu), never a sum."


@dataclass(frozen=True)
class Row:
    """A metric.

    Attributes:
        name: as its series have it, but for a histogram's _bucket, _sum and _count.
        kind: gauge, counter, histogram or unknown.
        unit: for people; "" for a number of things.
        key: of the figure, or of what is counted.
        labels: of its own, beside those of a GPU.
        factor: by which a figure is multiplied.
        mig: whether a MIG instance has one of its own.
    """

    name: str
    kind: str
    unit: str
    text: str
    key: str = ""
    labels: tuple[str, ...] = ()
    factor: float = 1
    mig: bool = False


PLUGIN = (
    Row(OWN + "build_info", "gauge", "", "1; the version that runs.", labels=("version", "python", "Hostname")),
    Row(
        OWN + "devices", "gauge", "", "Devices reported to kubelet; reason is the kind of the oldest reason.",
        labels=("resource", "health", "reason"),
    ),
    Row(OWN + "registered", "gauge", "", "Whether kubelet has a resource as it is.", labels=("resource",)),
    Row(OWN + "released", "gauge", "", "1 while the GPUs are released by gpushim device-plugin release."),
    Row(OWN + "snapshot_up", "gauge", "", "1 if the list of GPUs is up to date; if 0, no GPU is given out."),
    Row(
        OWN + "allocation_seconds", "histogram", "s", "Allocate calls of kubelet, and how long they took.",
        counts.ALLOCATIONS, ("resource",),
    ),
    Row(
        OWN + "allocation_errors_total", "counter", "", "Allocate calls that were refused.",
        counts.ALLOCATION_ERRORS, ("resource",),
    ),
    Row(
        OWN + "registrations_total", "counter", "", "Registrations at kubelet.", counts.REGISTRATIONS, ("resource",)
    ),
    Row(
        OWN + "registration_errors_total", "counter", "", "Registrations that kubelet refused.",
        counts.REGISTRATION_ERRORS, ("resource",),
    ),
    Row(
        OWN + "refresh_seconds", "histogram", "s",
        "Refreshes of the snapshot, and their time; in a pod those that it asked for.", counts.REFRESHES,
    ),
    Row(
        OWN + "refresh_errors_total", "counter", "", "Refreshes that produced no valid snapshot.",
        counts.REFRESH_ERRORS,
    ),
    Row(OWN + "messages_total", "counter", "", "Warnings and errors logged.", counts.MESSAGES, ("level",)),
    Row(OWN + "pod_resources_up", "gauge", "", "1 if kubelet reported pods' devices; if 0, pod labels are missing."),
)  # fmt: skip
_OF_BOTH = (
    *("build_info", "devices", "released", "snapshot_up", "refresh_seconds", "refresh_errors_total"),
    *("messages_total", "pod_resources_up"),
)
DRA = (
    *(replace(row, name=DRIVER + name) for row in PLUGIN if (name := row.name.removeprefix(OWN)) in _OF_BOTH),
    Row(DRIVER + "registered", "gauge", "", "Whether kubelet has the driver.", labels=("Hostname",)),
    Row(DRIVER + "published", "gauge", "", "Whether the API server has this instance's slices as they are.",
        labels=("Hostname",)),
    Row(DRIVER + "slices", "gauge", "", "ResourceSlices that are to be published."),
    Row(DRIVER + "pool_generation", "gauge", "", "Generation of the pool that was published last."),
    Row(DRIVER + "tainted_devices", "gauge", "", "Devices with a taint.", labels=("reason", "effect")),
    Row(DRIVER + "prepare_seconds", "histogram", "s", "Claims that were prepared, and how long kubelet's call took.",
        counts.PREPARES, ("result",)),
    Row(DRIVER + "unprepare_seconds", "histogram", "s", "Claims that were taken back, and how long the call took.",
        counts.UNPREPARES, ("result",)),
    Row(DRIVER + "claims", "gauge", "", "Claims that are prepared."),
    Row(DRIVER + "claimed_devices", "gauge", "", "Devices that claims have; not those that administrators look at.",
        labels=("resource",)),
)  # fmt: skip
CONTAINER = (
    Row(ITS + "container_memory_used_bytes", "gauge", "bytes", "What a container with a limit of GPU memory uses.",
        "used"),
    Row(ITS + "container_memory_limit_bytes", "gauge", "bytes", "What it may use.", "limit"),
)  # fmt: skip
FRONTS = {OWN: PLUGIN, DRIVER: DRA}
GPU = (
    Row("DCGM_FI_DEV_SM_CLOCK", "gauge", "MHz", "SM clock.", "sm_clock"),
    Row("DCGM_FI_DEV_MEM_CLOCK", "gauge", "MHz", "Memory clock.", "mem_clock"),
    Row("DCGM_FI_DEV_GPU_TEMP", "gauge", "°C", "GPU temperature.", "temperature"),
    Row("DCGM_FI_DEV_MEMORY_TEMP", "gauge", "°C", "Memory temperature.", "memory_temperature"),
    Row("DCGM_FI_DEV_POWER_USAGE", "gauge", "W", "Power draw.", "power", factor=0.001),
    Row("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "unknown", "mJ", "Energy since the driver was loaded.", "energy"),
    Row("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "unknown", "", "PCIe retries.", "pcie_replays"),
    Row("DCGM_FI_DEV_GPU_UTIL", "gauge", "%", "GPU utilization.", "gpu_utilization"),
    Row("DCGM_FI_DEV_MEM_COPY_UTIL", "gauge", "%", "Memory utilization.", "memory_utilization"),
    Row("DCGM_FI_DEV_ENC_UTIL", "gauge", "%", "Encoder utilization.", "encoder_utilization"),
    Row("DCGM_FI_DEV_DEC_UTIL", "gauge", "%", "Decoder utilization.", "decoder_utilization"),
    Row("DCGM_FI_DEV_XID_ERRORS", "gauge", "", "Number of the last XID since the plugin's start; 0: none.", "xid"),
    Row("DCGM_FI_DEV_FB_FREE", "gauge", "MiB", "Free memory.", "memory_free", factor=2**-20, mig=True),
    Row("DCGM_FI_DEV_FB_USED", "gauge", "MiB", "Used memory.", "memory_used", factor=2**-20, mig=True),
    Row("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "unknown", "", "Rows remapped for uncorrectable errors.",
        "uncorrectable_rows"),
    Row("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", "unknown", "", "Rows remapped for correctable errors.",
        "correctable_rows"),
    Row("DCGM_FI_DEV_ROW_REMAP_FAILURE", "gauge", "", "Whether remapping of rows has failed.", "row_failure"),
    Row(ITS + "memory_total_bytes", "gauge", "bytes", "Memory; as DCGM_FI_DEV_FB_TOTAL.", "memory_total", mig=True),
    Row(ITS + "processes", "gauge", "", "Processes that use it; absent in a pod without the host's process ids.",
        "processes", mig=True),
    Row(ITS + "ecc_errors", "unknown", "", "ECC errors since the driver was loaded (volatile) or ever (aggregate).",
        labels=("error", "counter")),
    Row(ITS + "throttle_reason", "gauge", "", "Whether this keeps the clocks from being higher.", labels=("reason",)),
    Row(ITS + "owners", "gauge", "", "Containers and claims that have it to themselves; all who share it are one.",
        mig=True),
    Row(ITS + "figures_up", "gauge", "", "Whether NVML answered for this GPU when it was last asked."),
    Row(ITS + "figures_age_seconds", "gauge", "s", "How old its figures are; they are left out after a minute."),
)  # fmt: skip
