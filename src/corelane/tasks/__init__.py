"""Tasks: what a text becomes before the model (`encode`) and what its numbers become after it (`decode`).

Pure functions over one tokenizer: no torch, no HTTP, no engine. One file a task; `base.py` is the contract.
"""

from __future__ import annotations

from corelane.errors import ConfigError
from corelane.tasks import feature_extraction, question_answering, text_classification
from corelane.tasks.base import Encoded, Factory, Task, parse_parameters

__all__ = ["TASKS", "Encoded", "Factory", "Task", "get", "parse_parameters"]

TASKS: dict[str, Factory] = {
    question_answering.NAME: question_answering.make,
    feature_extraction.NAME: feature_extraction.make,
    text_classification.NAME: text_classification.make,
}


def get(name: str) -> Factory:
    """The factory of one task; ConfigError naming the known ones."""
    try:
        return TASKS[name]
    except KeyError:
        raise ConfigError(f"task={name} is not one of the known tasks: {', '.join(TASKS)}") from None
