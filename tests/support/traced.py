"""Real models to trace: the demos through `trace`, and tiny random ones in folders, as `save_pretrained`
leaves them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from corelane.bundle import Bundle
from corelane.settings import Settings, load
from corelane.tracing.simulate import simulate
from corelane.tracing.trace import trace

VOCABULARY = ["<s>", "<pad>", "</s>", "<unk>", *"abcdefghijklmnopqrstuvwxyz0123456789.,;:?'"]


def settings(root: Path, **values: object) -> Settings:
    """Settings as a configuration file in `root` gives them."""
    lines = [f"{key}={value}" for key, value in values.items()]
    (root / "config.properties").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return load(root, {})


def traced(root: Path, **values: object) -> Bundle:
    return trace(settings(root, **values))


def simulated(root: Path, name: str = "inf2-bert-base", times: str = "", bundle_name: str = "") -> Bundle:
    """A bundle without a model, beside the ones that `traced` makes."""
    return simulate(settings(root), name, times=times, bundle_name=bundle_name)


def _save_tokenizer(folder: Path, *, segments: bool) -> None:
    """A tokenizer of single characters with the RoBERTa family's special tokens, or with BERT's use of
    segments."""
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors

    tokenizer = Tokenizer(models.WordLevel({token: place for place, token in enumerate(VOCABULARY)}, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Split(Regex("."), "isolated")]
    )
    pair = "<s> $A </s> $B:1 </s>:1" if segments else "<s> $A </s> </s> $B </s>"
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A </s>", pair, [("<s>", 0), ("</s>", 2)])
    tokenizer.enable_truncation(16)  # as many published files have it: must not reach the bundle
    tokenizer.enable_padding(length=16, pad_id=1, pad_token="<pad>")
    tokenizer.save(str(folder / "tokenizer.json"))


def tiny_bert(folder: Path, *, seed: int = 0, head: bool = True) -> Path:
    from transformers import BertConfig, BertForQuestionAnswering, BertModel

    config = BertConfig(**_sizes(max_position_embeddings=64), type_vocab_size=2, pad_token_id=1)
    _save(BertForQuestionAnswering if head else BertModel, config, folder, seed)
    _save_tokenizer(folder, segments=True)
    return folder


def tiny_classifier(folder: Path, *, seed: int = 0, **config: Any) -> Path:
    from transformers import BertConfig, BertForSequenceClassification

    sizes = BertConfig(**_sizes(max_position_embeddings=64), type_vocab_size=2, pad_token_id=1, **config)
    _save(BertForSequenceClassification, sizes, folder, seed)
    _save_tokenizer(folder, segments=True)
    return folder


def tiny_roberta(folder: Path, *, pad_token_id: int = 1, positions: int = 514) -> Path:
    from transformers import RobertaConfig, RobertaForQuestionAnswering

    config = RobertaConfig(**_sizes(max_position_embeddings=positions), type_vocab_size=1, pad_token_id=pad_token_id)
    _save(RobertaForQuestionAnswering, config, folder, 0)
    _save_tokenizer(folder, segments=False)
    return folder


def sentence_files(folder: Path, pooling: dict[str, Any], modules: tuple[str, ...] = ("Pooling", "Normalize")) -> None:
    """The sentence-transformers files beside a model."""
    names = ("Transformer", *modules)
    listed = [
        {
            "idx": place,
            "name": str(place),
            "path": f"{place}_{name}" if place else "",
            "type": f"sentence_transformers.models.{name}",
        }
        for place, name in enumerate(names)
    ]
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 48, "do_lower_case": False}))
    for place, name in enumerate(names[1:], 1):
        (folder / f"{place}_{name}").mkdir(exist_ok=True)
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))


def _sizes(**more: int) -> dict[str, Any]:
    return {
        "vocab_size": len(VOCABULARY),
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        **more,
    }


def _save(kind: Any, config: Any, folder: Path, seed: int) -> None:
    import torch

    torch.manual_seed(seed)
    model = kind(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.3)  # larger than a fresh model's, so that a fault shows in the outputs
    model.save_pretrained(folder)
