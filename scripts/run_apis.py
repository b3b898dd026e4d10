#!/usr/bin/env python3
"""Call every model on every core of the deployment that this project configures, and check the answers.

The same as `corelane load`, from any folder and by any Python: one without the libraries hands over to
that of .venv, which ./deploy.sh makes.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / (os.environ.get("CORELANE_VENV") or ".venv")


def main() -> int:
    """Exit codes: 0 all calls served, 1 a call failed, 2 configuration."""
    if importlib.util.find_spec("aiohttp") is None or importlib.util.find_spec("orjson") is None:
        python = VENV / "bin" / "python"
        if not python.exists() or Path(sys.prefix).resolve() == VENV.resolve():
            print("run_apis.py: error: its libraries are missing; run ./deploy.sh first", file=sys.stderr)
            return 2
        os.execv(python, [str(python), __file__, *sys.argv[1:]])  # noqa: S606
    sys.path.insert(0, str(ROOT / "src"))
    from corelane import settings
    from corelane.errors import CorelaneError
    from corelane.load.arguments import add_arguments
    from corelane.load.command import run

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    arguments = parser.parse_args()
    try:
        return run(settings.load(ROOT), arguments)
    except CorelaneError as error:
        print(f"run_apis.py: error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
