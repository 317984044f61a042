"""The labels of a node, and what the value of each is: docs/labels.md has the same table.

Those of MIG instances stand here for one profile. Source of the names: GPU feature discovery of NVIDIA's
k8s-device-plugin 0.20. Out of scope: their values (labels.py).
"""

from __future__ import annotations

MIG = "mig-1g.5gb"  # a profile, for all
_OLD = "as above without -version; deprecated"
TEXTS = {
    "gpu.product": "model, as NVIDIA-A100-SXM4-40GB; with -SHARED if pods that ask for this resource share it",
    "gpu.count": "GPUs of that model that are given out, also Unhealthy ones and those in MIG mode",
    "gpu.memory": "MiB of each",
    "gpu.family": "such as ampere; undefined for an unknown compute capability",
    "gpu.compute.major": "compute capability",
    "gpu.compute.minor": "compute capability",
    "gpu.replicas": "how often each is given out; 0 if all are in MIG mode",
    "gpu.sharing-strategy": "none, time-slicing or mps",
    "gpu.mode": "compute or graphics, by PCI class; unknown for other and for several classes",
    "gpu.machine": "the machine's model from DMI, or unknown",
    "gpu.clique": "UUID of the multi-node NVLink cluster, and the clique in it",
    "mig.capable": "true if a GPU may be in MIG mode",
    "mig.strategy": "single or mixed; absent under none",
    "mig.config.state": "of the MIG layout that a label names: pending, success or failed",
    "mps.capable": "true if a group is shared by MPS",
    "vgpu.present": "true if a GPU is a virtual one",
    "cuda.driver-version.major": "the driver's version",
    "cuda.driver-version.minor": "the driver's version",
    "cuda.driver-version.revision": "the driver's version",
    "cuda.driver-version.full": "the driver's version",
    "cuda.runtime-version.major": "newest CUDA that the driver supports",
    "cuda.runtime-version.minor": "newest CUDA that the driver supports",
    "cuda.runtime-version.full": "newest CUDA that the driver supports",
    "cuda.driver.major": _OLD,
    "cuda.driver.minor": _OLD,
    "cuda.driver.rev": _OLD,
    "cuda.runtime.major": _OLD,
    "cuda.runtime.minor": _OLD,
    "gfd.timestamp": "time of the last change, in seconds since 1970; not with labels-no-timestamp",
    f"{MIG}.product": "model and profile, as NVIDIA-A100-SXM4-40GB-MIG-1g.5gb",
    f"{MIG}.count": "as of GPUs",
    f"{MIG}.replicas": "as of GPUs",
    f"{MIG}.sharing-strategy": "as of GPUs",
    f"{MIG}.memory": "MiB of each instance",
    f"{MIG}.multiprocessors": "of each",
    f"{MIG}.slices.gi": "slices of the GPU instance, and of the compute instance",
    f"{MIG}.slices.ci": "slices of the GPU instance, and of the compute instance",
    f"{MIG}.engines.copy": "engines of each",
    f"{MIG}.engines.decoder": "engines of each",
    f"{MIG}.engines.encoder": "engines of each",
    f"{MIG}.engines.jpeg": "engines of each",
    f"{MIG}.engines.ofa": "engines of each",
}
