"""One core's server, under the sample's name: `corelane serve`, with the same arguments. The code is in the package."""

from __future__ import annotations

import sys

from corelane.cli import main

sys.exit(main(["serve", *sys.argv[1:]]))
