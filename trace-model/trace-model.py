#!/usr/bin/env python3
"""Trace the configured model into a bundle: the compile step of the container path. All of it is `corelane
trace`."""

from __future__ import annotations

import sys

from corelane.cli import main

if __name__ == "__main__":
    sys.exit(main(["trace", *sys.argv[1:]]))
