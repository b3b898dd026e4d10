"""Which (batch, sequence) shapes a model is compiled for: the task's own lengths, within what the model can
take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from corelane.errors import ConfigError
from corelane.models import FEATURE_EXTRACTION, QUESTION_ANSWERING, TEXT_CLASSIFICATION

# Used when the setting is empty. On the CPU a shape costs a batch at start and half a MiB, and padding is what costs
# throughput: with the lengths of prose, these leave 11% of padding where powers of two leave 29%. Question answering
# windows its contexts at 384 tokens; what is classified may be a whole review, and is cut where the longest shape ends.
_FINE = (48, 64, 80, 96, 128, 160, 192, 256)
DEFAULT_SEQUENCES = {
    QUESTION_ANSWERING: (*_FINE, 320, 384),
    FEATURE_EXTRACTION: (16, 24, 32, 40, *_FINE),
    TEXT_CLASSIFICATION: (32, *_FINE, 384, 512),
}

# Room for a pair's special tokens (four in the RoBERTa family) and a word or two on each side.
SHORTEST_SEQUENCE = 8

# Families that number positions from pad_token_id + 1, so that as many rows of the position table are never
# used (create_position_ids_from_input_ids in their transformers code).
OFFSET_FAMILIES = frozenset(
    {
        "camembert",
        "data2vec-text",
        "esm",
        "ibert",
        "lilt",
        "longformer",
        "luke",
        "markuplm",
        "mpnet",
        "roberta",
        "roberta-prelayernorm",
        "xlm-roberta",
        "xlm-roberta-xl",
        "xmod",
    }
)


def usable_sequence(config: Any) -> int | None:
    """The most tokens a model takes; None when its positions have no limit.

    BERT: 512 positions, 512 tokens. RoBERTa: 514 positions, padding id 1, 512 tokens; padding id 3, 510
    tokens.
    """
    positions = getattr(config, "max_position_embeddings", None)
    if positions is None or positions <= 0:
        return None
    if config.model_type in OFFSET_FAMILIES:
        return int(positions) - int(pad_token_id(config)) - 1
    return int(positions)


def pad_token_id(config: Any) -> int:
    """The model's own padding id; 0 where it has none (the mask hides it)."""
    pad = getattr(config, "pad_token_id", None)
    return 0 if pad is None else int(pad)


def choose_sequences(
    asked: Sequence[int], task: str, *, limit: int | None, max_seq_length: int | None
) -> tuple[int, ...]:
    """The lengths to compile: those asked for, or the task's own within the model's limits."""
    if not asked:
        bounds = [bound for bound in (limit, max_seq_length) if bound]
        return tuple(sorted({min([length, *bounds]) for length in DEFAULT_SEQUENCES[task]}))
    if limit is not None and max(asked) > limit:
        raise ConfigError(
            f"sequence_lengths={','.join(map(str, asked))} asks for {max(asked)} tokens, and this model can"
            f" use at most {limit}; lower it"
        )
    if min(asked) < SHORTEST_SEQUENCE:
        raise ConfigError(
            f"sequence_lengths={','.join(map(str, asked))} asks for {min(asked)} tokens, and a text with its"
            f" special tokens needs {SHORTEST_SEQUENCE} at least; raise it"
        )
    return tuple(sorted(set(asked)))
