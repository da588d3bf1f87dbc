"""Regular expressions and files of the `tokenizers` library give the tokens, and no character is cut."""

from pathlib import Path

import numpy as np
import pytest

from glovewire.preprocess.tokens.encoder import Encoder
from glovewire.preprocess.tokens.tokenizers import Tokenizer, make_tokenizer

TEXTS = ["日本語の文章です。次の文。", "السلام عليكم. كيف حالك؟", "שלום עולם, מה שלומך?", "e\u0301te\u0301 ñ"]


def tokens(tokenizer: Tokenizer, text: str) -> list[str]:
    encoder = Encoder(tokenizer)
    raw = text.encode()
    ids = encoder.encode(raw, np.array([0]), np.array([len(raw)]), 0)
    words = encoder.take_counts()
    names = {
        int(number): words.data[words.bounds[n] : words.bounds[n + 1]].tobytes().decode()
        for n, number in enumerate(words.numbers)
    }
    return [names[number] for number in ids.tolist() if number]


def test_a_regular_expression() -> None:
    assert tokens(make_tokenizer(r"regex:\w+|[^\w\s]"), "Don't stop: 3.5  ab-c") == (
        ["don", "'", "t", "stop", ":", "3", ".", "5", "ab", "-", "c"]
    )
    assert tokens(make_tokenizer("regex:[a-z]*"), "ab1c 22 d") == ["ab", "c", "d"]


def test_a_file_of_the_tokenizers_library(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    model = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="[UNK]"))
    model.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=40, special_tokens=["[UNK]"], show_progress=False)
    model.train_from_iterator(["low lower lowest newer newest wider"] * 20, trainer)
    model.save(str(tmp_path / "bpe.json"))
    found = tokens(make_tokenizer(f"bpe:{tmp_path / 'bpe.json'}"), "lower newest  wide")
    assert found == model.encode("lower newest wide").tokens
    assert "".join(found).replace("▁", " ").strip() == "lower newest wide"


@pytest.mark.parametrize("name", ["nltk", "whitespace", r"regex:\w+|\W"])
@pytest.mark.parametrize("text", TEXTS)
def test_no_word_is_cut_inside_a_character(name: str, text: str) -> None:
    found = tokens(make_tokenizer(name), text)
    assert "".join(found) == "".join(text.split())
