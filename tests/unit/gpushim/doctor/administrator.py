"""Someone who does exactly what a fix of the doctor says, on a patient: commands as commands, sentences by hand.

gpushim's own commands are called as they are; what an engine does when it is restarted is played.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import tomlkit
from click.testing import CliRunner

from gpushim.cli import main
from gpushim.containers.kubelet import CLAIMS
from gpushim.engines import podman
from gpushim.engines.containerd import process
from gpushim.engines.docker import dockerd
from gpushim.engines.processes import programs, running, units
from gpushim.engines.settings import toml
from gpushim.ground import system
from gpushim.refresh import plugin_socket
from unit.gpushim.doctor import dra_states, nodes
from unit.gpushim.doctor.engine_states import K3S
from unit.gpushim.doctor.patient import HOOK, NVIDIA_HOOK, RUNTIME, Patient

COMMAND = re.compile(r"(gpushim|chroot|systemctl|service|rm|chmod|install|cat|find|mv) |/etc/init.d/")
STEPS: list[tuple[re.Pattern[str], Callable[..., None]]] = []


def step(pattern: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    def keep(act: Callable[..., None]) -> Callable[..., None]:
        STEPS.append((re.compile(pattern), act))
        return act

    return keep


class Administrator:
    def __init__(self, patient: Patient, held: contextlib.ExitStack) -> None:
        self.patient, self.held, patch = patient, held, patient.patch
        self.on_gpus: list[str] = []  # what was done that a reset takes
        conf = f"{patient.top}/etc/containers/containers.conf"
        said = f'echo "msg=\\"decode configuration {conf}: correct me\\"" >&2; exit 1'
        patient.script(
            "usr/bin/podman", f"[ $(head -c 9 {conf} | wc -c) = 1 ] && {{ {said}; }}; echo podman version 5.4.2"
        )
        files = [Path(patient.config), *patient.top.rglob("*")]
        self.healthy = {path: path.read_bytes() for path in files if path.is_file()}
        self.engines = list(patient.host.engines)
        self.answer = patient.docker
        patch.setattr(running, "look", lambda *_: (patient.host.engines, []))
        patch.setattr(programs, "DIRECTORIES", (f"{patient.root}/usr/bin", *programs.DIRECTORIES))
        words = units.systemctl
        patch.setattr(
            units, "systemctl", lambda verb, unit, engine=None, top=patient.root: words(verb, unit, engine, top)
        )
        patch.setattr(units, "restart", lambda arguments: self.restart(arguments[-1]))
        patch.setattr(dockerd, "LINKS", f"{patient.root}/usr/local/bin")
        patch.setattr(dockerd, "PATH", f"{patient.root}/usr/bin")
        patch.setattr(process, "ask_cri", lambda *_: (None, ""))
        folders = [f"{patient.root}{folder}" for folder in podman.SYSTEM_DIRECTORIES]
        patch.setattr(podman, "default_config", lambda: f"{folders[-1]}/containers.conf.d/{podman.FILE}")
        listed = [f"{folder}/containers.conf{suffix}" for folder in folders for suffix in ("", ".d")]
        patch.setattr(podman, "_read_by_podman", lambda path: listed)
        patch.setenv("GPUSHIM_CONFIG", patient.config)
        installed = patient.top / str(RUNTIME).lstrip(
            "/"
        )  # Podman's programs are looked for below the patient's root
        installed.parent.mkdir(parents=True)
        installed.symlink_to(RUNTIME)
        patch.setenv("NVIDIA_CTK_CONFIG_FILE_PATH", f"{patient.root}/etc/nvidia-container-runtime/config.toml")

    def does(self, fix: str) -> None:
        """Do it, step by step; whoever has no idea what is meant fails."""
        for joined, said in re.findall("(; then | && |; |^)(.*?)(?=; then | && |; |$)", fix):
            assert joined != " && " or COMMAND.match(said), f"no command for a shell: {said}"
            matches = [(pattern.fullmatch(said), act) for pattern, act in STEPS]
            known = [(match, act) for match, act in matches if match]
            assert known, f"what does this mean: {said}"
            match, act = known[0]
            act(self, *match.groups())
        self.patient.reread()

    def cured(self, *cures: str) -> None:
        """Have the driver say that all is well, if that is what its devices need (reason.CURES)."""
        if all(row["cure"] in cures for row in dra_states.unhealthy(self.patient)):
            dra_states.our_driver(self.patient, self.held)

    def serves_claims(self) -> bool:
        """Return whether the node's plugin is to serve claims."""
        kept = ((self.patient.top / path).exists() for path in (dra_states.PLUGINS, f"{nodes.KUBELET}/{CLAIMS}"))
        return any(kept)

    def restart(self, unit: str) -> None:
        """Start an engine again: it reads its settings, and was started later than all that is there."""
        k3s = self.patient.top / K3S / "config.toml"
        if unit.startswith("k3s"):
            generate(k3s)
            return
        patient = self.patient
        if unit.startswith("kubelet"):
            self.held.enter_context(patient.listening())
            (patient.top / "var/lib/kubelet/device-plugins/kubelet_internal_checkpoint").unlink(missing_ok=True)
            return
        if unit.startswith("crio"):
            known = toml.merged([f"{patient.root}/etc/crio/crio.conf", f"{patient.root}/etc/crio/crio.conf.d"])
            patient.write("loaded.toml", tomlkit.dumps(known))
            return
        name = "dockerd" if unit.startswith("docker") else "containerd"
        number = next((n for n, each in enumerate(patient.host.engines) if each.name == name), None)
        if number is None:
            patient.host.engines.append(next(each for each in self.engines if each.name == name))
            number = len(patient.host.engines) - 1
        patient.host.engines[number] = replace(patient.host.engines[number], started=time.time() + 60)
        patient.patch.setattr("gpushim.engines.docker.dockerd.ask", self.answer)
        if name == "dockerd":
            place = Path(patient.host.engines[number].host_path(patient.state))
            if place != Path(patient.state):  # rootlesskit makes its links again
                place.parent.mkdir(parents=True, exist_ok=True)
                place.unlink(missing_ok=True)
                place.symlink_to(patient.state)
            self._load(patient.host.engines[number])

    def _load(self, engine: running.Engine) -> None:
        """Take what dockerd takes from its file."""
        path, info = Path(engine.host_path(engine.config)), self.patient.info
        read = json.loads(path.read_text() or "{}") if path.exists() else {}
        entries = {name: {} if "runtimeType" in entry else entry for name, entry in read.get("runtimes", {}).items()}
        info["Runtimes"] = {**entries, "runc": {"path": "runc"}}
        info["DefaultRuntime"] = read.get("default-runtime", "runc")
        if read.get("features", {}).get("cdi"):
            info["CDISpecDirs"] = read.get("cdi-spec-dirs", ["/etc/cdi", "/var/run/cdi"])
        if "cdi-spec-dirs" in read:
            info["CDISpecDirs"] = read["cdi-spec-dirs"]
        self.find_devices()

    def find_devices(self) -> None:
        """Take up, as dockerd does at once, what is in the directories of specs."""
        info = self.patient.info
        found = [path for folder in info["CDISpecDirs"] or () for path in Path(folder).glob("nvidia.com-gpu.json")]
        info["DiscoveredDevices"] = [{"ID": "nvidia.com/gpu=0"}] if found else info["DiscoveredDevices"]


def generate(config: Path) -> None:
    """Write settings as k3s does: from a template, which may stand for what is built in."""
    template = config.with_name("config.toml.tmpl")
    base = 'version = 2\n[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]\n'
    made = template.read_text() if template.exists() else '{{ template "base" . }}'
    lines = made.replace('{{ template "base" . }}', base).splitlines(keepends=True)
    config.write_text("".join(line for line in lines if not line.startswith("{{ ")))  # conditions, which are met


@step(r"export HOME=(\S+) XDG_RUNTIME_DIR=(\S+)|export HOME=(\S+)")
def _(self: Administrator, home: str, folder: str, only: str) -> None:
    for name, value in (("HOME", home or only), ("XDG_RUNTIME_DIR", folder)):
        if value:
            self.patient.patch.setenv(name, value)


@step(r"set '([^']+)' under \[(\S+)\](?: and '([^']+)' under \[(\S+)\])? in (\S+)")
def _(self: Administrator, line: str, section: str, other: str | None, another: str | None, path: str) -> None:
    assert path == self.patient.config
    nodes.configure(self.patient, section, line)
    if other and another:
        nodes.configure(self.patient, another, other)


@step(
    r"keep one of them: (systemctl disable --now gpushim-device-plugin, or )?delete NVIDIA's daemon set with kubectl"
    r"(?:, or gpushim-device-plugin's)?"
)
def _(self: Administrator, unit: str | None) -> None:
    there = (self.patient.top / "usr/lib/systemd/system/gpushim-device-plugin.service").exists()
    assert bool(unit) == there
    theirs = self.patient.top / "var/lib/kubelet/device-plugins/nvidia-gpu.sock"
    if theirs.exists():
        theirs.unlink()
    else:  # NVIDIA's DRA driver
        nodes.our_plugin(self.patient, self.held)


@step(r"move them to plugins io\.containerd\.grpc\.v1\.cri in (\S+)")
def _(self: Administrator, path: str) -> None:
    text = Path(path).read_text()
    assert "[plugins.cri." in text
    Path(path).write_text(text.replace("[plugins.cri.", '[plugins."io.containerd.grpc.v1.cri".'))


@step(r"delete that pod with kubectl: its successor gets another device")
def _(self: Administrator) -> None:
    nodes.checkpoint(self.patient)


@step(r"drain this node with kubectl")
def _(self: Administrator) -> None:
    pass  # no pod is left that has a device


@step("gpushim device-plugin take")
def _(self: Administrator) -> None:
    if dra_states.asked(self.patient) is None:
        nodes.our_plugin(self.patient, self.held)
    elif sick := dra_states.unhealthy(self.patient):
        if self.on_gpus == [f"end {sick[0]['gpu']}", "release", f"reset {sick[0]['gpu']}"]:
            self.cured("reset", "wait")
    else:
        dra_states.our_driver(self.patient, self.held)


@step(
    r"reboot, or (end) what uses (\S+)|gpushim device-plugin (release)|chroot \S+ nvidia-smi --gpu-(reset) -i (\S+)"
)
def _(self: Administrator, *words: str | None) -> None:
    """Nothing is well before `take`, which looks at what was done, and in which order."""
    self.on_gpus.append(" ".join(filter(None, words)))


@step(
    r"(reboot)|(exchange) GPU-1 \(RMA\)|do what (nvml) says, or reboot where that is ok"
    r"|(end) what uses GPU-1 together with other GPUs"
)
def _(self: Administrator, *words: str | None) -> None:
    cures = {"reboot": ("reboot", "reset", "wait"), "exchange": ("exchange",), "nvml": ("nvml",), "end": ("end",)}
    self.cured(*cures[next(filter(None, words))])


@step(r"correct (\S+), or name another under \[device-plugin\] in (\S+)")
def _(self: Administrator, path: str, config: str) -> None:
    assert config == self.patient.config
    nodes.configure(self.patient, "device-plugin", 'kubeconfig = ""')


@step(r"wait until it is over, 60 s after the last one")
def _(self: Administrator) -> None:
    self.cured("wait")


@step(r"gpushim doctor podman")
def _(self: Administrator) -> None:
    pass  # whoever does this looks again anyway


@step(r"install Docker 28\.2 or newer, or use docker run --runtime=nvidia")
def _(self: Administrator) -> None:
    self.patient.info.update(ServerVersion="28.2.0", DiscoveredDevices=[{"ID": "nvidia.com/gpu=0"}])


@step(r"gpushim (.*)")
def _(self: Administrator, words: str) -> None:
    if words == "refresh":
        assert self.patient.refresh()[0] == 0
        self.find_devices()
        if dra_states.asked(self.patient) is not None:
            dra_states.our_driver(self.patient, self.held)
        elif os.path.exists(f"{self.patient.state}/{plugin_socket.SOCKET}"):
            nodes.our_plugin(self.patient, self.held)  # it goes by the snapshot that there is now
        return
    done = CliRunner().invoke(main, shlex.split(words))
    assert done.exit_code == 0, (words, done.output, done.exception)


@step("systemctl restart gpushim-device-plugin")
def _(self: Administrator) -> None:
    """It listens, says that all is well, and kubelet knows what the host has."""
    if self.serves_claims():
        dra_states.our_driver(self.patient, self.held)
        return
    nodes.our_plugin(self.patient, self.held)
    nodes.checkpoint(self.patient)


@step(r"delete the DRA driver's pod on this node with kubectl: .*|remove one of them from this node: .*")
def _(self: Administrator) -> None:
    """It listens, and says that all is well."""
    for path in (self.patient.top / dra_states.PLUGINS).glob("dra*"):
        path.unlink()
    dra_states.our_driver(self.patient, self.held)


@step(r"see with `journalctl -u gpushim-device-plugin -u gpushim-dra-driver-cluster` why, and mend that")
def _(self: Administrator) -> None:
    assert self.patient.host.unit("gpushim-device-plugin.service")


@step(r"see in the log of its pod's container cluster why, and mend that")
def _(self: Administrator) -> None:
    assert not self.patient.host.unit("gpushim-device-plugin.service")


@step(r"delete its pods with kubectl, and the claim if it was not made for one of them: .*")
def _(self: Administrator) -> None:
    dra_states.claimed(self.patient, self.patient.saved()["gpus"][0]["uuid"])


@step(r"upgrade containerd to 2\.0 or newer, which does CDI by itself")
def _(self: Administrator) -> None:
    config = self.patient.top / "containerd.toml"
    config.write_bytes(self.healthy[config])


@step(r"systemctl (?:re)?start (\S+)")
def _(self: Administrator, unit: str) -> None:
    assert os.path.isdir(f"{self.patient.root}{system.SYSTEMD}"), "systemd does not run"
    self.restart(unit)


@step(r"service (\S+) (?:re)?start")
def _(self: Administrator, name: str) -> None:
    assert os.access(f"{self.patient.root}/etc/init.d/{name}", os.X_OK), f"{name}: unrecognized service"
    self.restart(name)


@step(r"restart (\w+) \(process \d+\) the way it was started|start (\w+) the way this host starts it")
def _(self: Administrator, name: str | None, other: str | None) -> None:
    self.restart(name or other or "")


@step(r"systemctl disable --now (.*)")
def _(self: Administrator, names: str) -> None:
    for name in names.split():
        for path in (self.patient.top / "etc/systemd/system").glob(f"*.wants/{name}"):
            path.unlink()


@step(r"rm (?:-f )?(\S+)|remove (\S+) or its package")
def _(self: Administrator, path: str | None, other: str | None) -> None:
    place = Path(path or other or "")
    if path == "/var/run/cdi/nvidia.yaml":
        place = self.patient.top / "var/run/cdi/nvidia.yaml"
    assert self.patient.folder in place.parents, place
    place.unlink(missing_ok=path is not None)


@step(r"put (\S+) on the PATH of dockerd")
def _(self: Administrator, folder: str) -> None:
    engines = self.patient.host.engines
    engines[:] = [replace(each, environ={"PATH": f"{folder}:{each.environ['PATH']}"}) for each in engines]


@step(r"install runc where dockerd and containerd see it")
def _(self: Administrator) -> None:
    self.patient.script("usr/sbin/runc", "echo runc version 1.3.6")


@step(r"install gpushim-nvidia-compat")
def _(self: Administrator) -> None:
    folder = Path(self.patient.root, "usr/bin")
    for name, target in ((NVIDIA_HOOK, HOOK), ("nvidia-container-runtime", RUNTIME)):
        (folder / name).unlink(missing_ok=True)
        os.symlink(target, folder / name)


@step(r"correct (\S+)")
def _(self: Administrator, path: str) -> None:
    Path(path).write_bytes(self.healthy[Path(path)])
    if path == self.patient.config:  # which a running device plugin notices
        nodes.our_plugin(self.patient, self.held)


@step(r"(?:reinstall|remove) (\S+)(?: and install it from its package)?|install .*\(package (podman|docker\.io).*\)")
def _(self: Administrator, path: str | None, name: str | None) -> None:
    place = Path(path) if path else self.patient.top / "usr/bin" / {"docker.io": "dockerd"}.get(str(name), str(name))
    place.unlink(missing_ok=True)
    place.write_bytes(self.healthy[place])
    place.chmod(0o755)
    if name == "docker.io":
        self.restart("docker")


@step(r"install gpushim where dockerd sees it")
def _(self: Administrator) -> None:
    for engine in self.patient.host.engines:
        if engine.root:
            place = Path(engine.root + str(RUNTIME))
            place.parent.mkdir(parents=True, exist_ok=True)
            place.touch(0o755)


@step(r"add (\S+) to cdi-spec-dirs in (\S+)")
def _(self: Administrator, folder: str, path: str) -> None:
    settings = json.loads(Path(path).read_text())
    Path(path).write_text(json.dumps({**settings, "cdi-spec-dirs": ["/etc/cdi", folder]}))


@step(r"set write-spec = true under \[cdi\] in (\S+)")
def _(self: Administrator, path: str) -> None:
    Path(path).write_text(Path(path).read_text().replace("write-spec = false", "write-spec = true"))


@step(r"move --add-runtime from the command line of dockerd into (\S+)")
def _(self: Administrator, path: str) -> None:
    engines = self.patient.host.engines
    Path(path).write_text(json.dumps({"runtimes": {"kata": {"path": "/usr/bin/kata"}}}))
    engines[:] = [replace(each, argv=each.argv[:1]) if each.name == "dockerd" else each for each in engines]


@step(r"add (\S+) to cdi_spec_dirs under \[crio.runtime\]")
def _(self: Administrator, folder: str) -> None:
    path = self.patient.top / "etc/crio/crio.conf"
    path.write_text(path.read_text().replace("cdi_spec_dirs = [", f'cdi_spec_dirs = ["{folder}", '))


@step(r"once no container of gpushim-runtime runs, set '(low-level = .*)' under \[runtime\] in (\S+)")
def _(self: Administrator, setting: str, path: str) -> None:
    Path(path).write_text(re.sub("low-level = .*", setting, Path(path).read_text()))


@step(r"set output-directory under \[cdi\] in (\S+) to (\S+)")
def _(self: Administrator, path: str, folder: str) -> None:
    Path(path).write_text(re.sub("output-directory = .*", f'output-directory = "{folder}"', Path(path).read_text()))


@step(r"read what gpushim migrate says of (.*), and take it out of (\S+)")
def _(self: Administrator, keys: str, path: str) -> None:
    names = [key.rpartition(".")[2] for key in keys.split()]
    lines = Path(path).read_text().splitlines(keepends=True)
    Path(path).write_text("".join(line for line in lines if line.partition(" ")[0] not in names))


@step(r"take it out of disabled_plugins in (\S+)")
def _(self: Administrator, path: str) -> None:
    Path(path).write_text(re.sub("(?m)^disabled_plugins = .*\n", "", Path(path).read_text()))


@step(r"upgrade k3s to a release whose containerd is 2\.0 or newer, which does CDI by itself")
def _(self: Administrator) -> None:
    config = Path(next(each for each in self.patient.host.engines if each.name == "containerd").config)
    config.write_text(config.read_text().replace("enable_cdi = false", "enable_cdi = true"))


@step(r"see why the daemon set gpushim-device-plugin has no pod on this node that is Ready .*")
def _(self: Administrator) -> None:
    if self.serves_claims():
        dra_states.our_driver(self.patient, self.held)
        return
    assert self.patient.host.by_node
    self.held.enter_context(self.patient.listening())


@step(r"see with `journalctl -u gpushim-device-plugin` why it does not run")
def _(self: Administrator) -> None:
    assert self.patient.host.unit("gpushim-device-plugin.service")


@step(r"install gpushim-device-plugin or NVIDIA's .*")
def _(self: Administrator) -> None:
    assert not self.patient.host.by_node
    self.held.enter_context(self.patient.listening())


@step(r"delete the device plugin's pod on this node with kubectl: .*")
def _(self: Administrator) -> None:
    self.held.enter_context(self.patient.listening())


@step(r"(echo .* \| .*kubectl .* apply -f -|(?:chmod|install -[dT]|cat -v|find|mv -(?:t|iT)) .*)")
def _(self: Administrator, line: str) -> None:
    subprocess.run(["/bin/sh", "-c", line], input=b"y\n", check=True, timeout=20)


@step(r"run this on a node of the cluster")
def _(self: Administrator) -> None:
    (self.patient.top / "var/lib/kubelet/device-plugins").mkdir(parents=True)


@step(r"see its log if it still does not answer|use docker run --runtime=nvidia|`kubectl get pods -A .*")
def _(self: Administrator) -> None:
    pass  # nothing to do in a state that is well now
