"""From a corpus to a dataset: tokenise, choose the vocabulary, count, add up, write.

The order of the phases and what passes between them is here; how each is done is not. The bytes of the dataset
depend on the corpus and on what is counted, never on the number of processes, the memory or the size of a batch.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from glovewire.common.errors import CorpusError
from glovewire.common.runtime import ray_cluster as cluster
from glovewire.common.runtime.memory import memory_bytes
from glovewire.common.storage import artifacts
from glovewire.common.storage.dataset import ENTRY, KIND, SCHEMA, Layout

from .config import PreprocessConfig
from .corpus import splits as blocks
from .corpus.sources import Corpus, Selection, find
from .counts import dataset_writer as assembly
from .counts.cell_keys import MOST_BITS, Arrangement
from .counts.cooccurrence import Buckets, Weighting
from .counts.dataset_writer import Words
from .counts.reduce import Reducer
from .counts.spill import Spill, save
from .counts.vocabulary import Vocabulary, choose
from .jobs import CountJob, CountSettings, EncodeJob, EncodeSettings, ReduceJob, Slice, load_counts, ranks_path
from .parallel import disk_space as disk
from .parallel import scratch
from .parallel.pool import Job, Pool
from .parallel.progress import Phase
from .parallel.scratch import COUNTED, PART, SEGMENT, Scratch
from .tokens.encoder import Encoder
from .tokens.nltk_tokens import make_tokenizer, nltk_version

_MOST_HOT = 2048
_MOST_ROOM = 16 << 20
_MEASURE_EVERY_S = 0.5


@dataclass(frozen=True)
class Counted:
    """What counting leaves behind, besides the spill: where cells belong, the words, the weights, facts."""

    arrangement: Arrangement
    vocabulary: Words
    weighting: Weighting
    facts: dict[str, Any]


class Pipeline:
    """One run; `run` does all of it."""

    def __init__(self, config: PreprocessConfig) -> None:
        self._config = config
        self._seconds: dict[str, float] = {}
        self._peak_bytes, self._measured = 0, 0.0
        self._pool: Callable[..., Any] = Pool

    @contextmanager
    def _engine(self) -> Iterator[None]:
        """Where the work is done: in processes of this machine, or on a Ray cluster."""
        if self._config.engine == "local":
            yield
            return
        from .parallel.ray_pool import RayPool

        with cluster.connected(self._config.address) as ray:
            self._pool = partial(RayPool, ray)
            yield

    def run(self) -> dict[str, Any]:
        """Make the dataset; what it holds and what it took."""
        config = self._config
        artifacts.require_free(config.out, what=KIND)
        selection = Selection(config.lines, config.text_column, config.split, config.longest_line, config.processes)
        corpus = find(config.corpus, selection)
        with self._engine(), scratch.opened(config.out, self._job(corpus), resume=config.resume) as folder:
            counted = self._from_stanford(folder) if config.from_stanford else self._from_text(folder, corpus)
            self._add_up(folder, counted)
            return self._write(folder, counted)

    def _from_text(self, folder: Scratch, corpus: Corpus) -> Counted:
        config = self._config
        disk.require(folder.folder, disk.for_text(corpus.estimated_bytes, config.window, 4))
        tokens, lines = self._tokenise(folder, corpus)
        vocabulary = self._choose(folder)
        arrangement = self._arrange(len(vocabulary.words))
        weighting = Weighting.of(config.weighting, config.window)
        self._count(folder, arrangement, vocabulary, weighting, tokens)
        facts = {
            "requested_vocabulary": config.vocab_size,
            "weighting": config.weighting,
            "window": config.window,
            "min_count": config.min_count,
            "tokenizer": config.tokenizer,
            "nltk": nltk_version(),
            "corpus": corpus.description,
            "tokens": tokens,
            "lines": lines,
        }
        return Counted(arrangement, Words(vocabulary.words, vocabulary.counts), weighting, facts)

    def _from_stanford(self, folder: Scratch) -> Counted:
        from .counts import stanford

        cooccurrences, words = self._config.from_stanford or (Path(), Path())
        folder.drop(COUNTED)
        vocabulary = stanford.read_vocabulary(words)
        arrangement = self._arrange(len(vocabulary.words))
        disk.require(folder.folder, cooccurrences.stat().st_size if cooccurrences.exists() else 0)
        with self._phase("read", "bytes", None) as phase:
            counts = stanford.Counts(cooccurrences, arrangement, vocabulary, self._config.share // 8)
            for size in counts.spill(Spill(folder.folder), COUNTED):
                phase.advance(size)
        return Counted(arrangement, vocabulary.sorted, Weighting.of("uniform", 1), vocabulary.facts(cooccurrences))

    def _job(self, corpus: Corpus) -> dict[str, Any]:
        config = self._config
        own = {"corpus", "out", "processes", "memory", "resume", "engine", "address"}
        options = {name: value for name, value in vars(config).items() if name not in own}
        found = {"corpus": corpus.fingerprint(), "nltk": nltk_version(), "block": blocks.BLOCK_BYTES, "schema": SCHEMA}
        return options | found

    def _tokenise(self, folder: Scratch, corpus: Corpus) -> tuple[int, int]:
        config = self._config
        folder.sweep(SEGMENT)
        done = {block for _, facts in folder.kept(SEGMENT) for block, _, _ in facts["slices"]}
        memo_bytes = config.share * 4 // 10  # what it takes while it grows and is written comes on top
        settings = EncodeSettings(config.tokenizer, config.text_column, config.longest_line, memo_bytes)
        tokenizer = make_tokenizer(config.tokenizer)
        tokenizer.load()
        encoder = Encoder(tokenizer)
        encoder.encode(_WARM_TEXT, np.array([0]), np.array([len(_WARM_TEXT)]), 0)
        encoder.forget()
        todo = (block for block in corpus.blocks() if block.ordinal not in done)
        with self._phase("tokenise", "bytes", corpus.nbytes) as phase:
            self._work(phase, lambda: EncodeJob(folder, settings, encoder), todo)
        segments = [facts for _, facts in folder.kept(SEGMENT)]
        tokens, lines = (sum(facts[name] for facts in segments) for name in ("tokens", "lines"))
        if not tokens:
            raise CorpusError(f"{corpus.description} is empty: no text in it")
        return tokens, lines

    def _choose(self, folder: Scratch) -> Vocabulary:
        config = self._config
        segments = list(folder.kept(SEGMENT))
        groups = _vocabulary_groups(sum(facts["counts_bytes"] for _, facts in segments), config)
        with self._phase("vocabulary", "segments", len(segments)) as phase:
            loads = [partial(load_counts, folder, name) for name, _ in segments]
            vocabulary = choose(loads, config.vocab_size, config.min_count, groups)
            if not vocabulary.words:
                raise CorpusError(f"the corpus has no word that comes {config.min_count} times: nothing to count")
            ranker = vocabulary.ranker()
            for load, (name, facts) in zip(loads, segments, strict=True):
                save(ranks_path(folder, name), ranker.ranks(load(), facts["last_number"]))
                phase.advance(1)
            self._measure([os.getpid()])
        return vocabulary

    def _arrange(self, words: int) -> Arrangement:
        config = self._config
        layout = Layout(words, config.partitions_for(words), config.tile, config.symmetric)
        permutation = np.random.default_rng(config.seed).permutation(words).astype(np.int32)
        arrangement = Arrangement(layout, permutation)
        if arrangement.bits > MOST_BITS:
            raise CorpusError(f"a vocabulary of {words} words in {layout.partitions} partitions is too large")
        return arrangement

    def _count(
        self, folder: Scratch, arrangement: Arrangement, vocabulary: Vocabulary, weighting: Weighting, tokens: int
    ) -> None:
        config = self._config
        record_bytes = Buckets(arrangement.bits).dtype.itemsize
        disk.require(folder.folder, disk.for_records(tokens, config.window, record_bytes))
        folder.sweep(COUNTED)
        done = {(s, b) for _, facts in folder.kept(COUNTED) for s, b, _, _ in facts["slices"]}
        slices = [Slice(name, *piece) for name, facts in folder.kept(SEGMENT) for piece in facts["slices"]]
        todo = [piece for piece in slices if (piece.segment, piece.block) not in done]
        hot = min(_MOST_HOT, int((config.share // 8 / 8) ** 0.5))
        room = min(_MOST_ROOM, config.share * 6 // 10 // 16)
        settings = CountSettings(arrangement, vocabulary.by_rank, config.window, weighting, hot, room)
        with self._phase("count", "tokens", sum(s.stop - s.start for s in todo)) as phase:
            self._work(phase, lambda: CountJob(folder, settings), todo)

    def _add_up(self, folder: Scratch, counted: Counted) -> None:
        folder.sweep(PART)
        buckets = Buckets(counted.arrangement.bits)
        spill = Spill(folder.folder)
        sizes = spill.bucket_sizes(buckets)
        cells = counted.arrangement.layout.rows**2
        disk.require(folder.folder, disk.for_entries(min(int(sizes.sum()), cells)))
        done = [(facts["first"], facts["last"]) for _, facts in folder.kept(PART)]
        ranges = _ranges(sizes, self._config.share // 64, done)
        reducer = Reducer(spill, buckets, counted.weighting)
        with self._phase("add up", "buckets", sum(last - first for first, last in ranges)) as phase:
            scale, corpus = counted.weighting.scale, counted.facts["corpus"]
            self._work(phase, lambda: ReduceJob(folder, counted.arrangement, reducer, scale, corpus), ranges)

    def _work(self, phase: Phase, make_job: Callable[[], Job], tasks: Iterable[Any]) -> None:
        def tick(pids: list[int]) -> None:
            phase.tick()
            if time.monotonic() - self._measured > _MEASURE_EVERY_S:
                self._measure(pids)

        with self._pool(self._config.processes, make_job, tick) as pool:
            for amount in pool.run(tasks):
                phase.advance(amount)
            for _ in pool.finish():
                phase.tick()

    def _measure(self, pids: list[int]) -> None:
        self._peak_bytes = max(self._peak_bytes, sum(memory_bytes(pid)[0] for pid in pids))
        self._measured = time.monotonic()

    def _phase(self, name: str, unit: str, total: int | None) -> Phase:
        return Phase(name, unit, total, self._seconds)

    def _write(self, folder: Scratch, counted: Counted) -> dict[str, Any]:
        layout = counted.arrangement.layout
        own = {
            "vocabulary": layout.rows,
            "partitions": layout.partitions,
            "tile": layout.tile,
            "symmetric": layout.symmetric,
            "seed": self._config.seed,
        }
        facts = counted.facts | own | assembly.totals(folder, layout, counted.weighting.scale)
        size = facts["stored"] * ENTRY.itemsize
        disk.require(folder.folder, size)
        with self._phase("write", "bytes", size) as phase:
            for done in assembly.write(self._config.out, folder, counted.arrangement, counted.vocabulary, facts):
                phase.advance(done)
        return facts | {
            "words": layout.rows,
            "seconds": self._seconds,
            "peak_memory_bytes": self._peak_bytes,
            "path": str(self._config.out),
        }


_WARM_TEXT = b'"a" b (c), d\'s e. f'


def _vocabulary_groups(counts_bytes: int, config: PreprocessConfig) -> int:
    """In how many groups the words of the corpus are counted: their table takes about four times their counts."""
    return 1 + counts_bytes * 4 // (config.share * config.processes)


def _ranges(sizes: np.ndarray[Any, Any], most: int, done: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Cut the buckets that are not done into ranges of about `most` records, and at least one bucket."""
    covered = np.zeros(len(sizes), np.bool_)
    for first, last in done:
        covered[first:last] = True
    ranges: list[tuple[int, int]] = []
    held = 0
    for bucket in np.flatnonzero(~covered):
        if ranges and ranges[-1][1] == bucket and held + sizes[bucket] <= most and bucket - ranges[-1][0] < _WIDEST:
            ranges[-1] = (ranges[-1][0], int(bucket) + 1)
        else:
            ranges.append((int(bucket), int(bucket) + 1))
            held = 0
        held += int(sizes[bucket])
    return ranges


_WIDEST = 32
