"""Real prose of mixed lengths, without a data set: the descriptions of the packages that are installed."""

from __future__ import annotations

import importlib.metadata
import random
import re

_WORD = re.compile(r"[A-Za-z][A-Za-z',.-]+")

# Words of a text: log-normal, with a median of 24 and a mean of 36, as questions and paragraphs mix.
_MU, _SIGMA = 3.2, 0.9
_LEAST, _MOST = 3, 180


def texts(count: int, seed: int = 11) -> list[str]:
    """So many texts; the same ones wherever the same packages are installed."""
    words: list[str] = []
    for package in sorted(importlib.metadata.distributions(), key=lambda one: str(one.metadata["Name"])):
        words += _WORD.findall(str(package.metadata.json.get("description", "")))
    chance = random.Random(seed)  # noqa: S311  # nothing here is secret
    found = []
    for _ in range(count):
        length = max(_LEAST, min(_MOST, round(chance.lognormvariate(_MU, _SIGMA))))
        begin = chance.randrange(max(1, len(words) - length))
        found.append(" ".join(words[begin : begin + length]))
    return found
