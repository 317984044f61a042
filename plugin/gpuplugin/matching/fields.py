"""Fields of an object of the API, read one by one: what is wrong with them, and what is not known here.

Out of scope: which objects there are (manifests.py).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from gpuplugin.settings.forms import ALIKE, LABEL, show, suggest
from gpushim.ground.bounds import LISTED
from gpushim.ground.errors import quote

if TYPE_CHECKING:
    from collections.abc import Sequence

# Of selectors of a request or class, requests, constraints, configs, and requests of these (resource.k8s.io/v1).
MOST = 32

LABELLING = ("labels", "annotations")  # of metadata
EXPRESSION = 10 << 10  # bytes of one (resource.k8s.io/v1, CELSelectorExpressionMaxLength)
LONGEST = 253  # characters of an object's name
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")  # RFC 1123


class Form:
    """Reads values, and collects what is not as it is known here, and what is wrong whatever there is to know."""

    def __init__(self) -> None:
        self.unsure: list[str] = []
        self.wrong: list[str] = []

    def suggested(self, name: str, known: Sequence[str]) -> str:
        """Return which known name is meant, of the first wrong ones; others are of a later Kubernetes."""
        return suggest(name, known, ALIKE) if len(self.unsure) + len(self.wrong) < LISTED else ""

    def object(self, value: Any, where: str, known: Sequence[str] = ()) -> dict[str, Any]:
        """Return an object; none where there is none. Without `known` it may have anything."""
        if value is None:
            return {}
        if not isinstance(value, dict):
            self.wrong.append(f"{where} is {show(value)}; write an object")
            return {}
        for key in map(str, value):
            if known and key not in known:
                if near := self.suggested(key, known):
                    self.wrong.append(f"{where} has no field {quote(key)}{near}")
                else:
                    self.unsure.append(f"{where}.{key} is not known here")
        return value

    def list(self, value: Any, where: str, most: int = 0) -> list[Any]:
        """Return a list; an empty one where there is none. It may have `most`, if that is not 0."""
        if value is None or isinstance(value, list):
            if most and len(value or ()) > most:
                self.wrong.append(f"{where} has {len(value or ())}; write {most} at most")
            return value or []
        self.wrong.append(f"{where} is {show(value)}; write a list")
        return []

    def text(self, value: Any, where: str) -> str:
        """Return a text, which must be there."""
        if isinstance(value, str) and value.strip():
            return value
        self.wrong.append(f"{where} is {show(value)}; write a text")
        return ""

    def label(self, value: Any, where: str) -> str:
        """Return a name that is a DNS label."""
        text = self.text(value, where)
        if text and not LABEL.fullmatch(text):
            self.wrong.append(f"{where} is {show(text)}; write small letters, digits and -")
        return text

    def metadata(self, value: Any) -> str:
        """Return an object's name, or what the API server makes one of, out of its metadata."""
        data = self.object(value, "metadata")
        for key in LABELLING:
            for name, text in self.object(data.get(key), f"metadata.{key}").items():
                if not isinstance(text, (str, type(None))):
                    self.wrong.append(f"metadata.{key}.{quote(str(name))} is {show(text)}; write a text, in quotes")
        found = {key: self.text(data[key], f"metadata.{key}") for key in ("name", "generateName") if data.get(key)}
        for key, text in found.items():
            whole = f"{text[:-1]}a" if key == "generateName" and text.endswith("-") else text
            self._subdomain(text, whole, f"metadata.{key}")
        if not found:
            self.wrong.append("metadata.name is missing; write one")
        return next(iter(found.values()), "")

    def named(self, value: Any, where: str) -> str:
        """Return the name of an object."""
        text = self.text(value, where)
        self._subdomain(text, text, where)
        return text

    def _subdomain(self, text: str, whole: str, where: str) -> None:
        if text and not (_SUBDOMAIN.fullmatch(whole) and len(whole) <= LONGEST):
            self.wrong.append(f"{where} is {show(text)}; write small letters, digits, - and .")

    def texts(self, value: Any, where: str) -> tuple[str, ...]:
        """Return a list of texts."""
        return tuple(self.text(one, where) for one in self.list(value, where, MOST))

    def selectors(self, value: Any, where: str) -> tuple[str, ...]:
        """Return expressions."""
        found = []
        for one in self.list(value, where, MOST):
            if isinstance(one, str):
                self.wrong.append(f"{where} has a text; write it as the expression of [{{cel: {{expression: ...}}}}]")
                continue
            cel = self.object(self.object(one, where, ("cel",)).get("cel"), f"{where}.cel", ("expression",))
            found.append(self.text(cel.get("expression"), f"{where}.cel.expression"))
            if (size := len(found[-1].encode(errors="surrogatepass"))) > EXPRESSION:
                self.wrong.append(f"{where}.cel.expression has {size} bytes; write {EXPRESSION} at most")
        return tuple(found)
