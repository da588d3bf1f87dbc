"""Faults during preprocessing: no partial output, one clear line, no process left, and --resume continues."""

import errno
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import until

from glovewire.common.errors import CorpusError, Interrupted, OutputError, ProcessDied, StoreError
from glovewire.common.storage.artifacts import file_sha256
from glovewire.common.storage.dataset import Dataset
from glovewire.preprocess import jobs, phrases, segments
from glovewire.preprocess.config import PreprocessConfig
from glovewire.preprocess.parallel import scratch
from glovewire.preprocess.pipeline import run

MEMORY = 1 << 30
WORDS = "the cat sat on a mat and the dog lay near it while we read of many other things"


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A text in many splits, each of which is committed as a piece of its own."""
    monkeypatch.setattr("glovewire.preprocess.corpus.splits.SPLIT_BYTES", 2000)
    monkeypatch.setattr(jobs, "COMMIT_EVERY_S", -1.0)
    return written(tmp_path)


def written(folder: Path) -> Path:
    rng = np.random.default_rng(1)
    path = folder / "text.txt"
    path.write_text("\n".join(" ".join(rng.choice(WORDS.split(), 12)) for _ in range(600)), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, str]]:
    """Checksums of the dataset of the text, without phrases and with one round of them."""
    folder = tmp_path_factory.mktemp("undisturbed")
    for rounds in (0, 1):
        run(config(written(folder), folder / f"{rounds}", phrases=rounds))
    return {rounds: checksums(folder / f"{rounds}") for rounds in (0, 1)}


def config(corpus: Path | str, out: Path, **options: Any) -> PreprocessConfig:
    return PreprocessConfig(corpus=(str(corpus),), out=out, **{"processes": 2, "memory": MEMORY, **options})


def checksums(path: Path) -> dict[str, str]:
    return {file.name: file_sha256(file) for file in sorted(path.iterdir())}


def kill_self_at(number: int, mark: Path, original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `original` so that the worker that makes the call of this number, over all processes, kills itself first."""

    def call(*arguments: Any) -> Any:
        with mark.open("ab") as counter:
            counter.write(b"x")
        if mark.stat().st_size >= number:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*arguments)

    return call


@pytest.mark.parametrize(
    ("job", "call"),
    [
        (jobs.EncodeJob, 6),
        (segments.RewriteJob, 3),
        (segments.RewriteJob, 21),
        (phrases.PairJob, 2),
        (jobs.CountJob, 6),
        (jobs.ReduceJob, 1),
    ],
)
def test_a_killed_worker_ends_the_run_and_resume_completes_it(
    tmp_path: Path,
    corpus: Path,
    undisturbed: dict[int, dict[str, str]],
    monkeypatch: pytest.MonkeyPatch,
    job: Any,
    call: int,
) -> None:
    out = tmp_path / "out"
    original = job.do
    with monkeypatch.context() as hurt:
        hurt.setattr(job, "do", kill_self_at(call, tmp_path / "calls", original))
        with pytest.raises(ProcessDied, match=r"was killed by signal 9; nothing was written .*--resume"):
            run(config(corpus, out, phrases=1))
    assert not out.exists()
    with monkeypatch.context() as watched:
        watched.setattr(jobs.EncodeJob, "do", counted(jobs.EncodeJob.do, tmp_path / "again"))
        run(config(corpus, out, phrases=1, resume=True))
    assert checksums(out) == undisturbed[1]
    splits = -(-corpus.stat().st_size // 2000)
    again = (tmp_path / "again").stat().st_size if (tmp_path / "again").exists() else 0
    assert again < splits  # committed pieces are not repeated
    assert not scratch.scratch_path(out).exists()


@pytest.mark.parametrize("call", [3, 25])
def test_pieces_that_were_not_committed_are_ignored(
    tmp_path: Path, corpus: Path, undisturbed: dict[int, dict[str, str]], monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    """Killed between the writing of a piece and its commit, while tokenising (3rd) and while counting (25th)."""
    out = tmp_path / "out"
    with monkeypatch.context() as hurt:
        hurt.setattr(
            scratch.ScratchFolder, "commit", kill_self_at(call, tmp_path / "calls", scratch.ScratchFolder.commit)
        )
        with pytest.raises(ProcessDied):
            run(config(corpus, out))
    run(config(corpus, out, resume=True))
    assert checksums(out) == undisturbed[0]


def counted(original: Callable[..., Any], mark: Path) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        with mark.open("ab") as counter:
            counter.write(b"x")
        return original(*arguments)

    return call


def test_a_run_without_resume_starts_over(tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    with monkeypatch.context() as hurt:
        hurt.setattr(jobs.CountJob, "do", kill_self_at(3, tmp_path / "calls", jobs.CountJob.do))
        with pytest.raises(ProcessDied):
            run(config(corpus, out))
    assert list(scratch.scratch_path(out).glob("segment-*"))
    corpus.write_text("quite another text of words\n" * 9, encoding="utf-8")
    run(config(corpus, out))
    assert Dataset.open(out).words == ("another", "of", "quite", "text", "words")
    assert not scratch.scratch_path(out).exists()


def test_resume_of_another_job_starts_over(tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    with monkeypatch.context() as hurt:
        hurt.setattr(jobs.CountJob, "do", kill_self_at(3, tmp_path / "calls", jobs.CountJob.do))
        with pytest.raises(ProcessDied):
            run(config(corpus, out, window=5))
    run(config(corpus, out, window=2, resume=True))
    run(config(corpus, tmp_path / "whole", window=2))
    assert checksums(out) == checksums(tmp_path / "whole")


def die_counting(how: PreprocessConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run until a process is killed that counts, which leaves intermediate results."""
    with monkeypatch.context() as hurt:
        hurt.setattr(jobs.CountJob, "do", kill_self_at(1, how.out.with_name("calls"), jobs.CountJob.do))
        with pytest.raises(ProcessDied):
            run(how)


def test_resume_with_splits_of_another_size_starts_over(
    tmp_path: Path, corpus: Path, undisturbed: dict[int, dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    die_counting(config(corpus, out), monkeypatch)
    monkeypatch.setattr("glovewire.preprocess.corpus.splits.SPLIT_BYTES", 700)
    run(config(corpus, out, resume=True))
    assert checksums(out) == undisturbed[0]


def test_ctrl_c_ends_the_run_in_one_line_and_resume_continues_it(tmp_path: Path, corpus: Path) -> None:
    out = tmp_path / "out"
    began = threading.Event()
    original = jobs.CountJob.do

    def press() -> None:
        began.wait(60)
        os.kill(os.getpid(), signal.SIGINT)

    def watch(original_finish: Any) -> Any:
        def finish(*arguments: Any) -> Any:
            began.set()
            yield from original_finish(*arguments)

        return finish

    presser = threading.Thread(target=press)
    with pytest.MonkeyPatch.context() as hurt:
        from glovewire.preprocess.parallel.pool import Workers

        hurt.setattr(Workers, "finish", watch(Workers.finish))
        hurt.setattr(jobs.EncodeJob, "finish", lambda _: signal.pause())  # so that Ctrl-C comes before the end
        presser.start()
        with pytest.raises(Interrupted, match="--resume continues from here"):
            run(config(corpus, out))
    presser.join()
    assert not out.exists()
    assert jobs.CountJob.do is original
    run(config(corpus, out, resume=True))
    assert Dataset.open(out).manifest.facts["lines"] == 600


@pytest.mark.parametrize("kind", ["file", "url"])
def test_two_runs_cannot_write_the_same_dataset(tmp_path: Path, corpus: Path, kind: str) -> None:
    """Of a URL seen to fail: the second run downloaded to the files of the first."""
    out, source = tmp_path / "out", corpus if kind == "file" else f"file://{corpus}"
    texts = scratch.texts_path(out) / "0" / "text.txt"
    with scratch.open_scratch(out, {"job": 1}, resume=False) as folder:
        folder.commit("segment-1", {})
        texts.parent.mkdir(parents=True)
        texts.touch()
        with pytest.raises(OutputError, match="another `glovewire preprocess` is writing"):
            run(config(source, out))
        assert folder.facts("segment-1") == {}
        assert texts.stat().st_size == 0
    run(config(source, out))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "text.txt"]


def test_a_url_without_files_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(StoreError):
        run(config(f"file://{tmp_path}/nothing", tmp_path / "out"))
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize(
    ("fault", "error", "says"),
    [
        (MemoryError(), CorpusError, "out of memory: give a smaller --memory"),
        (OSError(errno.ENOSPC, "full"), OutputError, "no space left on the disk"),
    ],
)
def test_a_job_that_cannot_be_made_is_a_fault_and_not_a_death(
    tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch, fault: Exception, error: type[Exception], says: str
) -> None:
    def fail(*_: object) -> None:
        raise fault

    monkeypatch.setattr(jobs.EncodeJob, "_begin", fail)
    with pytest.raises(error, match=says):
        run(config(corpus, tmp_path / "out"))
    assert list(tmp_path.iterdir()) == [corpus]


def test_a_mistake_in_a_later_command_keeps_what_resume_needs(
    tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    die_counting(config(corpus, out), monkeypatch)
    with pytest.raises(CorpusError, match="does not exist"):
        run(config(corpus.with_name("tex.txt"), out))
    monkeypatch.setattr(jobs.EncodeJob, "do", counted(jobs.EncodeJob.do, tmp_path / "again"))
    run(config(corpus, out, resume=True))
    assert not (tmp_path / "again").exists()


def test_ctrl_c_while_intermediate_results_are_removed_leaves_nothing_to_continue_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    unlink = Path.unlink

    def press(*_: object, **__: object) -> None:
        raise Interrupted("interrupted")

    def unlink_one(path: Path, missing_ok: bool = False) -> None:
        unlink(path, missing_ok)
        monkeypatch.setattr(Path, "unlink", press)

    def fail(fault: Exception) -> None:
        with scratch.open_scratch(out, {}, resume=False) as folder:
            for number in range(20):
                folder.commit(f"segment-{number}", {})
            raise fault

    def left() -> list[Any]:
        with scratch.open_scratch(out, {}, resume=True) as folder:
            return list(folder.committed("segment"))

    with pytest.raises(ProcessDied):
        fail(ProcessDied())
    monkeypatch.setattr(Path, "unlink", unlink_one)
    with pytest.raises(Interrupted):
        fail(CorpusError())  # while the folder is emptied
    monkeypatch.undo()
    assert left() == []
    monkeypatch.setattr("shutil.rmtree", press)
    with pytest.raises(Interrupted):
        fail(CorpusError())  # while it is removed
    monkeypatch.undo()
    assert left() == []


def test_the_line_of_a_fault_is_counted_over_splits(tmp_path: Path, corpus: Path) -> None:
    lines = corpus.read_bytes().split(b"\n")
    lines[431] = b"bad \xff"
    corpus.write_bytes(b"\n".join(lines))
    with pytest.raises(CorpusError, match=r"text\.txt: line 432 is not UTF-8"):
        run(config(corpus, tmp_path / "out"))


FULL_DISK = """
import sys
from pathlib import Path
from glovewire.preprocess.parallel import disk_space
from glovewire.preprocess.config import PreprocessConfig
from glovewire.preprocess.pipeline import run
disk_space.require = lambda *_: None
try:
    run(PreprocessConfig(corpus=(sys.argv[1],), out=Path(sys.argv[2]), processes=2, memory=1 << 30))
except Exception as error:
    print(type(error).__name__, error)
"""


def test_a_full_disk(tmp_path: Path) -> None:
    corpus, small = tmp_path / "text.txt", tmp_path / "small"
    rng = np.random.default_rng(0)
    corpus.write_text("\n".join(" ".join(map(str, rng.integers(0, 3000, 20))) for _ in range(30_000)))
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(small)], capture_output=True).returncode:
        pytest.skip("a small file system cannot be mounted here")
    try:
        command = [sys.executable, "-c", FULL_DISK, str(corpus), str(small / "out")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100)
        left = list(small.iterdir())
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)
    assert done.stdout.startswith("OutputError"), done.stdout + done.stderr
    assert "no space left on the disk" in done.stdout
    assert done.stdout.count("\n") == 1
    assert not left


KILLED_PARENT = """
import os, sys, signal
from pathlib import Path
from glovewire.preprocess import jobs, phrases, segments
from glovewire.preprocess.config import PreprocessConfig
from glovewire.preprocess.pipeline import run
def stop(*_):
    print(os.getpid(), flush=True)
    signal.pause()
jobs.EncodeJob.do = stop
run(PreprocessConfig(corpus=(sys.argv[1],), out=Path(sys.argv[2]), processes=2, memory=1 << 30))
"""


def test_workers_end_with_a_parent_that_is_killed(tmp_path: Path, corpus: Path) -> None:
    command = [sys.executable, "-c", KILLED_PARENT, str(corpus), str(tmp_path / "out")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        worker = int(parent.stdout.readline())
        parent.kill()
    until(lambda: not alive(worker), "the worker has ended, too")


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
