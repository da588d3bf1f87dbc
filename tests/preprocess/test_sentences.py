"""Full stops are split off as NLTK does with Punkt, and phrases are joined as gensim does."""

import itertools
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from corpus_tokens import write_tokens
from nltk.tokenize.destructive import NLTKWordTokenizer
from nltk.tokenize.punkt import PunktSentenceTokenizer, PunktTrainer

from glovewire.common.storage.dataset import Dataset
from glovewire.preprocess.config import PreprocessConfig
from glovewire.preprocess.pipeline import Pipeline

NAMES = ["Baker", "Lincoln", "Smith", "Turing", "Noether", "Lee", "York"]
VERBS = ["met", "saw", "joined", "left", "praised"]
NOUNS = ["matrix", "city", "river", "school", "war", "vector", "army", "law", "sea", "paper"]
ENDS = [".", ".", ".", ".", "?", '."', ".)", "!"]


def sentence(draw: random.Random) -> str:
    name, other = draw.choices(NAMES, k=2)
    place = draw.choice(
        ["in the U.S.", "near New York", "in 1990", "e.g. the old one,", "i.e. there,", "(see p. 7)", ""]
    )
    return (
        draw.choice(["The", "A", "This", "Dr.", "J. R.", "Mr.", "In 1990 the"])
        + f" {draw.choice([name, draw.choice(NOUNS)])} {draw.choice(VERBS)} {draw.choice(['the', 'Dr. ' + other])}"
        f" {draw.choice(NOUNS)} {place} with the {draw.choice(NOUNS)}, {draw.choice(NOUNS)}, etc. and the"
        f" {draw.choice(NOUNS)}{draw.choice(ENDS)}"
    ).replace("  ", " ")


def paragraphs(count: int, seed: int = 0) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(sentence(draw) for _ in range(draw.randrange(1, 6))) for _ in range(count)]


def tokens(tmp_path: Path, lines: list[str], **options: Any) -> list[list[str]]:
    source, out = tmp_path / "text.txt", tmp_path / "tokens.txt"
    source.write_text("\n".join(lines) + "\n", encoding="utf-8")
    write_tokens(PreprocessConfig(corpus=(str(source),), out=out, memory=1 << 30, processes=1, **options))
    return [line.split() for line in out.read_text(encoding="utf-8").split("\n")[:-1]]


def nltk_tokens(lines: list[str]) -> list[list[str]]:
    trainer = PunktTrainer()
    trainer.IGNORE_ABBREV_PENALTY = True
    trainer.train("\n\n".join(lines))
    sentences, words = PunktSentenceTokenizer(trainer.get_params()), NLTKWordTokenizer()
    return [[w.lower() for each in sentences.tokenize(line) for w in words.tokenize(each)] for line in lines]


def test_tokens_are_those_of_nltk(tmp_path: Path) -> None:
    lines = paragraphs(1500)
    ours, theirs = tokens(tmp_path, lines), nltk_tokens(lines)
    differ = sum(1 for a, b in zip(ours, theirs, strict=True) if a != b)
    assert differ < 0.02 * len(lines)  # an abbreviation before a word that often begins sentences
    counts = Counter(itertools.chain.from_iterable(ours))
    assert {"dr.", "mr.", "etc.", "e.g.", "i.e.", "u.s.", "j.", "p."} <= counts.keys()
    assert not {f"{noun}." for noun in NOUNS} & counts.keys()


def test_a_full_stop_at_the_end_of_a_line_is_always_split_off(tmp_path: Path) -> None:
    lines = [*paragraphs(300), "It met Dr.", "In the U.S.)", "They can't."]
    found = tokens(tmp_path, lines)[-3:]
    assert found == [["it", "met", "dr", "."], ["in", "the", "u.s", ".", ")"], ["they", "ca", "n't", "."]]


def test_text_that_is_tokenised_already_keeps_its_tokens(tmp_path: Path) -> None:
    lines = [line.replace(". ", " . ") for line in (" ".join(each) for each in nltk_tokens(paragraphs(200)))]
    lines += ["The no. 5 of Mr. Lee was first . It won ."] * 30
    assert tokens(tmp_path, lines) == tokens(tmp_path, lines, sentences="off")


def test_case_and_digits(tmp_path: Path) -> None:
    lines = [*paragraphs(300), "The U.S. met Ünal in 1990. The city, Dr. Lee's city. It was 3.14!"]
    assert " ".join(tokens(tmp_path, lines, lowercase=False, digits="zero")[-1]) == (
        "The U.S. met Ünal in 0000 . The city , Dr. Lee 's city . It was 0.00 !"
    )


def test_abbreviations_are_recorded(tmp_path: Path) -> None:
    source = tmp_path / "text.txt"
    source.write_text("\n".join(paragraphs(300)), encoding="utf-8")
    made = Pipeline(PreprocessConfig(corpus=(str(source),), out=tmp_path / "d", memory=1 << 30, processes=2)).run()
    lines = (tmp_path / "d" / "abbreviations.txt").read_text(encoding="utf-8").splitlines()
    found = {word: int(count) for word, count in (line.split() for line in lines)}
    assert {"dr.", "etc.", "u.s."} <= found.keys()
    assert list(found.items())[:20] == list(made["most_frequent_abbreviations"].items())
    assert Dataset.open(tmp_path / "d").manifest.facts["sentences"] == "punkt"


@pytest.mark.parametrize("passes", [1, 2])
def test_phrases_are_those_of_gensim(tmp_path: Path, passes: int) -> None:
    phrases = pytest.importorskip("gensim.models.phrases")
    draw = random.Random(1)
    rare = [f"w{n}" for n in range(400)]
    pairs = ["new york city", "united states", "ice cream", "of the"]
    lines = [" ".join(draw.choices([*pairs, *rare, "the", "a"], k=12)) for _ in range(800)]
    expected = [line.split() for line in lines]
    for _ in range(passes):
        model = phrases.Phrases(expected, min_count=5, threshold=10.0)
        expected = [model[line] for line in expected]
    found = tokens(tmp_path, lines, tokenizer="whitespace", phrases=passes)
    assert found == expected
    joined = {word for line in found for word in line if "_" in word}
    assert {"united_states", "ice_cream"} <= joined
    assert ("new_york_city" in joined) == (passes == 2)
