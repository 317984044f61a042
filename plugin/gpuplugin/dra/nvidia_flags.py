"""What NVIDIA's DRA driver calls its settings: flags and variables, and ours for each of them.

Source of the names: kubernetes-sigs/dra-driver-nvidia-gpu, cmd/gpu-kubelet-plugin. Out of scope: those that
NVIDIA's device plugin has, too (gpushim.nvidia.migrate.device_plugin_keys), and what counts (gpuplugin.settings).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpushim.ground.errors import CONFIG, GpushimError, quote
from gpushim.nvidia.migrate import plugin_settings
from gpushim.nvidia.migrate.device_plugin_keys import SETTINGS, Setting

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_HEEDED = ("kubelet-dir", "exclude", "on-demand", "allocation-policy", "disable-healthchecks",
           "enable-healthchecks", "taint-effect", "kubeconfig", "config-file", "profile-file",
           "mig-layout-file")  # fmt: skip
OURS = tuple(setting for setting in SETTINGS if setting.key in _HEEDED)  # of the device plugin's, what counts here
_SPEC = "the CDI spec is that of gpushim refresh, by [driver] and [cdi] of config.toml"
_PODS = "no pods are made for claims"
_LOGS = "[log] of config.toml applies"
_FEW = "there are too few requests to limit them"


def _without(flag: str, note: str, default: str = "", *variables: str) -> Setting:
    """Return one that does nothing here; `more` are variables beside that of the flag's name."""
    return Setting("", (flag,), (flag.upper().replace("-", "_"), *variables), note=note, default=default)


NVIDIA = (
    Setting(
        "kubelet-dir",
        ("kubelet-plugins-directory-path",),
        ("KUBELET_PLUGINS_DIRECTORY_PATH",),
        note="NVIDIA's name of plugins/ in --kubelet-dir, with which that is said, too.",
    ),
    Setting(
        "kubelet-dir",
        ("kubelet-registrar-directory-path",),
        ("KUBELET_REGISTRAR_DIRECTORY_PATH",),
        note="The same of plugins_registry/ there.",
    ),
    Setting(
        "disable-healthchecks",
        ("additional-xids-to-ignore",),
        ("ADDITIONAL_XIDS_TO_IGNORE",),
        note="NVIDIA's name of --disable-healthchecks.",
    ),
    Setting("kubeconfig", (), ("KUBECONFIG",)),
    _without("cdi-root", _SPEC, "/var/run/cdi"),
    _without("nvidia-driver-root", _SPEC, "/", "HOST_DRIVER_ROOT"),
    Setting("", ("container-driver-root",), ("DRIVER_ROOT_CTR_PATH",), note=_SPEC, default="/driver-root"),
    _without("nvidia-cdi-hook-path", _SPEC),
    _without("host-root", "gpushim gives GPUs to no virtual machines", "/host-root"),
    _without("namespace", _PODS, "default"),
    *(_without(flag, _PODS) for flag in ("image-name", "image-pull-secrets", "image-pull-policy")),
    _without("service-account-name", _PODS),
    _without("healthcheck-port", "there is no health service; a process that fails ends, and is started again", "-1"),
    _without("http-endpoint", "its metrics are not there"),
    _without("metrics-path", "its metrics are not there", "/metrics"),
    _without("kube-api-qps", _FEW, "5"),
    _without("kube-api-burst", _FEW, "10"),
    _without("feature-gates", "what gpushim has of these features is on"),
    _without("consumable-shares", "claims do not share devices", "disabled"),
    _without("default-config", "default in config-file is the profile that counts"),
    *(_without(flag, _LOGS) for flag in ("v", "vmodule", "log-text-split-stream", "log-text-info-buffer-size")),
    *(_without(flag, _LOGS) for flag in ("log-json-split-stream", "log-json-info-buffer-size")),
    _without("logging-format", _LOGS, "text"),
    _without("log-flush-frequency", _LOGS, "5s"),
)


def ours(
    flags: Mapping[str, Sequence[str]], environment: Mapping[str, str]
) -> tuple[dict[str, Sequence[str]], list[str]]:
    """Return flags as the device plugin has them, and a sentence for each setting that does nothing here.

    Args:
        flags: values by flag, without dashes.
        environment: variables.

    Raises:
        GpushimError: a value is wrong, or two contradict each other.
    """
    values = {flag: value for flag, value in flags.items() if any(flag in setting.flags for setting in OURS)}
    first: dict[str, plugin_settings.SettingValue] = {}
    notes = []
    for setting in NVIDIA:
        setting_value = plugin_settings.read_flag(setting, flags) or plugin_settings.read_variable(
            setting, environment
        )
        if setting_value and not setting.key and setting_value.value != setting.default:
            notes.append(f"{setting_value.origin} is accepted without effect: {setting.note}")
        elif setting_value and setting.key:
            before = first.setdefault(setting.key, setting_value)
            if before.value != setting_value.value:
                raise GpushimError(
                    f"{before.origin} and {setting_value.origin} are not in one directory, {quote(before.value)} and "
                    f"{quote(setting_value.value)}; kubelet has both in its own",
                    CONFIG,
                )
            values.setdefault(setting.key, (setting_value.value,))
    return values, notes
