"""Which containers need gpushim-runtime for their end, as their shims and monitors tell."""

from __future__ import annotations

from pathlib import Path

from gpuplugin.node import install, uninstall


def process(proc: Path, pid: int, name: str, cwd: Path | None = None, words: str = "") -> None:
    (folder := proc / str(pid)).mkdir(parents=True)
    (folder / "comm").write_text(f"{name}\n")
    (folder / "cmdline").write_bytes(words.replace(" ", "\0").encode())
    if cwd:
        (folder / "cwd").symlink_to(cwd)


def bundle(tasks: Path, name: str, runtime: str, file: str) -> Path:
    (folder := tasks / name).mkdir(parents=True)
    (folder / file).write_text(runtime)
    return folder


def test_containers_by_their_engine_s_files_and_command_lines(tmp_path: Path) -> None:
    proc, tasks = tmp_path / "proc", tmp_path / "k8s.io"
    pod = bundle(tasks, "pod", "/usr/bin/gpushim-runtime", "runtime")
    bundle(tasks, "one", '{"BinaryName": "/usr/bin/gpushim-runtime"}', "options.json")
    bundle(tasks, "other", "/usr/bin/runc", "runtime")
    process(proc, 7, "containerd-shim", pod)
    process(proc, 8, "conmon", words="/usr/bin/conmon -b x -c two -r /usr/bin/gpushim-runtime ")
    process(proc, 9, "conmon", words="/usr/bin/conmon -c three -r /usr/bin/crun ")
    process(proc, 10, "sh", words="sh -c /usr/bin/gpushim-runtime ")
    assert uninstall.users(str(proc)) == ["one", "pod", "two"]


def test_what_tells_which_settings_are_meant() -> None:
    words = ["containerd", "--config=/etc/x", "--runtime-name=gpu", "--set-as-default", "--cdi"]
    assert install.named(words) == ["containerd", "--config=/etc/x", "--runtime-name=gpu"]
