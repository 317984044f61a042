"""More of vulnerable.py: what is read below a rootfs, and what is taken for a rootfs, a procfs, a process."""

from __future__ import annotations

from e2e import test_hostile, test_hostile_logs, test_hostile_reads, test_hostile_roots
from e2e.vulnerable import BUILDS as OTHERS
from e2e.vulnerable import READ_CHECK, Build

READS = test_hostile_reads.test_what_the_container_may_not_read_does_not_come_in
COVERED = (
    "hook/gpuhook/roots.py",
    "    if _covered(root, here) and not (root.process and _is_hosts(root)):",
    "    if False:",
)
LOGGED = test_hostile_logs.test_a_refusal_is_not_written_where_strangers_say

BUILDS = {
    "T-reads any mount": Build(
        [READ_CHECK],
        READS,
        "not leaked",
        {"place": test_hostile_reads.MUSL, "secret": "/volume/secret"},
    ),
    "T-reads any mount, hook alone": Build(
        [READ_CHECK],
        READS,
        "not leaked",
        {"place": test_hostile_reads.MUSL, "secret": "/volume/secret"},
        "hook",
    ),
    "T-reads any mount, CDI": Build(
        [READ_CHECK],
        READS,
        "not leaked",
        {"place": test_hostile_reads.CONF, "secret": "/volume/secret"},
        "cdi",
    ),
    "T-opens before it looks": Build(
        [
            (
                "hook/gpuhook/rootfs.py",
                "            self._admit(place, path, facts, volumes)\n            # An",
                '            posix.close(posix.open(f"/proc/self/fd/{place}", _DATA))\n'
                "            self._admit(place, path, facts, volumes)\n            # An",
            )
        ],
        test_hostile_roots.test_the_kernels_log_is_not_even_opened,
        '"O_PATH" not in line',
        {"place": test_hostile_reads.CACHE},
        "hook",
    ),
    "T-follows any link": Build(
        [("hook/gpuhook/rootfs.py", "            if refused:\n", "            if False:\n")],
        test_hostile_reads.test_what_a_link_says_shows_nowhere,
        "not [",
        {"link": "/proc/1/fd/5"},
    ),
    "T-goes through any directory": Build(
        [("hook/gpuhook/rootfs.py", "            if refused:\n", "            if False:\n")],
        test_hostile_reads.test_that_a_file_is_there_does_not_show,
        "is_symlink()",
        {"name": "there"},
    ),
    "T-copies text of the image": Build(
        [
            (
                "hook/gpuhook/finish.py",
                '    lines = [line for line in text.split(b"\\n") if line.startswith',
                '    return text.split(b"\\n")\n    lines = [line for line in text.split(b"\\n") if line.startswith',
            )
        ],
        test_hostile_reads.test_text_of_the_image_is_parsed_and_written_anew,
        'startswith("/usr/lib/")',
        {"name": test_hostile_reads.MUSL},
    ),
    "T-copies for more readers": Build(
        [("hook/gpuhook/rootfs.py", "0o600 | facts.st_mode & 0o644", "0o644")],
        test_hostile_reads.test_a_copy_has_no_more_readers,
        "st_mode) == mode",
        {"mode": 0o600},
    ),
    "T-takes a volume for the rootfs": Build(
        [COVERED], test_hostile_roots.test_a_volume_in_the_place_of_the_rootfs, "== [", {"destination": "/"}, "hook"
    ),
    "T-takes any directory for the rootfs": Build(
        [("hook/gpuhook/roots.py", "        if mount_id(above) == root.mount and not", "        if False and not")],
        test_hostile_roots.test_a_directory_that_is_no_root,
        "picture(other) == before",
        {"inside": ""},
        "hook",
    ),
    "T-goes by a process's number": Build(
        [
            (
                "hook/gpuhook/walk.py",
                '    return f"/proc/self/fd/{posix.open(',
                '    return f"/proc/{pid}"\n    return f"/proc/self/fd/{posix.open(',
            )
        ],
        test_hostile_roots.test_a_process_that_gets_the_number_of_the_containers,
        "done.stdout ==",
        way="hook",
    ),
    "T-LOG follows a link": Build(
        [("shim/gpushim/logfile.py", "_FLAGS | posix.O_NOFOLLOW", "_FLAGS")], LOGGED, "victim", {"name": "link"}
    ),
    "T-LOG writes under a second name": Build(
        [("shim/gpushim/logfile.py", " and facts.st_nlink == 1", "")], LOGGED, "victim", {"name": "second name"}
    ),
    "T-LOG writes into a stranger's file": Build(
        [("shim/gpushim/logfile.py", "    return trusted(facts.st_uid) and (", "    return (")],
        LOGGED,
        "made.log",
        {"name": "stranger's"},
    ),
    "T-LOG writes into a stranger's directory": Build(
        [("shim/gpushim/logfile.py", "    if not trusted(facts.st_uid) or ", "    if ")],
        LOGGED,
        "made.log",
        {"name": "in a stranger's directory"},
    ),
    "T-41579 makes nodes by their paths": Build(
        OTHERS["T-0133 makes places by their paths"].changes,
        test_hostile.test_dev_as_a_link,
        "names_in(behind) == before",
        {"text": "absolute"},
        "hook",
    ),
    "T-52881 takes any /proc for a procfs": Build(
        [("hook/gpuhook/cover.py", '    if words[end + 1] != b"proc" or words[3] != b"/":', "    if False:")],
        test_hostile_roots.test_an_images_own_proc,
        "the image's",
        way="hook",
    ),
}
