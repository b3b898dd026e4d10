"""Pooling inside the compiled module: sentence-transformers' formulas, blind to padding."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from corelane import models
from corelane.tracing.wrap import POOLS, SentenceEmbedding

MASK = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1], [1, 0, 0, 0, 0]])


class States(nn.Module):
    """Stands for the encoder: its hidden states are given, and are huge where there is padding."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.states = torch.randn(3, 5, 6) + (1 - MASK.unsqueeze(-1)) * 1e6

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> SimpleNamespace:
        return SimpleNamespace(last_hidden_state=self.states)


def test_every_pooling_that_is_read_can_be_computed() -> None:
    """What models.py lets through stands in the table here."""
    assert set(POOLS) == set(models.POOLINGS)


@pytest.mark.parametrize("mode", models.POOLINGS)
@pytest.mark.filterwarnings("ignore")  # the other library's own
def test_pooling_is_that_of_sentence_transformers(mode: str) -> None:
    """The vectors its authors published the model with."""
    from sentence_transformers.models import Pooling

    encoder = States()
    pooled = SentenceEmbedding(encoder, (mode,), normalize=False)(MASK, MASK)[0]
    theirs = Pooling(6, pooling_mode=mode)({"token_embeddings": encoder.states, "attention_mask": MASK})
    torch.testing.assert_close(pooled, theirs["sentence_embedding"])


def test_several_poolings_stand_one_after_the_other() -> None:
    """And are normalised as one vector."""
    encoder = States()
    vector = SentenceEmbedding(encoder, ("max", "mean"), normalize=True)(MASK, MASK)[0]
    assert vector.shape == (3, 12)
    torch.testing.assert_close(vector.norm(dim=1), torch.ones(3))
