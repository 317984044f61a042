"""What stays after a removal: for whose containers it does, and which of them it creates."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from e2e import recorder
from unit.gpushim.calls import LOOKS_LIKE_A_REQUEST, TOP
from unit.gpushim.create.test_launcher import VERBS, WORDS

SCRIPT = TOP / "packaging/deb/debian/stub.sh"
OURS = "/usr/bin/gpushim-runtime"
TASKS = ("run/containerd/io.containerd.runtime.v2.task", "run/docker/containerd/daemon/io.containerd.runtime.v2.task")
STRANGERS = [{"uid": 1000}, {"ns": "pid"}, {"ns": "mnt"}, {"ns": "user"}, {"mode": 0o777}, {"exe": "sh"}]


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    (folder := tmp_path / "proc/self/ns").mkdir(parents=True)
    for name in ("pid", "mnt", "user"):
        (folder / name).symlink_to(f"{name}:[1]")
    return tmp_path / "proc"


def process(
    proc: Path,
    pid: int,
    name: str,
    cwd: Path | None = None,
    words: str = "",
    uid: int = 0,
    ns: str = "",
    mode: int = 0o755,
    exe: str = "",
) -> None:
    (folder := proc / str(pid) / "ns").mkdir(parents=True)
    for space in ("pid", "mnt", "user"):
        (folder / space).symlink_to(f"{space}:[{2 if space == ns else 1}]")
    folder, exe = folder.parent, exe or name
    (folder / exe).touch()
    (folder / exe).chmod(mode)
    (folder / "exe").symlink_to(folder / exe)
    (folder / "status").write_text(f"Name:\t{name}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n")
    (folder / "comm").write_text(f"{name}\n")
    (folder / "cmdline").write_bytes(words.replace(" ", "\0").encode())
    if cwd:
        (folder / "cwd").symlink_to(cwd)


def bundle(tasks: Path, name: str, text: str, file: str = "runtime") -> Path:
    (folder := tasks / name).mkdir(parents=True)
    (folder / file).write_text(text)
    return folder


def recorded(proc: Path) -> list[str]:
    done = subprocess.run(
        ["/bin/sh", "-euc", f"{SCRIPT.read_text()}\nrecorded gpushim-runtime"],
        env={"PATH": "/usr/bin:/bin", "PROC": str(proc), "DPKG_ROOT": str(proc.parent)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return sorted(set(done.stdout.split()))


def test_containers_by_their_engine_s_files_and_command_lines(proc: Path, tmp_path: Path) -> None:
    tasks = tmp_path / "k8s.io"
    pod = bundle(tasks, "pod", OURS)
    bundle(tasks, "one", f'{{"BinaryName": "{OURS}"}}', "options.json")
    bundle(tasks, "other", "/usr/bin/runc")
    for at, folder in enumerate(TASKS):
        bundle(tmp_path / folder / "moby", f"task{at}", f"{OURS}\n")
    process(proc, 7, "containerd-shim", pod)
    process(proc, 8, "conmon", words=f"/usr/bin/conmon -b x -c two -r {OURS} ")
    process(proc, 9, "conmon", words="/usr/bin/conmon -c three -r /usr/bin/crun ")
    process(proc, 10, "sh", words=f"sh -c {OURS} ")
    process(proc, 11, "conmon", words=f"/usr/bin/conmon -c ../../etc -r {OURS} ")
    behind = (
        f"--log-tag -r --log-tag --cid --exit-command-arg --runtime --exit-command-arg {OURS} "  # as Podman's are
    )
    process(proc, 12, "conmon", words=f"/usr/bin/conmon -c four -r {OURS} {behind}")
    process(proc, 13, "conmon", words=f"/usr/bin/conmon -c five -r /usr/bin/crun {behind}")
    assert recorded(proc) == ["four", "one", "pod", "task0", "task1", "two"]


@pytest.mark.parametrize("facts", STRANGERS, ids=str)
def test_strangers_that_call_themselves_so_keep_nothing_here(
    proc: Path, tmp_path: Path, facts: dict[str, object]
) -> None:
    """A user's process, one in a container, with the host's process ids too, and a program that others may write."""
    own = bundle(tmp_path / "tasks", "own", OURS)
    process(proc, 7, "containerd-shim", own, **facts)  # type: ignore[arg-type]
    process(proc, 8, "conmon", words=f"/usr/bin/conmon -c two -r {OURS} ", **facts)  # type: ignore[arg-type]
    assert recorded(proc) == []


def test_files_of_others_keep_nothing_here(proc: Path, tmp_path: Path) -> None:
    """A directory that another owns or may write, a link to one, and links and pipes in the place of files."""
    tasks = tmp_path / TASKS[0] / "default"
    os.chown(bundle(tasks, "another-s", OURS), 1000, 1000)
    bundle(tasks, "open", OURS).chmod(0o777)
    (tasks / "link").symlink_to(bundle(tmp_path, "elsewhere", OURS))
    os.mkfifo(bundle(tasks, "pipe", "", "x") / "runtime")
    (bundle(tasks, "linked", "", "x") / "runtime").symlink_to(tmp_path / "elsewhere/runtime")
    assert recorded(proc) == []


@pytest.mark.parametrize(("running", "code"), [("", 0), ("echo a", 1)])
def test_what_cannot_be_laid_out_ends_a_removal_only_where_it_is_needed(
    proc: Path, tmp_path: Path, running: str, code: int
) -> None:
    (tmp_path / "run/gpushim").mkdir(parents=True)
    (tmp_path / "run/gpushim/runtime").write_text("/bin/sh\n")
    (tmp_path / "removed").touch()
    (tmp_path / "file").touch()  # where a directory cannot be made
    line = f"recorded() {{ {running or ':'}; }}; STUB={tmp_path}/file/stub; keep_stub x {tmp_path}"
    env = {"PATH": "/usr/bin:/bin", "PROC": str(proc), "DPKG_ROOT": str(tmp_path)}
    done = subprocess.run(["/bin/sh", "-euc", f"{SCRIPT.read_text()}\n{line}"], env=env, check=False, timeout=60)
    assert done.returncode == code


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stub as it is laid out, in a directory of the test's, above a runtime that records its call."""
    top = tmp_path_factory.mktemp("stub")
    subprocess.run([TOP / "packaging/install", top / "installed", "main", TOP / "vendor"], check=True)
    (made,) = top.glob("installed/usr/lib/gpushim/*/removed")
    stub = top / "runtime"
    stub.write_text(made.read_text().replace("_top=/usr/lib/gpushim-removed", f"_top={top}"))
    stub.chmod(0o755)
    (top / "containers").mkdir()
    (top / "low").write_text(f"{recorder.build(top)}\n")
    (top / "boot").write_text(Path("/proc/sys/kernel/random/boot_id").read_text())
    (top / "names").touch()
    return stub


def reaches(program: Path, folder: Path, *args: str, code: int = 1) -> bool:
    """Call it in a directory; says whether the low-level runtime got the same call, or else it refused."""
    env = {"RECORD": str(folder / "record.json")}
    done = subprocess.run(
        [program, *args], cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=20
    )
    if (folder / "record.json").exists():
        assert recorder.read(folder / "record.json")["argv"][1:] == list(args)
        return True
    assert (done.returncode, "gpushim was removed, and this container may ask" in done.stderr) == (code, True)
    return False


@pytest.mark.parametrize("args", [args for args, _ in VERBS if args != ["create", "x", "-b"]], ids=str)
def test_it_finds_the_bundle_as_the_launcher_does(program: Path, tmp_path: Path, args: list[str]) -> None:
    """A bundle without a request is created, one with one is not; an update or a restore is none."""
    config = {tuple(args): config for args, config in VERBS}[tuple(args)]
    for text in (LOOKS_LIKE_A_REQUEST, "{}"):
        (tmp_path / "record.json").unlink(missing_ok=True)
        for name in (".", "A", "B", "create", "-b", "a \"b'\nc"):
            (tmp_path / name).mkdir(exist_ok=True)
            (tmp_path / name / "config.json").write_text(text)
        asks = config is not None and not {"update", "restore"} & {*args} and text != "{}"
        assert reaches(program, tmp_path, *args) is not asks


def process_of(*env: str, args: str = '["sh"]', more: str = "") -> str:
    """What most engines write: one line without spaces."""
    variables = ",".join(f'"{entry}"' for entry in env)
    return f'{{"process":{{"terminal":true,"args":{args},"env":[{variables}],"cwd":"/"}},"root":{{}}{more}}}'


VOID, NOTHING, CUDA = "NVIDIA_VISIBLE_DEVICES=void", "NVIDIA_VISIBLE_DEVICES=", "CUDA_VERSION=12.4"
SAYS_NO = {
    process_of(VOID, CUDA): False,
    process_of('A=\\"b\\\\', "B=ü\\n]", CUDA, NOTHING, "C="): False,
    process_of(NOTHING, more=',"annotations":{"a":"b"}'): False,
    process_of("NVIDIA_VISIBLE_DEVICES=none"): True,  # of which the driver's files remain
    process_of(VOID, "NVIDIA_VISIBLE_DEVICES=0"): True,
    process_of("NVIDIA_VISIBLE_DEVICES=voids"): True,
    process_of(VOID, more=',"annotations":{"cdi.k8s.io/x":"y"}'): True,
    process_of(VOID, "NVIDIA_VISIBLE_\\u0044EVICES=0"): True,
}
# Where a word is no variable of the container's.
ELSEWHERE = {
    process_of(CUDA, args=f'["{word}"]'): True for word in (NOTHING, VOID, f'\\"env\\":[\\"{VOID}\\"],\\"cwd\\":\\"')
} | {
    process_of(CUDA, more=f',"annotations":{{"{NOTHING}":"{VOID}"}}'): True,
    process_of(CUDA, more=f',"hooks":{{"prestart":[{{"path":"/x","args":["x"],"env":["{VOID}"]}}]}}'): True,
    process_of(CUDA, f'A=\\"{NOTHING}'): True,
    process_of(CUDA, f'A=,\\"{NOTHING}\\"'): True,
    process_of(CUDA, f"A={VOID}"): True,
}
LINES = {json.dumps(json.loads(text), indent=indent): asks for text, asks in SAYS_NO.items() for indent in ("\t", 4)}
TEXTS = {**WORDS, **SAYS_NO, **ELSEWHERE, **LINES}


@pytest.mark.parametrize(("text", "asks"), TEXTS.items(), ids=range(len(TEXTS)))
def test_what_may_be_a_request_is_refused(program: Path, tmp_path: Path, text: str, asks: bool) -> None:
    (tmp_path / "config.json").write_text(text)
    assert reaches(program, tmp_path, "create", "x") is not asks


def test_a_bundle_that_cannot_be_read_is_refused(program: Path, tmp_path: Path) -> None:
    assert not reaches(program, tmp_path, "create", "x")


def test_a_nul_hides_no_request(program: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(b"\0" + process_of(VOID, "NVIDIA_VISIBLE_DEVICES=0").encode())
    assert not reaches(program, tmp_path, "create", "x")


@pytest.mark.parametrize(
    ("args", "noted"),
    [
        (["create", "x"], True),
        (["create", "--", "x"], True),
        (["restore", "--bundle", "A", "x"], True),
        (["create", "--", "../x"], False),
        (["run", "x"], False),  # nobody deletes it
    ],
)
def test_what_an_engine_begins_is_noted(program: Path, tmp_path: Path, args: list[str], noted: bool) -> None:
    """CRI-O's alone are known by that, after their end."""
    (note := program.parent / "containers/x").unlink(missing_ok=True)
    (tmp_path / "config.json").write_text("{}")
    assert reaches(program, tmp_path, *args)
    assert note.exists() is noted
    assert not (program.parent / "x").exists()


@pytest.mark.parametrize("verb", ["state", "create"])
def test_a_low_level_runtime_that_leads_to_what_stays_is_none(program: Path, verb: str, tmp_path: Path) -> None:
    """It would execute itself without end."""
    low, runc = program.parent / "low", tmp_path / "runc"
    runc.symlink_to(program)
    before = low.read_text()
    low.write_text(f"{runc}\n")
    done = subprocess.run([program, verb, "x"], capture_output=True, text=True, check=False, timeout=10)
    low.write_text(before)
    assert (done.returncode, "and the low-level runtime of its containers too" in done.stderr) == (127, True)


def test_what_cannot_be_taken_away_stays_for_its_containers(tmp_path: Path) -> None:
    """As on a file system that is read-only: a maintainer's script ends at no error of that."""
    (tmp_path / "stub/containers").mkdir(parents=True)
    others = "recorded() { :; }; rm() { false; }; ln() { :; }; note() { echo noted; exit; }"
    script = f"{SCRIPT.read_text()}\nSTUB={tmp_path}/stub; {others}; link_stub x"
    done = subprocess.run(["/bin/sh", "-euc", script], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (0, "noted\n"), done.stderr
