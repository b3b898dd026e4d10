"""The options of `corelane load`. Standard library only: the command line always reads this file."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from corelane.load.questions import METHODS
from corelane.load.targets import THROUGH

DEFAULT_SECONDS = 5.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the driver's options to a parser."""
    parser.add_argument(
        "--through",
        choices=THROUGH,
        default="cores",
        help="call each core's own port, the gateway (pinned and pooled routes), or both (default: cores)",
    )
    parser.add_argument("--host", help="where the deployment answers (default: bind_address of the settings)")
    parser.add_argument(
        "--connections",
        type=_count,
        default=2,
        metavar="N",
        help="connections per endpoint, one call at a time on each (default: 2)",
    )
    parser.add_argument(
        "--seconds",
        type=_seconds,
        metavar="S",
        help=f"how long to go on (default: {DEFAULT_SECONDS:.0f}, unless --requests is given)",
    )
    parser.add_argument(
        "--requests",
        type=_count,
        metavar="N",
        help="send N requests to each endpoint; with --seconds, whichever ends first",
    )
    parser.add_argument("--method", choices=METHODS, default="both", help="how to ask (default: both, in turn)")
    parser.add_argument(
        "--timeout",
        type=_seconds,
        metavar="S",
        help="a call not answered in this time has failed (default: request_timeout_ms + 5 s)",
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", dest="json_file", help="also write the result to FILE, as JSON"
    )


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return value
