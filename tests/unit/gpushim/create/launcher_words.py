"""Words of a config.json, and whether the launcher hands them to the shim."""

from __future__ import annotations

WORDS = {
    '{"env":["NVIDIA_VISIBLE_DEVICES=all"]': True,
    '{"env":["CUDA_VERSION=8.0"]': True,
    '{"m":"\\/var\\/run\\/nvidia-container-devices\\/0"': True,
    '{"annotations":{"cdi.k8s.io/x":"y"}': True,
    '{"env":["\\u004eVIDIA_VISIBLE_DEVICES=all"]': True,
    '{"env":["N\\u0056IDIA_VISIBLE_DEVICES=all"]': True,
    '{"env":["NVIDIA_VISIBLE\\u005fDEVICES=all"]': True,
    '{"annotations":{"cdi.\\u006b8s.io/x":"y"}': True,
    '{"env":["PATH=/bin","A=\\u003c\\u0026"]': False,
    '{"env":["NVIDIA_DRIVER_CAPABILITIES=all"]': False,
    "": False,
    '{"big":"' + "x" * 5_000_000: False,
}
