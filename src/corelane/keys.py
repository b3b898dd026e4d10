"""The table of all settings: name, file, kind, default, meaning. A leaf on the standard library.

The README's table is made from it, `settings` reads by it, and `Settings` has a field for each row.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CONFIG_FILE = "config.properties"
DOCKER_FILE = "docker.properties"
ENV_FILE = ".env"
FILES = (CONFIG_FILE, DOCKER_FILE, ENV_FILE)
PREFIX = "CORELANE_"

# Of a key that nothing here reads yet, though other tools do: setting it is no mistake.
UNREAD = "not read yet, never refused"


@dataclass(frozen=True)
class Kind:
    """What a value may be: `parse(text, root)` answers it typed or raises ValueError; `expects`, in words."""

    expects: str
    parse: Callable[[str, Path], Any]


@dataclass(frozen=True)
class Key:
    """One setting: a row of the README's table and a field of Settings.

    `default` is written as a file would have it. `carried`: True; False when only the default works in this
    version; the words that do; or UNREAD.
    """

    name: str
    file: str
    kind: Kind
    default: str
    help: str
    carried: bool | tuple[str, ...] | str = True
    also_in: str = ""

    @property
    def files(self) -> tuple[str, ...]:
        return (self.file, self.also_in) if self.also_in else (self.file,)

    def spellings(self, file: str) -> tuple[str, ...]:
        """The names of the key in `file`, the one to recommend last."""
        if file not in self.files:
            return ()
        if file != ENV_FILE:
            return (self.name,)
        return (self.name, self.name.upper()) if self.name in PROXIES else (self.name.upper(),)

    @property
    def variables(self) -> tuple[str, ...]:
        """The environment variables of the key, strongest first."""
        prefixed = () if self.file == ENV_FILE else (PREFIX + self.name.upper(),)
        return prefixed + self.spellings(ENV_FILE)


PROXIES = ("http_proxy", "https_proxy", "no_proxy")


def _whole_number(text: str, low: int, high: int) -> int:
    # Not int() alone: it takes "1_000", " 8", "-1" and digits of other scripts, which bash and Docker do not.
    if not re.fullmatch(r"0|[1-9][0-9]{0,11}", text) or not low <= int(text) <= high:
        raise ValueError(text)
    return int(text)


def _number(low: int, high: int, **words: int | str) -> Kind:
    """A decimal number from `low` to `high`, or one of `words`, each with what it stands for."""

    def parse(text: str, root: Path) -> int | str:
        return words[text] if text in words else _whole_number(text, low, high)

    others = "".join(f", or {word}" for word in words)
    return Kind(f"a number from {low} to {high}{others}", parse)


def _numbers(high: int, *, may_be_empty: bool = False) -> Kind:
    """Numbers with commas between them, in any order; the value is ascending and distinct."""

    def parse(text: str, root: Path) -> tuple[int, ...]:
        if may_be_empty and not text:
            return ()
        return tuple(sorted({_whole_number(item.strip(" \t"), 1, high) for item in text.split(",")}))

    return Kind(f"numbers from 1 to {high} with commas between them", parse)


def _choice(*words: str) -> Kind:
    def parse(text: str, root: Path) -> str:
        if text not in words:
            raise ValueError(text)
        return text

    return Kind("one of " + ", ".join(words), parse)


def _text(pattern: str = ".*", expects: str = "text") -> Kind:
    def parse(text: str, root: Path) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(text)
        return text

    return Kind(expects, parse)


def _folder(text: str, root: Path) -> Path:
    # Nothing expands ~ here, and a folder of that name is never what was meant.
    if not text or text.startswith("~"):
        raise ValueError(text)
    return Path(os.path.normpath(root / text))


_ANY = _text()
_FILLED = _text(".+", "a word")
_ADDRESS = _text(r"\S+", "an address such as 127.0.0.1 or 0.0.0.0")
_NAME = _text(r"[a-z0-9][a-z0-9_.-]{0,99}", "at most 100 of a-z, 0-9, _, . and -, a letter or digit first")
_PORT = _number(1, 65535)
_FOLDER = Kind("a folder, absolute or relative to the configuration's, without ~", _folder)
_DAY_MS = 24 * 60 * 60 * 1000


def _config(name: str, kind: Kind, default: str, help: str, carried: bool | tuple[str, ...] = True) -> Key:
    return Key(name, CONFIG_FILE, kind, default, help, carried)


def _docker(name: str, kind: Kind, default: str, help: str, also_in: str = "") -> Key:
    return Key(name, DOCKER_FILE, kind, default, help, carried=False, also_in=also_in)


def _env(name: str, kind: Kind, default: str, help: str, carried: bool | str = True) -> Key:
    return Key(name, ENV_FILE, kind, default, help, carried)


KEYS: tuple[Key, ...] = (
    # The sample's own names first.
    _config("docker_image_name_prefix", _FILLED, "corelane", "First part of the image names.", carried=False),
    _config(
        "docker_container_name_prefix",
        _NAME,
        "corelane",
        "First part of the container names; the deployment's name.",
    ),
    _config("path_to_traced_models", _FOLDER, "traced-models", "Folder of the bundles that `trace` makes."),
    _config("compiled_model", _ANY, "", "Bundle to serve, `NAME[@VERSION]`; empty: `model_name`'s newest."),
    _config(
        "num_cores",
        _number(1, 4096, all="all"),
        "2",
        "Cores, each with its own server; capped at what exists; or `all`.",
    ),
    _config("num_models_per_server", _number(1, 1024), "1", "Slots (`model_0`, ...) of each server."),
    # Ours: what is traced.
    _config("model_name", _FILLED, "demo-qa", "Hugging Face id, local folder, `demo-qa` or `demo-embed`."),
    _config("model_revision", _ANY, "", "Branch, tag or commit on the hub; empty: its main branch."),
    _config("task", _ANY, "", "Such as `question-answering`; empty: inferred from the model."),
    _config("batch_sizes", _numbers(4096), "1,8", "Rows of the compiled shapes."),
    _config(
        "sequence_lengths",
        _numbers(1_000_000, may_be_empty=True),
        "",
        "Tokens of the compiled shapes; empty: the task's own.",
    ),
    _config(
        "precision",
        _choice("float32", "int8"),
        "float32",
        "Of the compiled model's weights: `float32` or `int8`; `int8` is traced with `pip install 'corelane[int8]'`.",
    ),
    # Ours: where it runs.
    _config(
        "runtime",
        _choice("auto", "process", "docker"),
        "auto",
        "`process`, `docker`, or `auto`: docker when CHIP_TYPE is not cpu.",
        carried=("auto", "process"),
    ),
    _config("instance_type", _ANY, "", "Such as `inf2.48xlarge`; empty on the CPU.", carried=False),
    _config("cores_per_server", _number(1, 1024), "1", "Cores that one server holds.", carried=False),
    _config("bind_address", _ADDRESS, "127.0.0.1", "Listen here; `0.0.0.0` is open to the network."),
    _config("first_port", _PORT, "8081", "Core N's own server listens on `first_port` + N."),
    _config("gateway", _choice("auto", "none"), "auto", "`auto`: HAProxy in front of all cores; or `none`."),
    _config("gateway_port", _PORT, "8080", "Port of that one address."),
    _config("http_workers", _number(1, 1024), "1", "HTTP processes in front of one core.", carried=False),
    # Ours: how it answers.
    _config("max_queue_rows", _number(1, 1_000_000), "512", "Rows that may wait for a core; more: 429."),
    _config("batch_wait_ms", _number(0, 60_000), "0", "Time a batch waits to be filled.", carried=False),
    _config(
        "request_timeout_ms",
        _number(0, _DAY_MS, off=0, false=0, none=0),
        "30000",
        "An older request is answered 504; 0 or `off`: never.",
    ),
    _config("drain_timeout_ms", _number(0, _DAY_MS), "10000", "Time that running requests get at a stop."),
    _config("golden_period_ms", _number(1, _DAY_MS), "1000", "A known row is checked at least this often."),
    _config("start_parallel", _number(1, 4096), "2", "Servers that load their model at the same time."),
    _config("max_body_bytes", _number(1, 1024**3), "1048576", "A longer request body is answered 413."),
    _config("api_keys_file", _ANY, "", "File of the keys that callers must send.", carried=False),
    # Ours: for the Neuron compilers.
    _config("compiler_args", _ANY, "", "Further arguments of the compiler.", carried=False),
    _config("auto_cast", _ANY, "", "Which operations the compiler casts; empty: its own.", carried=False),
    _config("auto_cast_type", _ANY, "", "What it casts them to; empty: its own.", carried=False),
    _config("optlevel", _number(0, 3), "0", "Optimisation level 1 to 3; 0: the compiler's own.", carried=False),
    _config("lnc", _number(0, 2), "0", "Physical cores in a logical one; 0: the chip's own.", carried=False),
    # Images.
    _docker(
        "registry",
        _ANY,
        "",
        "Where images are pushed to, such as `host.example:5000/team`.",
        also_in=ENV_FILE,
    ),
    _docker("image_tag", _FILLED, "latest", "Tag of the images."),
    _docker("base_image", _ANY, "", "Image they are built on; empty: the one for the chip."),
    _docker("pip_index_url", _ANY, "", "Package index inside the build; empty: pip's own."),
    _docker("pip_extra_index_url", _ANY, "", "A second one."),
    # The machine.
    _env(
        "chip_type",
        _choice("cpu", "inf1", "inf2", "trn1", "trn2", "trn3"),
        "cpu",
        "`cpu`, `inf1`, `inf2`, `trn1`, `trn2` or `trn3`; this version serves and traces on `cpu`.",
    ),
    _env("aws_region", _ANY, "", "For the AWS commands; nothing on the CPU asks AWS.", carried=UNREAD),
    _env("aws_default_region", _ANY, "", "The same, when AWS_REGION is empty.", carried=UNREAD),
    _env("aws_profile", _ANY, "", "Profile of the AWS commands.", carried=UNREAD),
    _env("http_proxy", _ANY, "", "Proxy for the downloads of `./deploy.sh` and of tracing."),
    _env("https_proxy", _ANY, "", "The same for https."),
    _env("no_proxy", _ANY, "", "Hosts that are reached without it."),
)
