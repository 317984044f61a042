"""A ConfigMap of profiles, and the label that names one."""

from __future__ import annotations

LABEL = "nvidia.com/device-plugin.config"
SHARING = "version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 3}]}}\n"
PROFILES = {"whole": "version: v1\n", "shared": SHARING}
