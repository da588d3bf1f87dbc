"""The benchmark runs and says what it found; how fast anything is, is not tested."""

import json
import lzma
from pathlib import Path

from click.testing import CliRunner

from glovewire.bench.cli import bench

TEXT = 'The cat said "no."\n\nIt cannot be, the dog said; so they read on.\n' * 20


def test_runs_and_the_tokeniser_are_measured(tmp_path: Path) -> None:
    corpus = tmp_path / "text.txt"
    corpus.write_text(TEXT)
    result = CliRunner().invoke(bench, ["preprocess", str(corpus), "--processes", "1", "--json"])
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout.splitlines()[-1])
    assert facts["best"] == facts["runs"][0]["total"] > 0
    assert facts["tokeniser"]["cold_ratio"] > 0
    assert facts["runs"][0]["tokens"] == 21 * 20
    assert facts["versions"]["nltk"] == "3.10.4"


def test_a_compressed_corpus_is_read_as_text_and_what_is_none_is_refused(tmp_path: Path) -> None:
    corpus = tmp_path / "text.txt.xz"
    corpus.write_bytes(lzma.compress(TEXT.encode()))
    result = CliRunner().invoke(bench, ["preprocess", str(corpus), "--processes", "1", "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout.splitlines()[-1])["runs"][0]["tokens"] == 21 * 20
    binary = tmp_path / "binary.txt"
    for bad, why in ((b"good\nb\0d\n", "NUL byte"), (b"good\nb\xffd\n", "not UTF-8")):
        binary.write_bytes(bad)
        refused = CliRunner().invoke(bench, ["preprocess", str(binary), "--processes", "1"])
        assert (refused.exit_code, refused.stderr.count("\n")) == (1, 1), refused.output
        assert "binary.txt: line 2 " in refused.stderr
        assert why in refused.stderr


def test_no_runs_and_no_lines_are_refused_before_any_work(tmp_path: Path) -> None:
    corpus = tmp_path / "text.txt"
    corpus.write_text(TEXT)
    for option in ("--runs", "--sample"):
        refused = CliRunner().invoke(bench, ["preprocess", str(corpus), option, "0"])
        assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1), refused.output
        assert option.lstrip("-") in refused.stderr
