"""The settings of NVIDIA's k8s-device-plugin: its flags, variables and keys, and our key for each of them.

Source of the names: that plugin's 0.20. Which values a key of ours takes, its default and its meaning are in
config.schema.json. Out of scope: reading values (plugin_settings.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from gpushim.config import policy

SECTION = "device-plugin"
_MACHINE = "the machine's model is read from DMI"
_NODE_FEATURE = "gpushim-device-plugin --cluster --node-feature posts labels as a NodeFeature object"
_SPEC = "the CDI spec is gpushim's, with gpushim's hook"


@dataclass(frozen=True)
class Setting:
    """A setting of NVIDIA's plugin, or of ours alone.

    Attributes:
        key: in [device-plugin]; "" if gpushim has no such setting.
        flags: on the command line, without dashes, the first as it is shown.
        variables: its names in the environment.
        file: its dotted path in NVIDIA's file; "" if the file cannot set it. For LOCAL_KEYS the file is ignored.
        note: without a key, why the setting is ignored; else how it differs from the key.
        default: without a key, the value for which nothing is noted.
    """

    key: str
    flags: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    file: str = ""
    note: str = ""
    default: str = ""

    @property
    def rule(self) -> dict[str, Any]:
        rule: dict[str, Any] = load_schema().get(self.key, {"type": "string", "default": self.default})
        return rule


SETTINGS = (
    Setting("mig-strategy", ("mig-strategy",), ("MIG_STRATEGY",), "flags.migStrategy"),
    Setting("fail-on-init-error", ("fail-on-init-error",), ("FAIL_ON_INIT_ERROR",), "flags.failOnInitError"),
    Setting(
        "device-list-strategy",
        ("device-list-strategy",),
        ("DEVICE_LIST_STRATEGY",),
        "flags.plugin.deviceListStrategy",
    ),
    Setting("device-id-strategy", ("device-id-strategy",), ("DEVICE_ID_STRATEGY",), "flags.plugin.deviceIDStrategy"),
    Setting("pass-device-specs", ("pass-device-specs",), ("PASS_DEVICE_SPECS",), "flags.plugin.passDeviceSpecs"),
    Setting("gds", ("gds-enabled",), ("GDS_ENABLED",), "flags.gdsEnabled"),
    Setting("mofed", ("mofed-enabled",), ("MOFED_ENABLED",), "flags.mofedEnabled"),
    Setting("gdrcopy", ("gdrcopy-enabled",), ("GDRCOPY_ENABLED",), "flags.gdrcopyEnabled"),
    Setting("imex-channels", ("imex-channel-ids",), ("IMEX_CHANNEL_IDS",), "imex.channelIDs"),
    Setting("imex-required", ("imex-required",), ("IMEX_REQUIRED",), "imex.required"),
    Setting(
        "allocation-policy",
        ("shared-devices-allocation-policy",),
        ("SHARED_DEVICES_ALLOCATION_POLICY",),
        "flags.plugin.sharedDevicesAllocationPolicy",
    ),
    Setting(
        "cdi-annotation-prefix",
        ("cdi-annotation-prefix",),
        ("CDI_ANNOTATION_PREFIX",),
        "flags.plugin.cdiAnnotationPrefix",
    ),
    Setting("exclude", ("exclude",)),
    Setting("on-demand", ("on-demand",)),
    Setting("fronts", ("fronts",), ("FRONTS",)),
    Setting("other-givers", ("other-givers",), ("OTHER_GIVERS",)),
    Setting("disable-healthchecks", ("disable-healthchecks",), ("DP_DISABLE_HEALTHCHECKS",)),
    Setting("enable-healthchecks", ("enable-healthchecks",), ("DP_ENABLE_HEALTHCHECKS",)),
    Setting("taint-effect", ("taint-effect",)),
    Setting("kubeconfig", ("kubeconfig",)),
    Setting("kubelet-dir", ("kubelet-dir",)),
    Setting(
        "kubelet-dir",
        ("kubelet-socket",),
        ("KUBELET_SOCKET",),
        note="kubelet's socket, instead of --kubelet-dir: device-plugins/kubelet.sock in it.",
    ),
    Setting("metrics", ("metrics",), ("METRICS",)),
    Setting("metrics-token-file", ("metrics-token-file",), ("METRICS_TOKEN_FILE",)),
    Setting("config-file", ("config-file",), ("CONFIG_FILE",)),
    Setting("profile-file", ("profile-file",), ("PROFILE_FILE",)),
    Setting("mig-layout-file", ("mig-layout-file",)),
    Setting("labels-file", ("labels-file",), ("GFD_OUTPUT_FILE",), "flags.gfd.outputFile"),
    Setting("labels-interval", ("labels-interval",), ("GFD_SLEEP_INTERVAL",), "flags.gfd.sleepInterval"),
    Setting("labels-no-timestamp", ("labels-no-timestamp",), ("GFD_NO_TIMESTAMP",), "flags.gfd.noTimestamp"),
    Setting(
        "",
        ("driver-root", "nvidia-driver-root"),
        ("NVIDIA_DRIVER_ROOT",),
        "flags.nvidiaDriverRoot",
        "root under [driver] of config.toml applies",
        "/",
    ),
    Setting(
        "",
        ("dev-root", "nvidia-dev-root"),
        ("NVIDIA_DEV_ROOT",),
        "flags.nvidiaDevRoot",
        "dev-root under [driver] of config.toml applies",
    ),
    Setting(
        "",
        ("driver-root-ctr-path", "container-driver-root"),
        ("DRIVER_ROOT_CTR_PATH", "CONTAINER_DRIVER_ROOT"),
        "flags.plugin.containerDriverRoot",
        "the driver is looked at by gpushim refresh, not by the plugin",
        "/driver-root",
    ),
    Setting(
        "",
        ("device-discovery-strategy",),
        ("DEVICE_DISCOVERY_STRATEGY",),
        "flags.deviceDiscoveryStrategy",
        "gpushim refresh finds out what the host has",
        "auto",
    ),
    Setting(
        "",
        ("nvidia-cdi-hook-path", "nvidia-ctk-path"),
        ("NVIDIA_CDI_HOOK_PATH", "NVIDIA_CTK_PATH"),
        "flags.plugin.nvidiaCTKPath",
        _SPEC,
        "/usr/bin/nvidia-ctk",
    ),
    Setting("", ("cdi-feature-flags",), ("CDI_FEATURE_FLAGS",), note=_SPEC),
    Setting("", ("cdi-disable-hooks",), ("CDI_DISABLE_HOOKS",), note=_SPEC),
    Setting("", ("mps-root",), ("MPS_ROOT",), "flags.mpsRoot", "pipes of MPS are in /run/gpushim/mps"),
    Setting("", (), ("GFD_ONESHOT",), note="gpushim-device-plugin --labels prints labels once", default="false"),
    Setting("", (), ("GFD_MACHINE_TYPE_FILE",), note=_MACHINE, default="/sys/class/dmi/id/product_name"),
    Setting("", (), ("GFD_USE_NODE_FEATURE_API", "USE_NODE_FEATURE_API"), note=_NODE_FEATURE, default="true"),
)
# Paths and addresses of the plugin. NVIDIA's file cannot set them: in a cluster it is a ConfigMap, and whoever may
# change that could write files as root on every node. config.toml and the pod's flags can.
LOCAL_KEYS = (
    "kubelet-dir",
    "metrics",
    "metrics-token-file",
    "config-file",
    "profile-file",
    "mig-layout-file",
    "labels-file",
    "kubeconfig",
)
# Keys of NVIDIA's file that are read elsewhere, or belong to its GPU feature discovery.
OTHER_KEYS = (
    *("version", "sharing", "profiles", "default", "resources"),
    *("flags.gfd.oneshot", "flags.gfd.machineTypeFile", "flags.useNodeFeatureAPI"),
)


@lru_cache(maxsize=1)
def load_schema() -> dict[str, Any]:
    rules: dict[str, Any] = policy.schema()["properties"][SECTION]["properties"]
    return rules
