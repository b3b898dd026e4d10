"""`corelane trace --fit texts.txt`: the sequence_lengths that a sample of the users' own texts asks for.

A row is padded to the next compiled length, and padding is computed like text. Given how many lengths there may be,
`propose` finds those with the least padding. It counts rows one by one; a batch is padded to its longest row, so what
it saves when full depends on the traffic as well. The cost of a token is taken as the same everywhere: attention makes
it grow with the length, by a quarter from 32 to 256 tokens with all-MiniLM-L6-v2.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from corelane import models, tasks
from corelane.errors import ConfigError, RequestError
from corelane.settings import Settings
from corelane.tasks.base import Task
from corelane.tracing import trace
from corelane.tracing.trace import Progress

DEFAULT_BUDGET = 8
# Proposed lengths are multiples of it: a sample says nothing of single tokens.
STEP = 8


def fit(settings: Settings, file: Path, *, budget: int = DEFAULT_BUDGET, progress: Progress | None = None) -> str:
    """What to tell the user: how the texts are long, today's padding, and the line for config.properties.

    A line is a text; a tab in it separates seq_0 from seq_1, as in a URL's query. ConfigError names the line that
    cannot be used.
    """
    say: Progress = progress or (lambda line: None)
    if budget < 1:
        raise ConfigError(f"--budget-shapes {budget} leaves no length to compile; give 1 or more")
    lines = list(_lines(file))
    wrapping = trace.import_tracing()
    source = models.resolve(settings.model_name, settings.model_revision, root=settings.root)
    say(f"loading {source.name}")
    with models.quiet():
        loaded = models.load(source, settings.task)
        wrapped = wrapping.wrap(loaded)
    today = trace.sequences(settings, loaded)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tokenizer.json"
        loaded.tokenizer.save(str(path))
        options = {**wrapped.task_options, **trace.limits(loaded), "labels": wrapped.labels}
        task = tasks.get(loaded.task)(path, tuple(spec.name for spec in wrapped.inputs), today[-1], options)
        lengths, cut = _measure(task, file, lines)
    return _report(lengths, cut, today, propose(lengths, today[-1], budget))


def propose(lengths: Sequence[int], longest: int, budget: int, step: int = STEP) -> tuple[int, ...]:
    """At most `budget` lengths, the last of them `longest`, over which the rows are padded least.

    `longest` stays whatever the sample holds: it decides where a text is cut, and so what the answers are. Rows above
    it count as `longest`. No length is proposed that saves nothing.
    """
    rows = np.minimum(np.asarray(lengths), longest)
    needed = np.unique(np.append(np.minimum(-(-rows // step) * step, longest), longest))
    upto = np.searchsorted(np.sort(rows), needed, side="right")  # rows that fit each length
    # costs[i, j]: the tokens computed for the rows above needed[i - 1] and up to needed[j], all padded to needed[j].
    before = np.concatenate(([0], upto[:-1]))
    costs = ((upto - before[:, None]) * needed).astype(float)
    costs[np.tril_indices(len(needed), -1)] = np.inf
    best = costs[0]  # of the rows up to needed[j], with one length
    chosen: list[tuple[int, ...]] = [(place,) for place in range(len(needed))]
    for _ in range(min(budget, len(needed)) - 1):
        # One more length j after the best lengths that end at i: the rows between are padded to needed[j].
        added = best[:-1, None] + costs[1:]
        ends = np.argmin(added, axis=0)
        lowest = added[ends, np.arange(len(needed))]
        better = lowest < best
        chosen = [(*chosen[ends[j]], j) if better[j] else chosen[j] for j in range(len(needed))]
        best = np.minimum(best, lowest)
    return tuple(int(needed[place]) for place in chosen[-1])


def padding_share(lengths: Sequence[int], sequences: Sequence[int]) -> float:
    """Of the tokens computed, the share that is padding, rows one by one. Longer rows count as the longest."""
    compiled = np.asarray(sequences)
    rows = np.minimum(np.asarray(lengths), compiled[-1])
    return float(1 - rows.sum() / compiled[np.searchsorted(compiled, rows)].sum())


def _lines(file: Path) -> Iterator[tuple[int, str]]:
    """The numbered lines that hold something."""
    try:
        content = file.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"--fit {file} cannot be read ({error.strerror}); it should have a text on each line"
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"--fit {file} is not UTF-8 (byte {error.start}); convert it") from None
    lines = [(number, line) for number, line in enumerate(content.split("\n"), 1) if line.strip()]
    if not lines:
        raise ConfigError(f"--fit {file} holds no text; give a file with a text on each line")
    yield from lines


def _measure(task: Task, file: Path, lines: Sequence[tuple[int, str]]) -> tuple[list[int], int]:
    """The rows' lengths in tokens, and how many texts had to be cut."""
    lengths: list[int] = []
    cut = 0
    for number, line in lines:
        first, tab, second = line.rstrip("\r").partition("\t")
        try:
            encoded = task.encode(task.from_query(first, second if tab else None), task.parameters())
        except RequestError as error:
            raise ConfigError(
                f"{file}:{number} is no item of {task.name}: {error}. A tab separates seq_0 from seq_1"
            ) from error
        lengths += [row.length for row in encoded.rows]
        cut += encoded.truncated
    return lengths, cut


def _report(lengths: Sequence[int], cut: int, today: Sequence[int], proposed: Sequence[int]) -> str:
    tokens = ", ".join(f"{share}: {np.percentile(lengths, float(share[1:])):.0f}" for share in ("p50", "p90", "p99"))
    width = max(len(_list(today)), len(_list(proposed)))
    lines = [
        f"{len(lengths)} rows of {min(lengths)} to {max(lengths)} tokens ({tokens}). Cut at"
        f" {today[-1]} tokens, today as with the proposal: {cut} of the texts.",
        f"today     {_list(today):{width}}  {padding_share(lengths, today):5.1%} of the tokens computed are padding",
        f"proposed  {_list(proposed):{width}}  {padding_share(lengths, proposed):5.1%}",
        "",
        "For config.properties:",
        f"sequence_lengths={_list(proposed)}",
    ]
    return "\n".join(lines)


def _list(values: Sequence[int]) -> str:
    return ",".join(map(str, values))
