"""Texts for measuring: many lengths, and the same ones again."""

from __future__ import annotations

import statistics

from corelane.load.prose import texts


def test_texts_are_of_mixed_lengths_and_the_same_each_time() -> None:
    """Two runs are to be compared, and padding has to matter."""
    found = texts(1000)
    lengths = [len(text.split()) for text in found]
    assert found == texts(1000)
    assert 18 <= statistics.median(lengths) <= 32
    assert min(lengths) < 8
    assert max(lengths) > 120
    assert len(set(found)) > 990
