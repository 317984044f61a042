"""What the host has: GPUs, MIG instances, nodes and the driver's files, as a snapshot.

Arguments that mean the same in all modules here: `root`, the driver root; `dev_root`, the directory whose dev/ has
the nodes; `proc` and `sys`, where the procfs and sysfs that show the driver are mounted; `notes`, which gets a
sentence for each thing that is wrong; `waiting`, called with what is waited for before each call that may take long;
`config`, the path of config.toml; `state`, the directory of the snapshot.

The snapshot is one JSON object, inventory.json in the state directory. All paths but those of "inputs" and
"runtime" are as seen inside the driver root or the device root, which is where a container has them:

    version, form               ensure.READABLE, the form that a reader must know at least; ensure.FORM, that it has
    gpushim, written            version of gpushim; time in UTC. A create takes another version's for stale.
    inputs, stamp               what ensure.current reads, and the facts that it returned
    looked, life                seconds since boot when the survey ended; seconds that it holds, 0: without end
    source                      "nvml", or "proc": whole GPUs only, because NVML could not be used
    notes                       sentences about what is wrong
    missing                     those about GPUs and MIG instances that are there and cannot be listed
    absent                      [{"index", "uuid", "pci"}]: GPUs that have had these indices since the boot, and are
                                not among the GPUs now
    platform                    "native"; "wsl": one node for all GPUs; "tegra": CSV files name nodes and files
    driver                      {"version", "cuda", "root", "dev-root", "params", "empty"}; unknown versions are ""
                                params: the host's file that containers see instead of
                                /proc/driver/nvidia/params; "" if they may see that itself
                                empty: an empty directory of the host
    error                       null, or {"sentence", "code"}: why this host cannot serve GPUs
    gpus                        [{"index", "nvml", "uuid", "minor", "pci", "model", "brand", "arch", "memory", "mig",
                                  "mig_capable", "vgpu", "pci_class", "fabric", "addressing", "numa", "peers",
                                  "node", "drm", "links", "problem"}]
                                index: the same from its first listing until the next boot (earlier.py); nvml: what
                                NVML and nvidia-smi have now, -1 if they do not list it
                                memory: in MiB, 0 if NVML does not tell it
                                mig: it is in MIG mode, which it may be if it is mig_capable; vgpu: a virtual GPU
                                pci_class: as sysfs has it, such as 0x030200; fabric: "UUID.CLIQUE" of the NVLink
                                cluster that it is in, or ""; addressing: None, HMM, ATS, or ""
                                numa: its NUMA node, -1 if it has none; peers: [index of another GPU,
                                nvmlGpuTopologyLevel_t, number of NVLinks] for each other one
                                drm: paths of DRM nodes; links: "target::path of the link" below /dev/dri/by-path
                                problem: null, or a sentence
    mig                         [{"uuid", "legacy", "gpu", "index", "gi", "ci", "placement", "profile", "memory",
                                  "attributes", "nodes"}]
                                placement: [first memory slice, how many], or [] if NVML does not tell
                                attributes: what NVML counts in it, by the name that GPU feature discovery has for it
    nodes                       path: [major, minor, mode bits, uid, gid]
    mps                         "", or a sentence: why containers get no MPS though [mps] enabled is true
    features, imex              feature: [paths of nodes]; numbers of IMEX channels
    files                       capability, capability with "32" (for compat32), feature, "mps" or "any":
                                [{"path", "kind", "soname" (libraries), "links"}]
                                kind: library, library32, binary, firmware, data, directory, and socket, which may
                                be a directory of sockets, and is writable; links: "target::path of the link";
    told                        facts about what the launcher reads, from ensure.launcher_facts after it was written
    policy, runtime             the policy with all defaults; path of the low-level runtime
"""
