"""A text of a megabyte may be a million tokens: neither answering nor refusing it may take the memory of all."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src"
MOST_MIB = 150  # the whole encoding takes 350 to 600

PROGRAM = """
import re, sys
from pathlib import Path
from corelane.errors import TooLargeError
from corelane.tasks import get, parse_parameters

def peak_mib():
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024

task = get(sys.argv[1])(Path(sys.argv[2]), ("input_ids", "attention_mask"), 256, {"labels": {"0": "a", "1": "b"}})
text = "." * 1_000_000
before = peak_mib()
try:
    item = {"question": "who?", "context": text} if "question" in sys.argv[1] else text
    task.encode(item, parse_parameters(task, None))
except TooLargeError as error:
    print("refused", error, file=sys.stderr)
print(peak_mib() - before)
"""


@pytest.mark.parametrize("task", ["question-answering", "feature-extraction", "text-classification"])
def test_a_million_tokens_take_the_memory_of_a_few(wordpiece: Path, task: str) -> None:
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM, task, str(wordpiece)],
        env={"PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    assert float(found.stdout) < MOST_MIB
    assert ("refused" in found.stderr) == (task == "question-answering")
