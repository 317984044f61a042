"""A bundle and the low-level runtime behind the shim, called as containerd's shim calls it, but by the test."""

from __future__ import annotations

import contextlib
import json
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from e2e.expect import INSIDE, PROBE, probe
from e2e.leftovers import until
from e2e.trees import TOP
from e2e.witness import RUNC
from fakehost import Host

RUNTIME = TOP / "bin" / "gpushim-runtime"
CALL_SECONDS = 60.0
# The probe makes nodes, as a container of Docker's may.
CAPABILITIES = ["CAP_MKNOD", "CAP_DAC_OVERRIDE", "CAP_KILL"]
Done = subprocess.CompletedProcess[str]


class Bundle:
    """One bundle, of which `runc spec` wrote the config.json.

    Args:
        directory: to make; it also keeps the runtime's state and logs.
        rootfs: of the container.
        env: the engine's environment, with the shim's settings.
        prefix: command that executes the runtime, such as one that enters a namespace.
        runtime: to call.
    """

    def __init__(
        self,
        directory: Path,
        rootfs: Path,
        env: dict[str, str],
        prefix: tuple[str, ...] = (),
        runtime: Path = RUNTIME,
    ) -> None:
        directory.mkdir()
        self.directory, self.rootfs, self.env, self.prefix, self.runtime = directory, rootfs, env, prefix, runtime
        self.id = f"gpushim-test-{uuid.uuid4().hex}"
        self.config, self.log = directory / "config.json", directory / "log.json"
        subprocess.run([RUNC, "spec", "--bundle", str(directory)], check=True)
        self.plain = json.loads(self.config.read_text())
        self.plain["root"] = {"path": str(rootfs)}
        self.plain["process"]["terminal"] = False
        self.plain["process"]["capabilities"] = {
            name: [*CAPABILITIES] for name in ("bounding", "effective", "permitted")
        }
        probe_mount = {"destination": INSIDE, "source": str(PROBE), "type": "bind", "options": ["bind", "ro"]}
        self.plain["mounts"].append(probe_mount)

    def ask(self, *env: str, args: list[str], **members: Any) -> None:
        """Write config.json again, with these variables and this command, and with other members replaced."""
        spec = json.loads(json.dumps({**self.plain, **members}))
        spec["process"]["env"] += env
        spec["process"]["args"] = args
        self.config.write_text(json.dumps(spec))

    @property
    def spec(self) -> Any:
        """What config.json says now."""
        return json.loads(self.config.read_text())

    def call(self, *words: str, check: bool = True, **options: Any) -> Done:
        """Call the runtime with its global options and these words."""
        state = [f"--root={self.directory}/state", "--log", str(self.log), "--log-format", "json"]
        command = [*self.prefix, str(self.runtime), *state, *words]
        # Files instead of pipes: the container that `create` leaves behind would keep a pipe open.
        streams = {name: (self.directory / name).open("w+") for name in ("stdout", "stderr")}
        with contextlib.ExitStack() as stack:
            for stream in streams.values():
                stack.enter_context(stream)
            options = {"env": self.env, "stdin": subprocess.DEVNULL, "timeout": CALL_SECONDS, **streams, **options}
            status = subprocess.run(command, check=False, **options).returncode
            said = {name: (self.directory / name).read_text() for name in streams}
        assert not check or status == 0, f"{command}: {status}\n{said}"
        return subprocess.CompletedProcess(command, status, said["stdout"], said["stderr"])

    def run(self, *, check: bool = True, **options: Any) -> Done:
        """Run the container until it ends."""
        return self.call("run", "--bundle", str(self.directory), self.id, check=check, **options)

    def live(self, *, check: bool = True, prefix: tuple[str, ...] | None = None, **options: Any) -> Done:
        """Create the container, start it, wait until it ends, and delete it, as engines do.

        Returns what the container said, with the status of `create` or `start`. Another prefix is for later calls.
        """
        files = {name: self.directory / f"{name} of the container" for name in ("stdout", "stderr")}
        with contextlib.ExitStack() as stack:
            streams = {name: stack.enter_context(path.open("w")) for name, path in files.items()}
            words = ("create", "--bundle", str(self.directory), self.id)
            done = self.call(*words, check=False, **{**options, **streams})
        if not done.returncode:
            own, self.prefix = self.prefix, self.prefix if prefix is None else prefix
            try:
                done = self.call("start", self.id, check=check)
                assert done.returncode or until(lambda: self.state() == "stopped", CALL_SECONDS)
                self.call("delete", self.id, check=check)
            finally:
                self.prefix = own
        said = [path.read_text() for path in files.values()]
        assert not check or not done.returncode, said
        return subprocess.CompletedProcess(done.args, done.returncode, *said)

    def look(self, host: Host, indices: list[int], *env: str, **members: Any) -> str:
        """Run a container with these variables that looks for the host's GPUs; returns its report."""
        self.ask(*env, args=probe(host, indices), **members)
        return self.run().stdout

    def state(self) -> str:
        """Return in which state the runtime holds the container to be."""
        return str(json.loads(self.call("state", self.id).stdout)["status"])

    @contextlib.contextmanager
    def created(self) -> Iterator[None]:
        """Create the container for the block, and delete it afterwards."""
        self.call("create", "--bundle", str(self.directory), self.id)
        try:
            yield
        finally:
            self.call("delete", "--force", self.id)

    def logged(self) -> Any:
        """Return the runtime's last error line, where engines look for it."""
        return json.loads(self.log.read_text().splitlines()[-1])
