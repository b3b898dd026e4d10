"""Times that AWS published for encoder models on one core, by the name that `corelane trace --simulate` takes.

Only rows that say what one core does: one copy of the model and one caller a core, so that throughput x time / batch
is the number of cores. Left out are Inf1, where two callers share a core and the time holds their wait for each
other, and models measured on larger machines. Milliseconds at the median, rounded to hundredths.
"""

from __future__ import annotations

from dataclasses import dataclass

from corelane.runtimes.base import Shape

SEQUENCE = 128


@dataclass(frozen=True)
class Published:
    """`times_ms`: per batch, by shape."""

    times_ms: dict[Shape, float]
    source: str


_PAGE = "AWS Neuron documentation, about-neuron/benchmarks/{chip}, encoder models: {model} on {instance}"
_INSTANCES = {"inf2": "inf2.xlarge", "trn1": "trn1.2xlarge"}

# (chip, model, {batch: ms}): the latency-optimised row, then the throughput-optimised one.
_ROWS = (
    ("inf2", "bert-base-uncased", {1: 1.00, 8: 5.97}),
    ("inf2", "bert-large-uncased", {1: 2.69, 4: 8.41}),
    ("inf2", "distilbert-base-uncased", {1: 0.58, 16: 6.01}),
    ("inf2", "roberta-base", {1: 1.00, 8: 5.42}),
    ("inf2", "roberta-large", {1: 2.69, 4: 8.31}),
    ("inf2", "albert-base-v2", {1: 0.94, 8: 5.07}),
    ("inf2", "electra-base-discriminator", {1: 1.00, 16: 11.02}),
    ("trn1", "bert-base-uncased", {1: 0.94, 16: 9.34}),
    ("trn1", "bert-large-uncased", {1: 2.67, 4: 7.24}),
    ("trn1", "distilbert-base-uncased", {1: 0.54, 16: 5.01}),
    ("trn1", "roberta-base", {1: 0.96, 16: 9.46}),
    ("trn1", "roberta-large", {1: 2.67, 8: 14.23}),
    ("trn1", "albert-base-v2", {1: 0.86, 16: 9.29}),
    ("trn1", "electra-base-discriminator", {1: 0.93, 16: 9.33}),
)

# inf2-bert-base, trn1-roberta-large, ...
PUBLISHED = {
    f"{chip}-{model.removesuffix('-uncased').removesuffix('-discriminator').removesuffix('-v2')}": Published(
        {Shape(batch, SEQUENCE): ms for batch, ms in times.items()},
        _PAGE.format(chip=chip, model=model, instance=_INSTANCES[chip]),
    )
    for chip, model, times in _ROWS
}
