"""A client of an MPS daemon, in a container, and what starts daemons where no systemd does."""

from __future__ import annotations

# For worker.py's systemctl, beside what it does: units of MPS are started; each ends by itself.
STARTS = """#!/bin/sh
[ "$1" != start ] || for unit; do
  case $unit in gpushim-mps@*)
    unit=${unit#gpushim-mps@}
    setsid /usr/bin/gpushim-device-plugin --mps "${unit%.service}" >>/run/units.log 2>&1 </dev/null &
  esac
done
"""
CLIENT = """
import errno, json, os, socket
pipes = os.environ["CUDA_MPS_PIPE_DIRECTORY"]
def ask(line):
    client = socket.socket(socket.AF_UNIX)
    client.connect(pipes + "/control")
    client.sendall(line.encode() + b"\\n")
    client.shutdown(socket.SHUT_WR)
    return client.makefile().read().strip()
tries = [lambda: os.open(pipes + "/new", os.O_CREAT), lambda: os.mkdir(pipes + "/new")]
tries += [lambda: os.unlink(pipes + "/control"), lambda: os.chmod(pipes + "/control", 0o600)]
said = []
for each in tries:
    try:
        said.append(str(each()))
    except OSError as error:
        said.append(errno.errorcode[error.errno])
os.close(os.open(f"/dev/shm/of {os.getuid()}", os.O_CREAT | os.O_WRONLY))
shm, options = os.stat("/dev/shm"), [line.split()[3] for line in open("/proc/mounts") if " /dev/shm " in line][-1]
print(json.dumps({
    "pipes": pipes, "threads": ask("get_default_active_thread_percentage"), "tries": said,
    "memory": ask("get_default_device_pinned_mem_limit 0"), "shm": f"{shm.st_dev}:{shm.st_ino}",
    "there": os.listdir("/dev/shm"), "options": options, "variables": sorted(x for x in os.environ if "MPS" in x),
}))
"""
