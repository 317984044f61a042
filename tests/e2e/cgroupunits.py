"""Units of systemd's in a cgroup hierarchy of their own."""

from __future__ import annotations

OUTER = """
for mount in $(awk '$2 ~ "^/sys/fs/cgroup/" { print $2 }' /proc/mounts | sort -r); do umount "$mount"; done
umount /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup
mkdir /sys/fs/cgroup/$2
echo $$ >/sys/fs/cgroup/$2/cgroup.procs
unshare --cgroup --pid --fork --kill-child --mount --uts --ipc --net --propagation private sh -ec "$3" sh $1 || true
echo $$ >/sys/fs/cgroup/cgroup.procs
for try in 1 2 3 4 5; do
  find /sys/fs/cgroup/$2 -depth -type d -exec rmdir {} + && exit
  sleep 0.2
done
"""
TARGET = "[Unit]\nDefaultDependencies=no\nWants=try.service\n"
SERVICE = """[Unit]
DefaultDependencies=no
[Service]
Type=oneshot
TimeoutStartSec=60
ExecStart=/bin/sh -e /mnt/try.sh
ExecStopPost=/bin/systemctl --force --force poweroff
StandardOutput=file:/mnt/said
StandardError=file:/mnt/errors
"""
