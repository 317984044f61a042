"""What the host has: GPUs, MIG instances, device nodes and the driver's files, kept as a snapshot.

The snapshot is one JSON object, inventory.json in the state directory. All paths but those of "inputs" and
"runtime" are as seen inside the driver root or the device root, which is where a container has them:

    version, gpushim, written   6; version of gpushim; time in UTC. Another version is a stale snapshot.
    inputs, stamp               what stamp.current looks at, and what it answered
    looked, life                seconds since the boot when the look ended; seconds that it holds, 0: without end
    source                      "nvml", or "proc": whole GPUs only, because NVML could not be used
    notes                       sentences about what is not as it should be
    missing                     those of them about GPUs and MIG instances that are there and cannot be listed
    platform                    "native"; "wsl": one node for all GPUs; "tegra": CSV files name nodes and files
    driver                      {"version", "cuda", "root", "dev-root", "params", "empty"}; unknown versions are ""
                                params: a file of the host that containers are to see instead of
                                /proc/driver/nvidia/params; "" if that will do
                                empty: an empty directory of the host
    error                       null, or {"sentence", "code"}: why this host cannot serve GPUs
    gpus                        [{"index", "uuid", "minor", "pci", "model", "brand", "arch", "mig", "node",
                                  "drm", "links", "problem"}]
                                drm: paths of DRM nodes; links: "target::path of the link" below /dev/dri/by-path
                                problem: null, or a sentence
    mig                         [{"uuid", "legacy", "gpu", "index", "gi", "ci", "profile", "nodes"}]
    nodes                       path: [major, minor, mode bits, uid, gid]
    mps                         "", or a sentence: why containers get no MPS though [mps] enabled is true
    features, imex              feature: [paths of nodes]; numbers of IMEX channels
    files                       capability, capability with "32" (for compat32), feature, "mps" or "any":
                                [{"path", "kind", "soname" (libraries), "links", "in"}]
                                kind: library, library32, binary, firmware, data, directory, and socket, which may
                                be a directory of sockets, and is writable; links: "target::path of the link";
                                in: the directory below "hardlinks" that a container gets instead of the file
    hardlinks                   path on the host, if library-directory is set and hard links could be made
    told                        facts about what the launcher reads, as ensure.told found them after it was written
    policy, runtime             the policy with all defaults; path of the low-level runtime
"""
