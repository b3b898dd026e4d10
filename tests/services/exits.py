"""A core server that cannot go on: says why and ends with a code.

exits.py CODE [SENTENCE] [--port P]
"""

from __future__ import annotations

import argparse
import sys

parser = argparse.ArgumentParser()
parser.add_argument("code", type=int)
parser.add_argument("sentence", nargs="?", default="as asked.")
parser.add_argument("--port", type=int)
arguments = parser.parse_args()
print("a line before", file=sys.stderr)
print(f"corelane: error: {arguments.sentence}", file=sys.stderr)
print("a line after", file=sys.stderr)
sys.exit(arguments.code)
