"""An ordinary user's containerd in rootlesskit's namespaces, with the options of nerdctl's containerd-rootless.sh."""

from __future__ import annotations

from pathlib import Path

from e2e import rootless

# ctr always asks for a share of processors, of which a user without systemd has no cgroup to give.
RUNTIME = """#!/usr/bin/python3 -IS
import json, os, sys
words = sys.argv[1:]
if "--bundle" in words:
    path = words[words.index("--bundle") + 1] + "/config.json"
    with open(path) as file:
        spec = json.load(file)
    spec["linux"]["resources"].pop("cpu", None)
    with open(path, "w") as file:
        json.dump(spec, file)
os.execv("/usr/bin/gpushim-runtime", ["/usr/bin/gpushim-runtime", *words])
"""
KIT = "rootlesskit --net=slirp4netns --disable-host-loopback --copy-up=/etc --copy-up=/run --copy-up=/var/lib"
# The arguments: an archive of the image.
SCRIPT = """
rm -f /run/containerd; mkdir -p /run/containerd
printf 'version = 2\\ndisabled_plugins = ["io.containerd.grpc.v1.cri"]\\nroot = "%s"\\nstate = "%s"\\n' \\
  "$HOME/root" "$HOME/state" >"$HOME/containerd.toml"
containerd --config "$HOME/containerd.toml" >"$HOME/containerd.log" 2>&1 &
for try in $(seq 100); do ctr version >/dev/null 2>&1 && break; sleep 0.1; done
ctr images import --no-unpack "$1" >/dev/null
ctr run --rm --net-host --cgroup= --snapshotter=native --runc-binary=/srv/runtime \\
  --env=NVIDIA_VISIBLE_DEVICES=1 docker.io/library/debian:local one nvidia-smi -L || tail -n5 "$HOME/containerd.log"
kill $!
"""


def test_a_container_of_its_has_its_gpu(debian_image: Path) -> None:
    with rootless.user() as user:
        user.machine.write("/srv/script", SCRIPT)
        user.machine.write("/srv/runtime", RUNTIME)
        user.machine.run("chmod 755 /srv/runtime")
        user.machine.run(f"install --mode=644 {debian_image} /srv/image.tar")  # by root, who may read it
        said = user.run(f"{KIT} /bin/sh /srv/script /srv/image.tar 2>&1", check=False).stdout
        assert user.machine.host.gpus[1].uuid in said, said
        assert user.machine.host.gpus[0].uuid not in said
