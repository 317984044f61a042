"""How a service restarts the containerd of a node without systemd: lines for a script that is executed there.

Out of scope: who asks for it (test_node.py, layouts.py).
"""

from __future__ import annotations

# `end` ends each containerd; `begin` starts one in a cgroup, and waits until a command succeeds.
LINES = """#!/usr/bin/python3 -IB
import glob, json, os, signal, subprocess, sys, time

def end():
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if open("/proc/" + pid + "/comm").read() == "containerd\\n":
                os.kill(int(pid), signal.SIGTERM)
                while os.path.exists("/proc/" + pid + "/exe"):
                    time.sleep(0.05)
        except OSError:  # it has ended meanwhile
            pass

def begin(words, group, ready, log="/dev/null"):
    null, log = subprocess.DEVNULL, open(log, "a")
    child = subprocess.Popen(words, stdin=null, stdout=log, stderr=log, start_new_session=True)
    print(child.pid, file=open(group + "/cgroup.procs", "w"))
    while subprocess.run(ready, stdout=null, stderr=null).returncode:
        time.sleep(0.05)

"""
