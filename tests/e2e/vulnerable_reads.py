"""More of vulnerable.py: what is read below a rootfs, and what is taken for a rootfs, a procfs, a process."""

from __future__ import annotations

from e2e import hostile_reads, test_hostile, test_hostile_logs, test_hostile_reads, test_hostile_roots
from e2e.vulnerable import ANY_MOUNT_READ, BY_PATH, FINISH, ROOTFS, Build

READS = test_hostile_reads.test_what_the_container_may_not_read_does_not_come_in
ROOTS = "hook/gpuhook/inject/roots.py"
LOGFILE, MOUNTINFO = "shim/gpushim/paths/logfile.py", "shim/gpushim/paths/mountinfo.py"
ANY_WAY = "Rootfs.way = lambda self, also=(): lambda *_: None"
LOGGED = test_hostile_logs.test_a_refusal_is_not_written_where_strangers_say

BUILDS = {
    "T-reads any mount": Build(
        {ROOTFS: ANY_MOUNT_READ}, READS, "not leaked", {"place": hostile_reads.MUSL, "secret": "/volume/secret"}
    ),
    "T-reads any mount, hook alone": Build(
        {ROOTFS: ANY_MOUNT_READ},
        READS,
        "not leaked",
        {"place": hostile_reads.MUSL, "secret": "/volume/secret"},
        "hook",
    ),
    "T-reads any mount, CDI": Build(
        {ROOTFS: ANY_MOUNT_READ},
        READS,
        "not leaked",
        {"place": hostile_reads.CONF, "secret": "/volume/secret"},
        "cdi",
    ),
    "T-opens before it looks": Build(
        {
            ROOTFS: """
_real = Rootfs._admit
def _admit(self, place, *rest):
    posix.close(posix.open(f"/proc/self/fd/{place}", _DATA))
    return _real(self, place, *rest)
Rootfs._admit = _admit
"""
        },
        test_hostile_roots.test_the_kernels_log_is_not_even_opened,
        '"O_PATH" not in line',
        {"place": hostile_reads.CACHE},
        "hook",
    ),
    "T-follows any link": Build(
        {ROOTFS: ANY_WAY}, test_hostile_reads.test_what_a_link_says_shows_nowhere, "not [", {"link": "/proc/1/fd/5"}
    ),
    "T-goes through any directory": Build(
        {ROOTFS: ANY_WAY},
        test_hostile_reads.test_that_a_file_is_there_does_not_show,
        "is_symlink()",
        {"name": "there"},
    ),
    "T-copies text of the image": Build(
        {FINISH: "folders_in = bytes.splitlines"},
        test_hostile_reads.test_text_of_the_image_is_parsed_and_written_anew,
        'startswith("/usr/lib/")',
        {"name": hostile_reads.MUSL},
    ),
    "T-copies for more readers": Build(
        {ROOTFS: "_real = Rootfs.read\nRootfs.read = lambda *args: (_real(*args)[0], 0o644)"},
        test_hostile_reads.test_a_copy_has_no_more_readers,
        "st_mode) == mode",
        {"mode": 0o600},
    ),
    "T-takes a volume for the rootfs": Build(
        {ROOTS: "_covered = lambda *_: False"},
        test_hostile_roots.test_a_volume_in_the_place_of_the_rootfs,
        "== [",
        {"destination": "/"},
        "hook",
    ),
    "T-takes any directory for the rootfs": Build(
        {ROOTS: ("and not same(above, root.fd)", "and False")},
        test_hostile_roots.test_a_directory_that_is_no_root,
        "picture(other) == before",
        {"inside": ""},
        "hook",
    ),
    "T-goes by a process's number": Build(
        {MOUNTINFO: "held = lambda pid, proc='/proc': f'{proc}/{pid}'"},
        test_hostile_roots.test_a_process_that_gets_the_number_of_the_containers,
        "done.stdout ==",
        way="hook",
    ),
    "T-LOG follows a link": Build({LOGFILE: "posix.O_NOFOLLOW = 0"}, LOGGED, "victim", {"name": "link"}),
    "T-LOG writes under a second name": Build(
        {LOGFILE: "_is_log = lambda facts: True"}, LOGGED, "victim", {"name": "second name"}
    ),
    "T-LOG writes into a stranger's file": Build(
        {LOGFILE: "_is_log = lambda facts: True"}, LOGGED, "made.log", {"name": "stranger's"}
    ),
    "T-LOG writes into a stranger's directory": Build(
        {LOGFILE: "_check = lambda *_: None"}, LOGGED, "made.log", {"name": "in a stranger's directory"}
    ),
    "T-41579 makes nodes by their paths": Build(
        {"hook/gpuhook/inject/apply.py": BY_PATH},
        test_hostile.test_dev_as_a_link,
        "names_in(behind) == before",
        {"text": "absolute"},
        "hook",
    ),
    "T-52881 takes any /proc for a procfs": Build(
        {"hook/gpuhook/inject/cover.py": "_check = lambda *_: None"},
        test_hostile_roots.test_an_images_own_proc,
        "the image's",
        way="hook",
    ),
}
