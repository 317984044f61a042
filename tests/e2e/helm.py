"""Helm 4, which Debian has not: its own Go code as a library, from the package helm-python-sdk.

It runs in a process of its own: the library starts threads, which would keep tests from entering namespaces. Run as
a script it reads one call as JSON from stdin and prints the answer as JSON.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

NAME, NAMESPACE = "gpushim", "gpushim"
HERE = importlib.util.find_spec("helm_python")
Values = dict[str, Any]  # as in a file of values


class RefusedError(Exception):
    """Helm would not; the text is what it tells its user."""


def _call(*words: Any, prefix: tuple[str, ...] = (), **more: Any) -> Any:
    import pytest

    if not HERE:
        pytest.skip(
            "helm-python-sdk is not installed beside pytest; it has wheels for x86_64 and Python 3.10 or newer"
        )
    command = [*prefix, sys.executable, "-IB", __file__]
    said = json.dumps([words, more], default=str)
    done = subprocess.run(command, input=said, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    if "refused" in answer:
        raise RefusedError(answer["refused"])
    return answer["answer"]


def version() -> str:
    """Return Helm's version, as in `v4.2.3`."""
    return str(_call("version"))


def lint(chart: Path, values: Values | None = None) -> list[str]:
    """Return what `helm lint --strict` has against a chart with values, information left out.

    Args:
        chart: its directory.
        values: instead of its own.
    """
    found = _call("lint", chart, values or {}, strict=True, namespace=NAMESPACE)
    return [f"{row['path']}: {row['error']}" for row in found["messages"] if row["severity"] > 1]


def package(chart: Path, directory: Path) -> Path:
    """Make of a chart what `helm package` makes: a tgz, named by the chart and its version.

    Args:
        chart: its directory.
        directory: existing one for the tgz.
    """
    return Path(_call("package", chart, destination=directory))


def template(chart: Path, values: Values | None = None, *, name: str = NAME, namespace: str = NAMESPACE) -> str:
    """Return what `helm template` prints.

    Args:
        chart: its directory.
        values: instead of its own.
        name: of the release.
        namespace: of the release.

    Raises:
        RefusedError: the schema or a template refuses the values.
    """
    return str(_dry(chart, values, name, namespace)["manifest"])


def notes(chart: Path, values: Values | None = None) -> str:
    """Return what `helm install` would print at its end; arguments as those of `template`."""
    return str(_dry(chart, values, NAME, NAMESPACE)["notes"])


def _dry(chart: Path, values: Values | None, name: str, namespace: str) -> Any:
    config = {"storage_driver": "memory", "namespace": namespace}
    return _call("install", chart, name, values or {}, namespace=namespace, config=config, dry_run="client")


def pull(reference: str, directory: Path, chart_version: str) -> Path:
    """Pull a chart from a registry that speaks HTTP without TLS; return the archive.

    Args:
        reference: as in `oci://127.0.0.1:5000/gpushim`.
        directory: empty, for the archive.
        chart_version: of the chart.

    Raises:
        RefusedError: Helm would not.
    """
    _call("pull", reference, destination=directory, version=chart_version, plain_http=True)
    (found,) = directory.glob("*.tgz")
    return found


def push(archive: Path, place: str) -> None:
    """Push a packed chart into a registry that speaks HTTP without TLS.

    Args:
        archive: the chart.
        place: as in `oci://127.0.0.1:5000/charts`.

    Raises:
        RefusedError: Helm would not.
    """
    _call("push", archive, place, plain_http=True)


def release(network: str, kubeconfig: Path, action: str, *words: Any, namespace: str = NAMESPACE, **more: Any) -> Any:
    """Change a release in a cluster.

    Args:
        network: file of the network namespace from which the API server is reached.
        kubeconfig: credentials.
        action: `install` or `upgrade`, with chart, name and values; `uninstall` or `status`, with a name.
        words: what belongs to the action.
        namespace: of the release.
        more: options, as those of helm_python.Config's method.

    Returns:
        What Helm answers.

    Raises:
        RefusedError: Helm would not.
    """
    prefix = ("/usr/bin/nsenter", f"--net={network}", "--")
    config = {"kubeconfig_path": str(kubeconfig), "namespace": namespace}
    return _call(action, *words, prefix=prefix, config=config, **more)


def _main() -> None:
    import helm_python

    (action, *words), more = json.load(sys.stdin)
    config = more.pop("config", {})
    try:
        if action == "version":
            answer: Any = helm_python.helm_sdk_version()
        elif action == "lint":
            answer = helm_python.lint(*words, **more)
        elif action in ("pull", "push"):
            answer = str(getattr(helm_python, action)(*words, **more))
        elif action == "package":
            answer = helm_python.package(*words, **more)
        else:
            with helm_python.Config(**config) as found:
                answer = getattr(found, action)(*words, **more)
    except helm_python.HelmError as problem:
        json.dump({"refused": str(problem)}, sys.stdout)
    else:
        json.dump({"answer": answer}, sys.stdout)


if __name__ == "__main__":
    _main()
