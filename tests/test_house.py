"""The rules of the house that no linter knows: who may import whom, and what no file may hold.

The table of arrows is the architecture diagram; a new package needs a row in it.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from corelane import errors

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"

# unit -> the units it may import, besides itself and errors. A unit is a module or package right under
# corelane, or a module named here on its own.
ARROWS: dict[str, set[str]] = {
    "errors": set(),
    "properties": set(),
    "keys": set(),
    "settings": {"properties", "keys"},
    "topology": set(),
    "bundle": set(),
    "models": set(),
    "runtimes.base": set(),
    "runtimes.golden": {"runtimes.base", "bundle"},
    "runtimes": {"runtimes.base", "runtimes.golden", "bundle"},
    "tasks": {"runtimes.base"},
    "engine": {"runtimes.base"},
    "server": {
        *("engine", "tasks", "telemetry", "bundle", "settings"),
        *("runtimes", "runtimes.base", "runtimes.golden"),  # it picks and loads one
        "models",  # how the bundle of a model is called
    },
    "tracing": {"models", "tasks", "bundle", "runtimes", "runtimes.base", "runtimes.golden", "settings"},
    "fleet": {"settings", "keys", "topology", "bundle", "models"},  # models: as for server
    "load": {"settings", "topology"},
    "cli": {"keys", "server", "tracing", "fleet", "load", "settings", "topology", "bundle", "models"},
    "__main__": {"cli"},
}

# `up --dry-run`, `status` and `--help` work before anything is installed: these need no other package.
STANDARD_LIBRARY_ONLY = (
    "errors",
    "properties",
    "keys",
    "settings",
    "topology",
    "bundle",
    "cli",
    "__main__",
    "fleet",
    "load.arguments",
    "load.questions",
    "load.targets",
)

# A core server starts in about a second and in half the memory because it never loads these.
TOO_HEAVY_TO_SERVE = {"torch", "transformers", "sentence_transformers", "scipy", "sklearn"}


@cache
def modules() -> dict[str, ast.Module]:
    """Every module of the package by its dotted name below corelane; the package itself is ""."""
    found = {}
    for path in sorted((SOURCE / "corelane").rglob("*.py")):
        name = ".".join(path.relative_to(SOURCE / "corelane").with_suffix("").parts).removesuffix("__init__")
        found[name.removesuffix(".")] = ast.parse(path.read_text(encoding="utf-8"), str(path))
    return found


def imports(module: str, *, at_import_time: bool = False) -> Iterator[str]:
    """Absolute names of a module's imports: inside functions too, or only what runs at import time."""
    todo: list[ast.AST] = [modules()[module]]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} has a relative import; write it in full, as everywhere else"
            assert node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif not (at_import_time and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)):
            todo += ast.iter_child_nodes(node)


def unit_of(module: str) -> str:
    """The row of the table that a dotted name below corelane belongs to."""
    parts = module.split(".")
    return next((name for name in (".".join(parts[:2]), parts[0]) if name in ARROWS), parts[0])


def ours(name: str) -> str | None:
    """The module below corelane that a name means; None for another's, and for the package itself."""
    parts = name.split(".")
    if parts[0] != "corelane":
        return None
    for length in range(len(parts), 1, -1):  # `from corelane.x import y`: y may be a module, or a name in x
        if (candidate := ".".join(parts[1:length])) in modules():
            return candidate
    return None


@pytest.mark.parametrize("module", [name for name in modules() if name])
def test_imports_follow_the_arrows(module: str) -> None:
    """A lower layer that knows a higher one can be neither tested nor replaced alone."""
    unit = unit_of(module)
    assert unit in ARROWS, f"{module}: a new unit needs a row in ARROWS"
    allowed = ARROWS[unit] | {unit, "errors"}
    used = {unit_of(found) for name in imports(module) if (found := ours(name))}
    assert used <= allowed, f"{module} imports {', '.join(sorted(used - allowed))}"


@pytest.mark.parametrize("unit", STANDARD_LIBRARY_ONLY)
def test_some_modules_need_the_standard_library_alone(unit: str) -> None:
    """When they are imported; functions may import more."""
    names = [name for name in modules() if name == unit or name.startswith(f"{unit}.")]
    assert names
    for module in names:
        tops = {name.split(".")[0] for name in imports(module, at_import_time=True)}
        assert tops <= sys.stdlib_module_names | {"corelane"}, module


def python(code: str, *options: str) -> str:
    """What a fresh interpreter in the repository's root prints."""
    command = [sys.executable, *options, "-c", f"import sys; sys.path.insert(0, {str(SOURCE)!r}); {code}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_command_line_runs_without_any_installed_package() -> None:
    """The proof of the rule above: -S hides all that was installed."""
    needed = ", ".join(f"corelane.{name}" for name in modules() if name.split(".")[0] == "fleet")
    code = f"import {needed}; from corelane.cli import main; main(['--help'])"
    assert "VERB" in python(code, "-I", "-S")


def test_serving_loads_neither_torch_nor_transformers() -> None:
    """One import too many, anywhere below, costs every core server seconds and hundreds of megabytes."""
    units = {"server", "engine", "tasks", "runtimes", "runtimes.base", "runtimes.golden"}
    needed = ", ".join(f"corelane.{name}" for name in modules() if unit_of(name) in units)
    loaded = python(f"import {needed}; print(*(name for name in sys.modules if '.' not in name))").split()
    assert "fastapi" in loaded
    assert not TOO_HEAVY_TO_SERVE & set(loaded)


def test_nothing_shadows_the_real_fastapi() -> None:
    """The folder fastapi/ holds the serving container; with an __init__.py it would be imported instead."""
    assert not (ROOT / "fastapi" / "__init__.py").exists()
    found = python("import fastapi; print(fastapi.__file__)").strip()  # the root is on the path, as with python -c
    assert found != "None"
    assert not Path(found).is_relative_to(ROOT / "fastapi")


def error_classes(
    base: type[errors.CorelaneError] = errors.CorelaneError,
) -> Iterator[type[errors.CorelaneError]]:
    """The tree, its root first."""
    yield base
    for derived in base.__subclasses__():
        yield from error_classes(derived)


@pytest.mark.parametrize("error", list(error_classes()), ids=lambda error: str(error.__name__))
def test_every_error_has_an_exit_code_that_its_tree_states(error: type[errors.CorelaneError]) -> None:
    """Supervisors act on these numbers; an error of one request never ends a process, and needs none."""
    assert errors.__doc__
    branches = (line.strip("│├└─ ") for line in errors.__doc__.splitlines())
    (line,) = (line for line in branches if line.split()[:1] == [error.__name__])
    if issubclass(error, errors.RequestError):
        assert error.exit_code == errors.CorelaneError.exit_code
    else:
        (stated,) = re.findall(r"\b[1-9]\b", line)
        assert error.exit_code == int(stated)


@cache
def files() -> tuple[Path, ...]:
    """All that is committed, or will be with the next `git add`."""
    listed = subprocess.run(
        [
            "git",
            "-c",
            f"safe.directory={ROOT}",
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split("\0")
    return tuple(path for name in listed if name and (path := ROOT / name).is_file())


def texts() -> Iterator[tuple[Path, str]]:
    """Files that are text, with their content."""
    for path in files():
        content = path.read_bytes()
        if b"\0" not in content:
            yield path, content.decode("utf-8")


def test_shell_files_are_in_strict_mode() -> None:
    """Without it a failed step is passed over, and the next one works on what is not there.

    A library without a first line `#!` is only ever sourced, and runs in the mode of its caller.
    """
    shell = [(path, text) for path, text in texts() if re.match(r"#!.*\b(ba)?sh\b", text)]
    assert shell
    strict = re.compile(r"^set (-o errexit -o nounset -o pipefail|-E?euo pipefail)$", re.MULTILINE)
    assert [str(path.relative_to(ROOT)) for path, text in shell if not strict.search(text)] == []


def test_no_module_is_named_for_nothing() -> None:
    """A file is named for its role; what is in `utils` belongs somewhere."""
    nameless = {"utils", "util", "helpers", "common", "misc"}
    assert [path for path in files() if path.stem.lower() in nameless] == []


# Brackets keep this table from finding itself.
_PLACES = re.compile(
    r"(?:^|[^\w.-])/(?:wor[k]|roo[t]|workspac[e]|hom[e]/[a-z][\w.-]*|User[s]/\w+|tm[p]/[\w-]+|far[m])/"
    r"|[A-Z]:\\\\?User[s]"
    r"|https?://[^\s\"']+/(?:simpl[e]|debia[n])(?:[/\"'\s]|$)",
    re.MULTILINE,
)


def test_no_file_names_a_place_of_one_machine() -> None:
    """A path that exists on one machine alone, or the address of somebody's mirror, works nowhere else."""
    found = [
        f"{path.relative_to(ROOT)}: {match[0].strip()}" for path, text in texts() for match in _PLACES.finditer(text)
    ]
    assert found == []
