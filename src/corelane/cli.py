"""The command line, and the composition root: nothing of ours imports it.

Each verb imports what it needs when it runs, so that `up --dry-run` and `status` work on the standard library alone
and a core server never loads what only tracing uses.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from corelane import __version__
from corelane.errors import ConfigError, CorelaneError
from corelane.keys import CONFIG_FILE
from corelane.settings import Settings, load
from corelane.topology import available_cpus, format_visible_cores, parse_visible_cores

Verb = Callable[[Settings, argparse.Namespace], int]

EXIT_CODES = """\
exit codes: 0 ended as asked, 1 our bug, 2 configuration, 3 bundle refused (damaged, stale, other chip, wrong answers),
4 core busy, 5 core lost, 6 drain had to be forced; `load` ends with 1 when any call failed, `status` with 1 when not
all is ready."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; every CorelaneError becomes one line on stderr and its exit code."""
    arguments = _parser().parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    try:
        run: Verb = arguments.run
        return run(_settings(arguments), arguments)
    except CorelaneError as error:
        print(f"corelane: error: {error}", file=sys.stderr)
        return error.exit_code
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "corelane":
            raise
        print(f"corelane: error: {_missing(error.name)}", file=sys.stderr)
        return ConfigError.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of our output has gone (`corelane status | head -1`)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _settings(arguments: argparse.Namespace) -> Settings:
    """The configuration; for verbs about what runs, a mistake in it is no obstacle."""
    environ = dict(os.environ)
    if getattr(arguments, "runtime", None):
        environ["CORELANE_RUNTIME"] = arguments.runtime
    try:
        return load(Path.cwd(), environ)
    except ConfigError as error:
        running = list(Path.cwd().glob(f".corelane/*/{CONFIG_FILE}"))
        if arguments.run not in (_down, _status, _logs) or len(running) != 1:
            raise
        print(f"corelane: warning: {error}; going by the settings of what was deployed last", file=sys.stderr)
        return replace(load(running[0].parent, {}), root=Path.cwd())


def _missing(package: str) -> str:
    return (
        f"this needs the package {package}, which {sys.executable} does not have; run ./deploy.sh, which makes .venv"
        " with all of them (a damaged one: remove it first), or install corelane with pip"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="corelane",
        description="Trace a model once, pin one server to every core, serve it at static URLs.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"corelane {__version__}")
    verbs = parser.add_subparsers(metavar="VERB", required=True)

    def verb(name: str, run: Verb, text: str) -> argparse.ArgumentParser:
        added = verbs.add_parser(
            name,
            help=text,
            description=f"{text[0].upper()}{text[1:]}. What to serve stands in config.properties.",
            epilog=EXIT_CODES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        added.set_defaults(run=run)
        return added

    trace = verb("trace", _trace, "compile the configured model into a bundle, unless a fresh one is there")
    trace.add_argument("--retrace", action="store_true", help="make a new version even so")
    trace.add_argument(
        "--fit",
        type=Path,
        metavar="TEXTS",
        help="trace nothing: propose sequence_lengths for the texts in a file, one on each line",
    )
    trace.add_argument("--budget-shapes", type=int, metavar="N", help="at most N lengths, with --fit (default: 8)")
    trace.add_argument(
        "--simulate", metavar="NAME", help="no model: a core that takes published times, such as inf2-bert-base"
    )
    trace.add_argument("--times", default="", metavar="ROWSxTOKENS=MS,...", help="the times, with --simulate")
    trace.add_argument(
        "--name", default="", metavar="BUNDLE", help="the bundle's name, with --simulate (default: NAME)"
    )

    serve = verb("serve", _serve, "run one core's server in the foreground")
    serve.add_argument(
        "--core", type=int, help="the core's number N (default: the one in NEURON_RT_VISIBLE_CORES, else 0)"
    )
    serve.add_argument("--port", type=int, help="the port (default: first_port + N)")

    up = verb("up", _up, "start one pinned server per core and the gateway, and wait until all are ready")
    up.add_argument("--runtime", choices=("auto", "process", "docker"), help="beats the key runtime")
    up.add_argument("--foreground", action="store_true", help="stay in the foreground; Ctrl-C stops everything")
    up.add_argument("--retrace", action="store_true", help="make a new version of the bundle first")
    up.add_argument("--dry-run", action="store_true", help="print every command and change nothing")

    verb("down", _down, "stop the deployment and leave no process, port or state")

    status = verb("status", _status, "say what is true of the deployment, core by core")
    status.add_argument("--json", action="store_true", dest="as_json", help="as JSON")

    logs = verb("logs", _logs, "print the logs of one core, or of all")
    logs.add_argument("core", nargs="?", help="a core's number, `gateway` or `supervisor`; all when left out")
    logs.add_argument("-f", "--follow", action="store_true", help="go on as they grow")

    _add_load(verb("load", _load, "call every model on every core with known questions and check the answers"))
    return parser


def _trace(settings: Settings, arguments: argparse.Namespace) -> int:
    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    if arguments.fit is not None:
        from corelane.tracing.fit import DEFAULT_BUDGET, fit

        budget = DEFAULT_BUDGET if arguments.budget_shapes is None else arguments.budget_shapes
        print(fit(settings, arguments.fit, budget=budget, progress=say))
        return 0
    if arguments.budget_shapes is not None:
        raise ConfigError("--budget-shapes is for --fit TEXTS; without it the configuration says what to trace")
    if arguments.simulate is not None:
        from corelane.tracing.simulate import simulate

        made = simulate(
            settings,
            arguments.simulate,
            bundle_name=arguments.name,
            times=arguments.times,
            retrace=arguments.retrace,
            progress=say,
        )
    elif arguments.times or arguments.name:
        raise ConfigError("--times and --name are for --simulate NAME; without it the configuration says what to trace")
    else:
        from corelane.settings import proxy_environment
        from corelane.tracing.trace import trace

        os.environ.update(proxy_environment(settings))  # for the hub's client
        made = trace(settings, retrace=arguments.retrace, progress=say)
    print(made.path)
    return 0


def _serve(settings: Settings, arguments: argparse.Namespace) -> int:
    core = _claim_core(arguments.core)
    from corelane.server.process import run

    return run(settings, core, arguments.port or settings.first_port + core)


def _claim_core(asked: int | None) -> int:
    """The number of this process's core. Started by hand, without a core in the environment, it pins itself."""
    visible = os.environ.get("NEURON_RT_VISIBLE_CORES")
    if visible is not None:
        cores = parse_visible_cores(visible)
        if asked not in (None, cores[0]):
            raise ConfigError(f"--core {asked}, but NEURON_RT_VISIBLE_CORES={visible} names another; make them agree")
        return cores[0]
    core = asked or 0
    cpus = available_cpus()
    if cpus is not None:
        if not 0 <= core < len(cpus):
            raise ConfigError(
                f"--core {core}, but this process may use {len(cpus)} CPUs, so cores 0 to {len(cpus) - 1}"
            )
        os.sched_setaffinity(0, {cpus[core]})  # before anything is imported that starts threads
    os.environ["NEURON_RT_VISIBLE_CORES"] = format_visible_cores((core,))
    return core


def _up(settings: Settings, arguments: argparse.Namespace) -> int:
    from corelane.fleet import commands

    return commands.up(settings, dry_run=arguments.dry_run, foreground=arguments.foreground, retrace=arguments.retrace)


def _down(settings: Settings, arguments: argparse.Namespace) -> int:
    from corelane.fleet import commands

    return commands.down(settings)


def _status(settings: Settings, arguments: argparse.Namespace) -> int:
    from corelane.fleet import commands

    return commands.status(settings, as_json=arguments.as_json)


def _logs(settings: Settings, arguments: argparse.Namespace) -> int:
    from corelane.fleet import commands

    return commands.logs(settings, arguments.core, follow=arguments.follow)


def _load(settings: Settings, arguments: argparse.Namespace) -> int:
    from corelane.load.command import run

    return run(settings, arguments)


def _add_load(parser: argparse.ArgumentParser) -> None:
    from corelane.load.arguments import add_arguments

    add_arguments(parser)
