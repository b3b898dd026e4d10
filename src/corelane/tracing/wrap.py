"""The torch modules that are compiled: a model with plain tensors in and out, and a sentence model's pooling
inside."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from corelane.models import QUESTION_ANSWERING, TEXT_CLASSIFICATION, Loaded
from corelane.runtimes.base import InputSpec, OutputSpec
from corelane.tracing.shapes import pad_token_id


class SpanLogits(nn.Module):
    """(batch, seq) int64 inputs -> start and end logits, each (batch, seq)."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        answer = self.model(**_given(input_ids, attention_mask, token_type_ids))
        return answer.start_logits, answer.end_logits


class ClassLogits(nn.Module):
    """-> the logits of a row's classes (batch, labels)."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> tuple[Tensor]:
        return (self.model(**_given(input_ids, attention_mask, token_type_ids)).logits,)


class TokenStates(nn.Module):
    """-> the last hidden states (batch, seq, dim)."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> tuple[Tensor]:
        return (self.model(**_given(input_ids, attention_mask, token_type_ids)).last_hidden_state,)


class SentenceEmbedding(nn.Module):
    """-> one vector a row (batch, dim), pooled over the mask, so that neither padding nor neighbours
    matter."""

    def __init__(self, model: nn.Module, pooling: tuple[str, ...], normalize: bool) -> None:
        super().__init__()
        self.model = model
        self.pools = tuple(POOLS[mode] for mode in pooling)
        self.normalize = normalize

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> tuple[Tensor]:
        states = self.model(**_given(input_ids, attention_mask, token_type_ids)).last_hidden_state  # (B, T, D)
        mask = attention_mask.unsqueeze(-1).to(states.dtype)  # (B, T, 1)
        vector = torch.cat([pool(states, mask) for pool in self.pools], dim=-1)
        return (nn.functional.normalize(vector, p=2.0, dim=-1) if self.normalize else vector,)


def _given(input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None) -> dict[str, Any]:
    given = {"input_ids": input_ids, "attention_mask": attention_mask}
    return given if token_type_ids is None else {**given, "token_type_ids": token_type_ids}


# The formulas of sentence-transformers' Pooling, for rows padded on the right. The smallest denominator is
# theirs.
def _mean(states: Tensor, mask: Tensor) -> Tensor:
    return (states * mask).sum(1) / mask.sum(1).clamp(min=1e-9)


def _mean_sqrt_len(states: Tensor, mask: Tensor) -> Tensor:
    return (states * mask).sum(1) / mask.sum(1).clamp(min=1e-9).sqrt()


def _max(states: Tensor, mask: Tensor) -> Tensor:
    return states.masked_fill(mask == 0, -torch.inf).amax(1)


def _cls(states: Tensor, mask: Tensor) -> Tensor:
    return states[:, 0]


def _weighted_mean(states: Tensor, mask: Tensor) -> Tensor:
    weights = mask.cumsum(1) * mask  # 1, 2, 3, ... then 0 over the padding
    return (states * weights).sum(1) / weights.sum(1).clamp(min=1e-9)


def _last(states: Tensor, mask: Tensor) -> Tensor:
    last = (mask.cumsum(1) == mask.sum(1, keepdim=True)).to(states.dtype) * mask  # 1 at the last token only
    return (states * last).sum(1)


POOLS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cls": _cls,
    "max": _max,
    "mean": _mean,
    "mean_sqrt_len_tokens": _mean_sqrt_len,
    "weightedmean": _weighted_mean,
    "lasttoken": _last,
}


@dataclass(frozen=True)
class Wrapped:
    """A module to compile, what goes in and out of it, and what its task must know (`task_options`, and the
    `labels` of its classes by number)."""

    module: nn.Module
    inputs: tuple[InputSpec, ...]
    outputs: tuple[OutputSpec, ...]
    task_options: dict[str, Any]
    labels: dict[str, str]


def wrap(loaded: Loaded) -> Wrapped:
    config = loaded.config
    options: dict[str, Any] = {"pad_token_id": pad_token_id(config)}
    labels: dict[str, str] = {}
    if loaded.task == QUESTION_ANSWERING:
        outputs: tuple[OutputSpec, ...] = (OutputSpec("start_logits", True), OutputSpec("end_logits", True))
        module: nn.Module = SpanLogits(loaded.model)
    elif loaded.task == TEXT_CLASSIFICATION:
        outputs = (OutputSpec("logits", False),)
        module = ClassLogits(loaded.model)
        options |= {"problem_type": config.problem_type}
        labels = {str(number): str(name) for number, name in sorted(config.id2label.items())}
    elif loaded.sentence is None:
        outputs = (OutputSpec("last_hidden_state", True),)
        module = TokenStates(loaded.model)
        options |= {"pooled": False, "dimension": config.hidden_size, "normalized": False}
    else:
        sentence = loaded.sentence
        outputs = (OutputSpec("embedding", False),)
        module = SentenceEmbedding(loaded.model, sentence.pooling, sentence.normalize)
        options |= {
            "pooled": True,
            "dimension": config.hidden_size * len(sentence.pooling),
            "normalized": sentence.normalize,
            "pooling": "+".join(sentence.pooling),
        }
    return Wrapped(module.eval(), _inputs(loaded), outputs, options, labels)


def _inputs(loaded: Loaded) -> tuple[InputSpec, ...]:
    specs = [
        InputSpec("input_ids", "int64", pad_token_id(loaded.config)),
        InputSpec("attention_mask", "int64", 0),
    ]
    if _has_segments(loaded):
        specs.append(InputSpec("token_type_ids", "int64", 0))
    return tuple(specs)


def _has_segments(loaded: Loaded) -> bool:
    """Segments are an input only where the model has rows for two and the tokenizer tells them apart."""
    if getattr(loaded.config, "type_vocab_size", 0) < 2:
        return False
    return 1 in loaded.tokenizer.encode("a", "b").type_ids
