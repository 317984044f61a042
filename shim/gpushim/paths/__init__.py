"""Paths: who may change a file, how one below a rootfs, a driver root or the host is reached.

One rule (walk.py): a path is walked from an open directory, one component at a time. Each is opened O_PATH|O_NOFOLLOW
in the fd of its directory, which follows nothing and opens nothing; a link is read from its own fd and expanded by
hand, `..` comes from the stack of open directories; 40 links and 2048 words end it. Each directory and link, and the
file itself, is passed to the variant by its fd before anything is done with it, and so is a missing name:

| variant | root | refuses | a missing name |
| --- | --- | --- | --- |
| `rootfs.Rootfs` | the container's | links of the kernel's own file systems, closed directories of volumes, \
much text of links; reads and writes on other mounts | is made on the container's own mounts |
| `host_files.open_parent` | /, or /proc/PID/root | what others own or may write, sticky or not; with `output` only \
links | is made on request, but not where links lead |
| `host_files.replaceable` | / | the same, but for sticky directories of root's, and read-only mounts | is an error |
| `logfile.append` | / | what others own, and what everybody may write, unless sticky | is no log |

Only `rooted.resolve` goes by paths: nobody but root renames files below a driver root.
"""
