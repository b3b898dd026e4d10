"""The lengths a model is compiled for, and how many tokens it can really take."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from corelane.errors import ConfigError
from corelane.tracing.shapes import choose_sequences, usable_sequence


@pytest.mark.parametrize(
    ("config", "limit"),
    [
        ({"model_type": "bert", "max_position_embeddings": 512, "pad_token_id": 0}, 512),
        ({"model_type": "bert", "max_position_embeddings": 512, "pad_token_id": 3}, 512),
        ({"model_type": "roberta", "max_position_embeddings": 514, "pad_token_id": 1}, 512),
        ({"model_type": "roberta", "max_position_embeddings": 514, "pad_token_id": 3}, 510),
        ({"model_type": "roberta", "max_position_embeddings": 514, "pad_token_id": 0}, 513),
        ({"model_type": "xlm-roberta", "max_position_embeddings": 514, "pad_token_id": 1}, 512),
        ({"model_type": "camembert", "max_position_embeddings": 514, "pad_token_id": 1}, 512),
        ({"model_type": "mpnet", "max_position_embeddings": 514, "pad_token_id": 1}, 512),
        ({"model_type": "distilbert", "max_position_embeddings": 512, "pad_token_id": 0}, 512),
        ({"model_type": "xlnet", "pad_token_id": 5}, None),
        ({"model_type": "t5", "max_position_embeddings": -1, "pad_token_id": 0}, None),
    ],
)
def test_the_roberta_family_loses_positions_to_its_padding_id(config: dict[str, object], limit: int | None) -> None:
    """514 positions are 512 tokens, or 510; only a text that fills the window would show it."""
    assert usable_sequence(SimpleNamespace(**config)) == limit


@pytest.mark.parametrize(
    ("task", "limit", "own", "lengths"),
    [
        ("question-answering", 512, None, (48, 64, 80, 96, 128, 160, 192, 256, 320, 384)),
        ("question-answering", 100, None, (48, 64, 80, 96, 100)),
        ("question-answering", None, None, (48, 64, 80, 96, 128, 160, 192, 256, 320, 384)),
        ("feature-extraction", 512, 256, (16, 24, 32, 40, 48, 64, 80, 96, 128, 160, 192, 256)),
        ("feature-extraction", 512, 128, (16, 24, 32, 40, 48, 64, 80, 96, 128)),
        ("feature-extraction", 512, 384, (16, 24, 32, 40, 48, 64, 80, 96, 128, 160, 192, 256)),
        ("feature-extraction", 30, None, (16, 24, 30)),
    ],
)
def test_the_tasks_own_lengths_stay_within_the_models_limits(
    task: str, limit: int | None, own: int | None, lengths: tuple[int, ...]
) -> None:
    """An empty setting works for every model."""
    assert choose_sequences((), task, limit=limit, max_seq_length=own) == lengths


def test_lengths_that_were_asked_for_are_taken_up_to_the_limit() -> None:
    """The limit itself included."""
    assert choose_sequences((512, 64), "question-answering", limit=512, max_seq_length=None) == (64, 512)


@pytest.mark.parametrize(("asked", "limit"), [(514, 512), (513, 512), (511, 510)])
def test_a_length_above_the_limit_is_refused_with_the_limit(asked: int, limit: int) -> None:
    """At trace time, and not at the first long text."""
    with pytest.raises(ConfigError, match=rf"{asked} tokens.*at most {limit}"):
        choose_sequences((128, asked), "question-answering", limit=limit, max_seq_length=None)


def test_a_length_without_room_for_a_text_is_refused() -> None:
    """The special tokens alone would fill it."""
    with pytest.raises(ConfigError, match="asks for 4 tokens"):
        choose_sequences((4, 128), "question-answering", limit=512, max_seq_length=None)
