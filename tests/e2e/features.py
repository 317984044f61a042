"""Nodes of the features beside CUDA."""

from __future__ import annotations

NODES = {
    "nvidia-fs0": (510, 0),
    "nvidia-fs1": (510, 1),
    "gdrdrv": (511, 0),
    "nvidia-nvswitchctl": (512, 255),
    "nvidia-nvswitch0": (512, 0),
    "infiniband/uverbs0": (231, 192),
    "infiniband/rdma_cm": (10, 58),
    "infiniband/umad0": (231, 0),
}
# Every character device that the GPU itself does not bring, and whether the device rules let it be opened.
LIST = """
for node in /dev/nvidia-fs* /dev/gdrdrv /dev/nvidia-nvswitch* /dev/infiniband/* /dev/nvidia-caps-imex-channels/*; do
  [ ! -c "$node" ] || echo $node $( (: <>$node) 2>&1 )
done
cat /etc/cufile.json 2>/dev/null
ls /run/udev 2>/dev/null
true
"""
