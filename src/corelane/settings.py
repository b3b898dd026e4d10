"""The one reader of `config.properties`, `docker.properties`, `.env` and the environment: frozen `Settings`.

A leaf that needs the standard library alone. Bash does not read these files: it evaluates what
`python -m corelane.settings --shell` prints, so both always agree. What the values mean to a machine
(how many cores exist, which ports collide) is topology's business.

Where a value comes from, strongest first:
  1. the environment: CORELANE_<KEY IN CAPITALS> for the two properties files, the same-named variable for
     .env (CHIP_TYPE; a proxy also in lower case, which then wins, as it does in curl and Python);
  2. the file (CORELANE_CONFIG names another in place of config.properties, a relative one from the root on);
  3. the default in KEYS.
config.properties must exist; the other two need not.

What a file may hold is the business of `properties`, which keys there are that of `keys`. Refused here,
with file and line: a key that nobody knows (with the nearest known name) or that belongs in another
file; a value of the wrong kind, or one that this version does not carry yet. In the environment also:
quotes, blanks or a comment that an env-file reader left around a value, and an unknown CORELANE_
variable (TOOL_VARIABLES are known, and what Kubernetes injects for a Service is passed over).
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from corelane.errors import ConfigError
from corelane.keys import CONFIG_FILE, ENV_FILE, FILES, KEYS, PREFIX, PROXIES, Key
from corelane.properties import BLANKS, COMMENT, as_line, is_invisible, parse_properties, shown

CONFIG_VARIABLE = "CORELANE_CONFIG"

# CORELANE_ variables that are no keys: the scripts and this reader use them.
TOOL_VARIABLES = {
    CONFIG_VARIABLE: "the file to read in place of config.properties",
    "CORELANE_PYTHON": "the Python that deploy.sh makes the virtual environment with",
    "CORELANE_VENV": "the virtual environment that deploy.sh and the scripts use in place of .venv",
    "CORELANE_DEV_VENV": "the one that scripts/check and scripts/test use in place of .venv-dev",
}

# Kubernetes puts these into every pod of a namespace with a Service called corelane or corelane-something.
_SERVICE_LINK = re.compile(
    r"CORELANE_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)"
)

# No configuration is this long: the bound is for a name such as /dev/zero.
_MAX_FILE_BYTES = 1024 * 1024


@dataclass(frozen=True)
class Settings:
    """All settings, each typed and checked. `repr` hides the values in which people keep passwords.

    `source` says of every key where its value came from: "config.properties:3",
    "environment CORELANE_NUM_CORES", "default".
    """

    root: Path
    docker_image_name_prefix: str
    docker_container_name_prefix: str
    path_to_traced_models: Path
    compiled_model: str
    num_cores: int | Literal["all"]
    num_models_per_server: int
    model_name: str
    model_revision: str
    task: str
    batch_sizes: tuple[int, ...]
    sequence_lengths: tuple[int, ...]
    precision: str
    runtime: str
    instance_type: str
    cores_per_server: int
    bind_address: str
    first_port: int
    gateway: str
    gateway_port: int
    http_workers: int
    max_queue_rows: int
    batch_wait_ms: int
    request_timeout_ms: int
    drain_timeout_ms: int
    golden_period_ms: int
    start_parallel: int
    max_body_bytes: int
    api_keys_file: str
    compiler_args: str
    auto_cast: str
    auto_cast_type: str
    optlevel: int
    lnc: int
    registry: str
    image_tag: str
    base_image: str
    pip_index_url: str = field(repr=False)
    pip_extra_index_url: str = field(repr=False)
    chip_type: str
    aws_region: str
    aws_default_region: str
    aws_profile: str
    http_proxy: str = field(repr=False)
    https_proxy: str = field(repr=False)
    no_proxy: str
    source: dict[str, str] = field(compare=False, repr=False)


# ----------------------------------------------------------------------------------------------------------
# All of them
# ----------------------------------------------------------------------------------------------------------


def load(root: Path, environ: Mapping[str, str] = os.environ, *, refuse_uncarried: bool = True) -> Settings:
    """Read the three files of the folder `root` and the environment; raise ConfigError with one sentence.

    `refuse_uncarried=False` is for those who only look at the values (see `uncarried`).
    """
    root = Path(os.path.abspath(root))
    _refuse_unknown_variables(environ)
    found: dict[str, tuple[str, str]] = {}  # key -> value, source
    for file in FILES:
        for key, value, source in _read_file(root, file, environ):
            if key.name in found and found[key.name][0] != value:
                raise ConfigError(
                    f"{source}: {key.name}={shown(value)}, but {found[key.name][1]} says "
                    f"{shown(found[key.name][0])}; keep one"
                )
            found.setdefault(key.name, (value, source))
    for key in KEYS:
        for variable in key.variables:
            if variable in environ:
                found[key.name] = (_from_environment(environ[variable], variable), f"environment {variable}")
                break
    values = {key.name: _typed(key, *found.get(key.name, (key.default, "default")), root) for key in KEYS}
    sources = {key.name: found[key.name][1] if key.name in found else "default" for key in KEYS}
    settings = Settings(root=root, source=sources, **values)
    if refuse_uncarried:
        for sentence in uncarried(settings):
            raise ConfigError(sentence)
    return settings


def uncarried(settings: Settings) -> tuple[str, ...]:
    """A sentence for every value that was asked of us and does nothing in this version.

    REGISTRY and its kind in the environment speak to other tools as well: they are never refused.
    """
    sentences = []
    for key in KEYS:
        value, source = getattr(settings, key.name), settings.source[key.name]
        if key.carried is True or isinstance(key.carried, str):
            continue
        if source.removeprefix("environment ") in key.spellings(ENV_FILE):
            continue
        words = key.carried or (written(key.kind.parse(key.default, settings.root)),)
        if written(value) not in words:
            only = " or ".join(word or "an empty value" for word in words)
            sentences.append(
                f"{source}: {key.name}={shown(written(value))} is not carried by this version yet, "
                f"only {only} is; {_remedy(source)} it"
            )
    return tuple(sentences)


def _read_file(root: Path, file: str, environ: Mapping[str, str]) -> list[tuple[Key, str, str]]:
    """(key, value, source) of every line of one of FILES; empty when an optional file is not there."""
    path, name = root / file, file
    if file == CONFIG_FILE and CONFIG_VARIABLE in environ:
        name = _from_environment(environ[CONFIG_VARIABLE], CONFIG_VARIABLE)
        path = root / name
        if not name:
            raise ConfigError(f"environment {CONFIG_VARIABLE} is empty; name a file, or unset it to read {root / file}")
    try:
        with path.open("rb") as stream:
            data = stream.read(_MAX_FILE_BYTES + 1)
    except FileNotFoundError as err:
        if file != CONFIG_FILE:
            return []
        if CONFIG_VARIABLE in environ:
            raise ConfigError(
                f"environment {CONFIG_VARIABLE} names {path}, which does not exist; correct or unset it"
            ) from err
        raise ConfigError(
            f"{path} does not exist; go to the project's folder, restore the file, or name one with {CONFIG_VARIABLE}"
        ) from err
    except OSError as err:
        raise ConfigError(f"{path} cannot be read ({err.strerror}); make it a file that this user may read") from err
    if len(data) > _MAX_FILE_BYTES:
        raise ConfigError(
            f"{path} has more than {_MAX_FILE_BYTES} bytes, which no configuration has; name the right file"
        )
    known = {spelling: key for key in KEYS for spelling in key.spellings(file)}
    first: dict[str, int] = {}  # key -> line; HTTP_PROXY and http_proxy are one key
    found = []
    for spelling, entry in parse_properties(data, name).items():
        where = f"{name}:{entry.line}"
        if spelling not in known:
            raise ConfigError(f"{where}: {_unknown(spelling, file)}")
        key = known[spelling]
        if key.name in first:
            raise ConfigError(
                f"{where}: {spelling} stands already in line {first[key.name]}, spelled otherwise; keep one of the two"
            )
        first[key.name] = entry.line
        found.append((key, entry.value, where))
    return found


def _from_environment(value: str, variable: str) -> str:
    """The variable's value, or an error when something is around it that a shell would have taken off.

    `docker run --env-file` keeps quotes and trailing comments; such a value fails far from here, or never.
    """
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as err:
        raise ConfigError(f"environment {variable}={shown(value)} is not UTF-8; set it again") from err
    if any(is_invisible(character) for character in value):
        raise ConfigError(f"environment {variable}={shown(value)} holds a control character; set it in one line")
    if len(value) > 1 and value[0] in "'\"" and value[-1] == value[0]:
        raise ConfigError(
            f"environment {variable} is {value if '@' not in value else shown(value)} with its quotes; "
            "set it without them"
        )
    if value != value.strip(BLANKS) or COMMENT.search(value):
        raise ConfigError(
            f"environment {variable}={shown(value)} has blanks or a comment around its value; set the value alone"
        )
    return value


def _typed(key: Key, text: str, source: str, root: Path) -> Any:
    try:
        return key.kind.parse(text, root)
    except ValueError:
        default = f"the default {key.default}" if key.default else "the default"
        raise ConfigError(
            f"{source}: {key.name}={shown(text)} should be {key.kind.expects}; correct it, "
            f"or {_remedy(source)} it for {default}"
        ) from None


def _remedy(source: str) -> str:
    return "unset" if source.startswith("environment ") else "remove"


# ----------------------------------------------------------------------------------------------------------
# Names nobody knows
# ----------------------------------------------------------------------------------------------------------


def _refuse_unknown_variables(environ: Mapping[str, str]) -> None:
    known = {variable for key in KEYS for variable in key.variables} | TOOL_VARIABLES.keys()
    for variable in sorted(environ):
        if variable.startswith(PREFIX) and variable not in known and not _SERVICE_LINK.fullmatch(variable):
            raise ConfigError(f"environment {variable}: {_unknown_variable(variable, known)}")


def _unknown_variable(variable: str, known: Iterable[str]) -> str:
    for key in KEYS:
        if _folded(variable) == key.name:
            return f"{key.name} is read from {key.variables[-1]}; unset the one and set the other"
    ours = (name for name in known if name.startswith(PREFIX))
    return f"no such setting is known{_perhaps(variable, ours)}; correct or unset it"


def _unknown(spelling: str, file: str) -> str:
    for key in KEYS:
        if _folded(spelling) == key.name and file not in key.files:
            return f"{spelling} belongs in {key.file}, as {key.spellings(key.file)[-1]}; move the line there"
    here = [key.spellings(file)[-1] for key in KEYS if file in key.files]
    elsewhere = {key.spellings(key.file)[-1]: key.file for key in KEYS if file not in key.files}
    hint = _perhaps(spelling, here) or _perhaps(spelling, elsewhere)
    other = elsewhere.get(hint.rpartition(" ")[2])
    return f"no setting {spelling} is known{hint}{f' of {other}' if other else ''}; correct or remove the line"


def _perhaps(name: str, known: Iterable[str]) -> str:
    folded = {_folded(candidate): candidate for candidate in known}
    nearest = difflib.get_close_matches(_folded(name), folded, n=1)
    return f", did you mean {folded[nearest[0]]}" if nearest else ""


def _folded(name: str) -> str:
    """A name without what people get wrong in it: capitals, our prefix, - for _."""
    return re.sub(r"[.-]", "_", name).lower().removeprefix(PREFIX.lower())


# ----------------------------------------------------------------------------------------------------------
# For bash, the README and the eye
# ----------------------------------------------------------------------------------------------------------


def written(value: object) -> str:
    """A typed value as a file or a variable would have it."""
    return ",".join(str(item) for item in value) if isinstance(value, tuple) else str(value)


def proxy_environment(settings: Settings) -> dict[str, str]:
    """What whoever downloads needs in its environment, in both spellings: no tool reads .env by itself."""
    found = {name: getattr(settings, name) for name in PROXIES}
    return {spelling: value for name, value in found.items() if value for spelling in (name, name.upper())}


def frozen(settings: Settings, **changes: str) -> dict[str, str]:
    """Files whose folder, as a root, gives a server these settings, whatever becomes of the files they came from.

    What only downloads and images need is left out, and `changes` have the last word.
    """
    texts = {key: changes.get(key.name, written(getattr(settings, key.name))) for key in KEYS}
    config = [as_line(key.name, text) for key, text in texts.items() if key.file == CONFIG_FILE]
    machine = [as_line(key.spellings(ENV_FILE)[-1], text) for key, text in texts.items() if key.name == "chip_type"]
    return {CONFIG_FILE: "\n".join([*config, ""]), ENV_FILE: "\n".join([*machine, ""])}


def shell_lines(settings: Settings, names: Sequence[str] = ()) -> list[str]:
    """`key=value` lines for bash's eval, quoted where needed; all keys when `names` is empty."""
    known = [key.name for key in KEYS]
    for name in names:
        if name not in known:
            raise ConfigError(
                f"--shell {name}: no such setting is known{_perhaps(name, known)}; name a key, or none for all"
            )
    return [f"{name}={shlex.quote(written(getattr(settings, name)))}" for name in names or known]


def table() -> str:
    """Every key as a row of the README's table, in Markdown."""
    rows = ["| key | file | default | meaning | carried |", "| --- | --- | --- | --- | --- |"]
    for key in KEYS:
        files = " or ".join(f"`{file}`" for file in key.files)
        default = f"`{key.default}`" if key.default else "(empty)"
        carried = _in_words(key.carried)
        name = key.spellings(key.file)[-1]
        rows.append(f"| `{name}` | {files} | {default} | {key.help.replace('|', chr(92) + '|')} | {carried} |")
    return "\n".join(rows)


def _in_words(carried: bool | tuple[str, ...] | str) -> str:
    if isinstance(carried, str):
        return carried
    return ", ".join(carried) if isinstance(carried, tuple) else "yes" if carried else "not yet"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m corelane.settings", description="Read and check the configuration."
    )
    parser.add_argument("--root", type=Path, default=Path(), help="folder of the three files (default: this one)")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument(
        "--shell",
        nargs="*",
        metavar="KEY",
        help="print key='value' lines for bash's eval (default: all keys)",
    )
    mode.add_argument("--table", action="store_true", help="print the README's table of all keys")
    arguments = parser.parse_args(argv)
    if arguments.table:
        print(table())
        return 0
    try:
        # Printing a value accepts nothing: bash may see what this version does not carry, and is told so.
        settings = load(arguments.root, os.environ, refuse_uncarried=arguments.shell is None)
        lines = shell_lines(settings, arguments.shell or ())
    except ConfigError as err:
        print(f"corelane: error: {err}", file=sys.stderr)
        return err.exit_code
    for sentence in uncarried(settings):
        print(f"corelane: {sentence}", file=sys.stderr)
    sys.stdout.buffer.write("".join(f"{line}\n" for line in lines).encode("utf-8"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
