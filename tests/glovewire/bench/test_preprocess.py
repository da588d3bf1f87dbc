"""The benchmark runs, compares, and says what it found; how fast anything is, is not tested."""

import json
import lzma
from pathlib import Path

from click.testing import CliRunner

from glovewire.bench import preprocess as bench
from glovewire.preprocess.tokens.encoder import Encoder
from glovewire.preprocess.tokens.nltk_tokens import make_tokenizer

TOOL = "#!/bin/sh\ncat > /dev/null\nprintf 'a 1\\n'\n"
TEXT = 'The cat said "no."\n\nIt cannot be, the dog said; so they read on.\n' * 20


def peer(folder: Path, script: str = TOOL) -> Path:
    for name in ("vocab_count", "cooccur", "shuffle"):
        (folder / name).write_text(script)
        (folder / name).chmod(0o755)
    return folder


def test_a_benchmark_beside_a_peer(tmp_path: Path) -> None:
    corpus = tmp_path / "text.txt"
    corpus.write_text(TEXT)
    arguments = [str(corpus), "--processes", "1", "--peer", str(peer(tmp_path)), "--json"]
    result = CliRunner().invoke(bench.command, arguments)
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout.splitlines()[-1])
    assert set(facts["peer"][0]) == {"vocab_count", "cooccur", "shuffle", "total"}
    assert facts["ratio"] > 0
    assert facts["tokeniser"]["cold_ratio"] > 0
    assert facts["runs"][0]["tokens"] == 21 * 20
    assert facts["versions"]["nltk"] == "3.10.4"


def test_a_compressed_corpus_is_read_as_text_and_what_is_none_is_refused(tmp_path: Path) -> None:
    corpus = tmp_path / "text.txt.xz"
    corpus.write_bytes(lzma.compress(TEXT.encode()))
    result = CliRunner().invoke(bench.command, [str(corpus), "--processes", "1", "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout.splitlines()[-1])["runs"][0]["tokens"] == 21 * 20
    binary = tmp_path / "binary.txt"
    for bad, why in ((b"good\nb\0d\n", "NUL byte"), (b"good\nb\xffd\n", "not UTF-8")):
        binary.write_bytes(bad)
        refused = CliRunner().invoke(bench.command, [str(binary), "--processes", "1"])
        assert (refused.exit_code, refused.stderr.count("\n")) == (1, 1), refused.output
        assert "binary.txt: line 2 " in refused.stderr
        assert why in refused.stderr


def test_no_runs_and_no_lines_are_refused_before_any_work(tmp_path: Path) -> None:
    corpus = tmp_path / "text.txt"
    corpus.write_text(TEXT)
    for option in ("--runs", "--sample"):
        refused = CliRunner().invoke(bench.command, [str(corpus), option, "0"])
        assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1), refused.output
        assert option.lstrip("-") in refused.stderr


def test_a_peer_that_fails_or_is_not_there(tmp_path: Path) -> None:
    corpus = tmp_path / "text.txt"
    corpus.write_text(TEXT)
    (tmp_path / "empty").mkdir()
    missing = CliRunner().invoke(bench.command, [str(corpus), "--peer", str(tmp_path / "empty")])
    assert (missing.exit_code, missing.stderr.count("\n")) == (1, 1)
    assert "build Stanford's GloVe there" in missing.stderr
    arguments = [str(corpus), "--processes", "1", "--peer", str(peer(tmp_path, "#!/bin/sh\nexit 3\n"))]
    failed = CliRunner().invoke(bench.command, arguments)
    assert failed.exit_code == 1
    assert "vocab_count ended with status 3" in failed.stderr


def test_the_peers_text_is_the_tokens_of_ours() -> None:
    encoder = Encoder(make_tokenizer("nltk"))
    lines = TEXT.encode().lower().split(b"\n")[:3]
    text = b"".join(encoder.decode(ids) for ids in bench._streams(encoder, lines))
    expected = [" ".join(make_tokenizer("nltk").line(line.decode())) for line in lines]
    assert [line.rstrip() for line in text.decode().split("\n")[:-1]] == expected
