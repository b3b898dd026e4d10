"""A task small enough to be read at a glance: a text's answer is the sum of its characters' code points."""

from __future__ import annotations

import numpy as np

from corelane.errors import InvalidInputError
from corelane.runtimes.base import Row
from corelane.tasks.base import Encoded, Parameters

# Texts that make `tests/services/scripted_server.py` misbehave, and the token that stands for each.
RAISE, NAN, HANG, SLOW, LOSE = "raise", "nan", "hang", "slow", "lose"
TOKENS = {RAISE: 1_000_001, NAN: 1_000_002, HANG: 1_000_003, SLOW: 1_000_004, LOSE: 1_000_005}


class SumParameters(Parameters):
    """`times`: multiply the answer, so that two requests in one batch can differ."""

    times: int = 1


class SumTask:
    name = "sum"
    parameters = SumParameters
    item_schema = {"type": "string"}  # noqa: RUF012
    answer_schema = {"type": "object", "properties": {"sum": {"type": "number"}}}  # noqa: RUF012
    detail_schema = {"type": "number"}  # noqa: RUF012
    query = {"seq_0": "the text", "seq_1": "more of it"}  # noqa: RUF012
    example = "abc"

    def from_query(self, seq_0, seq_1):
        if seq_0 is None:
            return self.example
        return seq_0 + (seq_1 or "")

    def encode(self, item, parameters):
        if not isinstance(item, str) or not item:
            raise InvalidInputError("an item must be a text of at least one character")
        tokens = [TOKENS[item]] if item in TOKENS else [ord(character) for character in item[:16]]
        row = Row(len(tokens), (np.array(tokens), np.ones(len(tokens), np.int64)))
        return Encoded((row,), item, len(item) > 16, len(item))

    def decode(self, encoded, outputs, parameters):
        return {"sum": float(outputs[0]["sum"][0]) * parameters.times}

    def detail(self, answer):
        return answer["sum"]
