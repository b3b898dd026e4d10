"""`python -m corelane`, which works from a clone before anything is installed."""

import sys

from corelane.cli import main

sys.exit(main())
