"""A child that a create leaves behind to do the hook's work: its Python runs already when the hook is called.

In config.json the hook is a shell. It looks among the children of its parent, the low-level runtime that the create
has become, for ours; asks it, shows what it says, and ends with its exit code. Where none answers (somebody else
starts the bundle, no process could be made, it is not ready), the shell becomes gpushim-hook. It never looks at
children of others, which may be processes of containers.

Only root or the create's own user can open the child's pipes. Of the create's files the child keeps none, and it
looks all the while whether its parent is still there.

Out of scope: what the child does (gpuhook.wait). On the create path.
"""

from __future__ import annotations

import posix
import sys

from gpushim.oci.edits import HOOK_NAME, SHELL, hook_args

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

    from gpushim.ground.model import Hook

# The child's 0 is the pipe for the shell's pid, its 1 that of its answer. The shell's stdin is 5, for `read` has
# another as 0. /proc must be that of our pids. `echo` would change a backslash.
SCRIPT = f"""\
ask() {{
  trap '' PIPE
  echo $$ >&4
  while read -r word rest <&3; do
    case $word in
      begun) begun=yes ;;
      exit) exit "$rest" ;;
      *) printf '%s\\n' "$word $rest" >&6 ;;
    esac
  done
}}
begun='' children=''
{{
  [ ! /proc/self -ef "/proc/$$" ] || read -r children <"/proc/$PPID/task/$PPID/children" || :
  for child in $children; do
    if read -r name <"/proc/$child/comm" && [ "$name" = {HOOK_NAME} ]; then
      ask 3<"/proc/$child/fd/1" 4>>"/proc/$child/fd/0" 5<&0
    fi
  done
}} 6>&2 2>/dev/null
[ "$begun" ] || exec "$0" "$@"
sleep 1 # crun waits for a SIGCHLD of the hook, and the kernel makes one of two that come at once
echo 'gpushim-hook: the process that made the container ready was killed' >&2
exit 1
"""
MOST = 1 << 20  # bytes of a config.json: of a large one the create has the memory that bounds.HOOK_MEMORY is for


def through_shell(hook: Hook) -> Hook:
    """Return a plan's entry of hooks.prestart as a hook that asks a child before it becomes gpushim-hook."""
    return {**hook, "path": SHELL, "args": ["sh", "-c", SCRIPT, hook["path"], *hook["args"][1:]]}


def start(hook: Hook) -> None:
    """Start the child that a hook of `through_shell` asks, before this process becomes the low-level runtime.

    Where that is not possible, do nothing.
    """
    program, argv = hook["args"][3], hook_args(hook)
    try:
        pipes = [*posix.pipe(), *posix.pipe()]
        if min(pipes) < 3:
            return  # a standard stream came closed
        parent = str(posix.getpid())
        if not posix.fork():
            _wait(program, [program, "wait", parent, *argv], pipes)
    except OSError:
        pass  # no more processes or files


def _wait(program: str, argv: list[str], pipes: list[int]) -> NoReturn:
    """Keep nothing of the create's but the pipes, and become gpushim-hook without a start of Python."""
    try:
        for fd, number in zip((pipes[0], pipes[3], pipes[1]), (0, 1, 2)):  # 2: else 0 would be at its end before
            posix.dup2(fd, number)
        posix.closerange(3, 1 + max(map(int, posix.listdir("/proc/self/fd"))))
        posix.chdir("/")
        comm = posix.open("/proc/self/comm", posix.O_WRONLY)
        posix.write(comm, HOOK_NAME.encode())
        posix.close(comm)
        for name in [name for name in sys.modules if name.partition(".")[0] == "gpushim"]:
            del sys.modules[name]  # it brings its own
        sys.argv = argv
        script = posix.open(program, posix.O_RDONLY)
        text = posix.read(script, 1 << 16)
        posix.close(script)
        exec(compile(text, program, "exec"), {"__file__": program, "__name__": "__main__"})  # noqa: S102
    finally:
        posix._exit(1)
