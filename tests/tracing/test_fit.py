"""Lengths proposed from a sample: the least padding there is, and the command that says so."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corelane.cli import main
from corelane.errors import ConfigError
from corelane.tracing.fit import fit, padding_share, propose
from support.traced import sentence_files, settings, tiny_bert


def computed(lengths: list[int], sequences: tuple[int, ...]) -> int:
    """Tokens, padding included, in the slow and plain way."""
    return sum(min(s for s in sequences if s >= min(length, sequences[-1])) for length in lengths)


@given(st.lists(st.integers(1, 60), min_size=1, max_size=30), st.integers(1, 5), st.sampled_from([24, 45, 48]))
def test_no_choice_of_as_many_lengths_pads_less(lengths: list[int], budget: int, longest: int) -> None:
    """Against every choice there is."""
    proposed = propose(lengths, longest, budget)
    assert len(proposed) <= budget
    assert proposed[-1] == longest
    assert all(length % 8 == 0 for length in proposed[:-1])
    every = [
        (*others, longest) for count in range(budget) for others in itertools.combinations(range(8, longest, 8), count)
    ]
    assert computed(lengths, proposed) == min(computed(lengths, choice) for choice in every)


def test_a_length_that_saves_nothing_is_not_proposed() -> None:
    """Each one is warmed at every start."""
    assert propose([30, 30, 31], 256, 8) == (32, 256)
    assert propose([250, 256, 400], 256, 8) == (256,)


def test_one_length_is_the_longest() -> None:
    """Where a text is cut does not depend on the sample."""
    assert propose([5, 6, 7], 128, 1) == (128,)


def test_the_padding_of_many_lengths_is_found_in_an_instant() -> None:
    """Long models have a thousand possible lengths."""
    lengths = np.random.default_rng(7).lognormal(5, 1, 20_000).astype(int) + 1
    shares = [padding_share(lengths.tolist(), propose(lengths.tolist(), 8192, budget)) for budget in (1, 2, 4, 8, 16)]
    assert shares == sorted(shares, reverse=True)
    assert shares[-1] < 0.15 < 0.9 < shares[0]


def test_the_padding_share_counts_rows_one_by_one() -> None:
    """Longer rows are cut, and full."""
    assert padding_share([8, 16, 100], (16, 32)) == pytest.approx(1 - 56 / 64)


def test_the_command_prints_the_line_to_paste(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And traces nothing."""
    tiny_bert(tmp_path / "model", head=False)
    sentence_files(tmp_path / "model", {"pooling_mode": "mean"})
    settings(tmp_path, model_name="./model")
    texts = tmp_path / "texts.txt"
    texts.write_text("abcdef\n" * 20 + "\n" + "a" * 18 + "\r\n" + "ab\tcde\n" + "a" * 300 + "\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert main(["trace", "--fit", "texts.txt", "--budget-shapes", "3"]) == 0
    printed = capsys.readouterr().out
    assert "23 rows of 8 to 48 tokens" in printed
    assert "Cut at 48 tokens, today as with the proposal: 1 of the texts." in printed
    assert printed.splitlines()[-1] == "sequence_lengths=8,24,48"
    today, proposed = (float(line.split()[2].rstrip("%")) for line in printed.splitlines()[1:3])
    assert proposed < today
    assert not (tmp_path / "traced-models").exists()


def test_questions_are_windowed_as_the_server_does(tmp_path: Path) -> None:
    """A long context is several rows of the longest length and one that is shorter."""
    tiny_bert(tmp_path / "model")
    texts = tmp_path / "texts.txt"
    texts.write_text("who\t" + "abcd " * 20 + "\n", encoding="utf-8")
    printed = fit(settings(tmp_path, model_name="./model", sequence_lengths="16,64"), texts)
    assert printed.startswith(("2 rows of ", "3 rows of "))
    assert "the proposal: 0 of the texts." in printed


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (None, "cannot be read"),
        (b"", "holds no text"),
        (b"\n \n", "holds no text"),
        (b"who\tabc\nan answer alone\n", "texts.txt:2 .*tab"),
        (b"caf\xe9\n", "not UTF-8"),
    ],
    ids=["missing", "empty", "blank", "no-pair", "latin-1"],
)
def test_a_file_that_cannot_be_used_is_one_sentence(tmp_path: Path, content: bytes | None, complaint: str) -> None:
    """With the line, where one is to blame."""
    tiny_bert(tmp_path / "model")
    if content is not None:
        (tmp_path / "texts.txt").write_bytes(content)
    with pytest.raises(ConfigError, match=complaint):
        fit(settings(tmp_path, model_name="./model", sequence_lengths="16,64"), tmp_path / "texts.txt")


@pytest.mark.parametrize("arguments", [["--budget-shapes", "4"], ["--fit", "texts.txt", "--budget-shapes", "0"]])
def test_a_budget_needs_a_sample_and_a_length(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 2, and the option is named."""
    settings(tmp_path, model_name="./model")
    monkeypatch.chdir(tmp_path)
    assert main(["trace", *arguments]) == 2
    assert "--budget-shapes" in capsys.readouterr().err
