"""Signatures by a key of gpg's. A release without one has none, and says so."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from release.steps import PATH, ReleaseError, run

GPG = ("gpg", "--batch", "--no-tty", "--yes")


@dataclass(frozen=True)
class Key:
    """A secret key that gpg has.

    Args:
        fingerprint: of the primary key.
    """

    fingerprint: str

    @classmethod
    def of(cls, name: str) -> Key | None:
        """Find the key, and sign something with it; without a name there is none.

        Args:
            name: a fingerprint, or what else gpg takes for a user.

        Raises:
            ReleaseError: gpg has no such secret key, or cannot use it.
        """
        if not name:
            return None
        try:
            listed = run(*GPG, "--with-colons", "--list-secret-keys", name)
        except ReleaseError:
            raise ReleaseError(
                f'gpg has no secret key "{name}"; "gpg --list-secret-keys" shows those that it has'
            ) from None
        found = re.findall(r"^sec:.*\n(?:.*\n)*?fpr:+([0-9A-F]+):", listed, re.MULTILINE)
        if len(found) != 1:
            raise ReleaseError(f'gpg has {len(found)} secret keys for "{name}"; give the fingerprint of one')
        key = cls(found[0])
        run(*GPG, "--local-user", key.fingerprint, "--output", "/dev/null", "--detach-sign", "/dev/null")
        return key

    def public(self, file: Path) -> None:
        """Write the public key, as apt, rpm and gpg read it."""
        run(*GPG, "--armor", "--export-options", "export-minimal", "--output", file, "--export", self.fingerprint)

    def detached(self, file: Path, signature: Path) -> None:
        """Sign a file beside it."""
        run(*self._with(), "--armor", "--detach-sign", "--output", signature, file)

    def clear(self, file: Path, signed: Path) -> None:
        """Sign a text in itself, into another file."""
        run(*self._with(), "--clearsign", "--output", signed, file)

    def rpm(self, file: Path) -> None:
        """Put a signature into an rpm."""
        program = shutil.which("gpg", path=PATH)  # Debian's rpm looks for gpg2
        defines = ("--define", f"__gpg {program}", "--define", f"_gpg_name {self.fingerprint}")
        run("rpmsign", *defines, "--addsign", file)

    def _with(self) -> tuple[str, ...]:
        return (*GPG, "--digest-algo", "SHA512", "--local-user", self.fingerprint)
