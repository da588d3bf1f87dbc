"""Turn a corpus into a dataset: tokenise, choose the vocabulary, count, add up, write.

The bytes of the dataset depend on the corpus and the counting options, never on the number of processes, the memory or
the size of a batch.
"""

import os
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from glovewire.common.addresses import url_of
from glovewire.common.array_types import Indices
from glovewire.common.errors import CorpusError, Interrupted, OutputError, ProcessDied, UsageError
from glovewire.common.runtime.memory import memory_bytes
from glovewire.common.runtime.signals import signals_raise
from glovewire.common.storage import artifacts, stores
from glovewire.common.storage.dataset import ENTRY, KIND, SCHEMA, Layout

from . import phrases, sentences
from .config import PreprocessConfig
from .corpus import splits
from .corpus.sources import Corpus, find_corpus
from .counts.arrangement import arrange, default_partitions
from .counts.cell_keys import MAX_KEY_BITS, CellKeys
from .counts.cooccurrence import Buckets, PairCounter, Weighting
from .counts.dataset_writer import matrix_totals, write_dataset
from .counts.reduce import Reducer
from .counts.spill import Spill, save
from .counts.vocabulary import Vocabulary, choose_vocabulary
from .jobs import RANKS, CountJob, EncodeJob, ReduceJob
from .parallel import disk_space
from .parallel.pool import Job, disk_error, local_pool
from .parallel.progress import Phase
from .parallel.ray_pool import ray_actors
from .parallel.scratch import COUNTED, LEARNED, PART, SEGMENT, ScratchFolder, locked, open_scratch, texts_path
from .segments import RewriteJob, Rewriter, Segment, stream_path, suffix
from .tokens.encoder import Encoder
from .tokens.tokenizers import make_tokenizer

MAX_SQUARE_SIDE = 2048
MAX_RECORDS = 16 << 20
_MAX_BUCKETS_PER_TASK = 32
_MEASURE_EVERY_S = 0.5
_ABBREVIATIONS_SHOWN = 20
_RECORDED = ("weighting", "window", "min_count", "tokenizer", "lowercase", "digits", "phrases")
"""Options that the manifest records as they are."""
_WARM_UP_TEXT = b'"a" b (c), d\'s e. f'


@dataclass(frozen=True)
class CountResult:
    """What counting needs and gives apart from the spill on disk: keys of cells, vocabulary, weights, manifest facts.

    `texts` are files of the dataset for human readers, by name.
    """

    cell_keys: CellKeys
    vocabulary: Vocabulary
    weighting: Weighting
    facts: dict[str, Any]
    texts: dict[str, str] = field(default_factory=dict)


def run(config: PreprocessConfig) -> dict[str, Any]:
    """Make the dataset that `config` describes; see Pipeline.run for the result.

    See `open_scratch` for when intermediate results and downloaded text are kept for --resume. If a download fails,
    complete files are kept for the next run, with or without --resume.
    """
    try:
        with signals_raise(), stores.uploaded(config.out, KIND, resume=config.resume) as out:
            return _run(config, out)
    except (Interrupted, ProcessDied) as error:
        where = url_of(config.out) or config.out
        raise type(error)(f"{error}; nothing was written to {where}; --resume continues from here") from error
    except OSError as error:
        raise OutputError(disk_error(error)) from error


def _run(config: PreprocessConfig, out: Path) -> dict[str, Any]:
    """Make the dataset in `out` from the corpus; what its URLs name is first downloaded to a folder next to `out`."""
    url = url_of(config.out)
    if config.resume and url and (out / artifacts.MANIFEST).exists():  # only the upload failed
        facts = dict(artifacts.Manifest.read(out).facts)
        return facts | {"words": facts["vocabulary"], "path": url, "seconds": {}, "peak_memory_bytes": 0}
    artifacts.require_free(out, what=KIND)  # before anything is downloaded
    corpus: list[str] = []
    with locked(out) if any(map(url_of, config.corpus)) else nullcontext():  # refuse a second run before it writes
        for number, name in enumerate(config.corpus):
            corpus += map(str, stores.download(name, texts_path(out) / str(number))) if url_of(name) else [name]
    result = Pipeline(replace(config, out=out, corpus=tuple(corpus))).run()
    return result | {"path": url or result["path"]}


class Pipeline:
    """Runs the phases of preprocessing, and measures their time and memory."""

    def __init__(self, config: PreprocessConfig) -> None:
        self._config = config
        self._seconds: dict[str, float] = {}
        self._peak_bytes, self._measured = 0, 0.0
        self._pool: Callable[..., Any] = partial(local_pool, config.processes)

    def run(self) -> dict[str, Any]:
        """Make the dataset; return its facts, the seconds of each phase and the peak memory in bytes."""
        config, corpus = self._config, find_corpus(self._config)
        with ExitStack() as stack:
            if config.engine == "ray":
                self._pool = stack.enter_context(ray_actors(config.address, config.processes)).pool
            scratch = stack.enter_context(open_scratch(config.out, self._job(corpus), resume=config.resume))
            counted = self._from_stanford(scratch) if config.from_stanford else self._from_text(scratch, corpus)
            self._add_up(scratch, counted)
            return self._write(scratch, counted)

    def _job(self, corpus: Corpus) -> dict[str, Any]:
        """Return the facts that --resume requires to equal those of the interrupted run."""
        free = {"corpus", "out", "processes", "memory", "resume", "engine", "address"}
        options = {name: value for name, value in vars(self._config).items() if name not in free}
        return options | {
            "corpus": corpus.fingerprint(),
            "stanford": [splits.identity(file, str(file)) for file in self._config.from_stanford or ()],
            "nltk": version("nltk"),
            "split_bytes": splits.SPLIT_BYTES,
            "schema": SCHEMA,
        }

    def _from_text(self, scratch: ScratchFolder, corpus: Corpus) -> CountResult:
        config = self._config
        disk_space.require(scratch.folder, disk_space.text_bytes(corpus.estimated_bytes, config.window))
        segments = self.segments(scratch, corpus)
        tokens, lines = (sum(each.facts[name] for each in segments) for name in ("tokens", "lines"))
        vocabulary = self._choose(segments)
        facts = {
            "requested_vocabulary": config.vocab_size,
            **{name: getattr(config, name) for name in _RECORDED},
            "sentences": config.sentences if config.splits_sentences else "off",
            "nltk": version("nltk"),
            "corpus": corpus.description,
            "tokens": tokens,
            "lines": lines,
            "outside_vocabulary": 1 - int(vocabulary.counts.sum()) / tokens,
            "rarest_count": int(vocabulary.counts.min()),
            "most_frequent_left_out": dict(vocabulary.left_out),
        }
        texts = {}
        if learned := scratch.facts(f"{LEARNED}-sentences"):
            found = [(f"{word}.", count) for word, count in learned["abbreviations"]]
            facts["most_frequent_abbreviations"] = dict(found[:_ABBREVIATIONS_SHOWN])
            texts["abbreviations.txt"] = "".join(f"{word} {count}\n" for word, count in found)
        weighting = Weighting.of(config.weighting, config.window)
        counted = CountResult(self._cell_keys(vocabulary), vocabulary, weighting, facts, texts)
        self._count(scratch, segments, counted)
        return counted

    def _from_stanford(self, scratch: ScratchFolder) -> CountResult:
        from .counts import stanford

        matrix, words = self._config.from_stanford or (Path(), Path())
        scratch.sweep(COUNTED)
        vocabulary = stanford.read_vocabulary(words)
        cell_keys = self._cell_keys(vocabulary)
        counts = stanford.StanfordCounts(matrix, cell_keys, vocabulary, self._config.share // 8)
        disk_space.require(scratch.folder, counts.nbytes)
        with self._phase("read", "bytes", None) as phase:
            for size in counts.spill(Spill(scratch.folder), COUNTED):
                phase.advance(size)
        facts = stanford.manifest_facts(vocabulary, matrix)
        return CountResult(cell_keys, vocabulary, Weighting.of("uniform", 1), facts)

    def segments(self, scratch: ScratchFolder, corpus: Corpus) -> list[Segment]:
        """Tokenise the corpus, split off full stops, and join phrases; return the final segments."""
        self._tokenise(scratch, corpus)
        kind = SEGMENT
        if not any(segment.facts["tokens"] for segment in Segment.all(scratch, kind)):
            raise CorpusError(f"{corpus.description} is empty: no text in it")
        if self._config.splits_sentences:
            self._split_sentences(scratch)
            kind = "sentences"
        for number in range(self._config.phrases):
            self._join_phrases(scratch, kind, f"phrases{number}")
            kind = f"phrases{number}"
        return Segment.all(scratch, kind)

    def _split_sentences(self, scratch: ScratchFolder) -> None:
        """Learn which full stops end sentences, and split them off in segments of kind `sentences`."""
        segments = Segment.all(scratch, SEGMENT)
        with self._phase("sentences", "segments", len(segments)) as phase:
            learned = scratch.facts(f"{LEARNED}-sentences")
            if learned is None:
                learned = sentences.learn(segments, self._groups(segments))
                scratch.commit(f"{LEARNED}-sentences", learned)
            splitter = partial(sentences.Splitter, enabled=learned["enabled"])
            self._rewrite(scratch, phase, segments, "sentences", splitter)
            self._measure([os.getpid()])

    def _join_phrases(self, scratch: ScratchFolder, kind: str, new: str) -> None:
        """Find phrases in the segments of one kind, and join them in segments of kind `new`."""
        segments = Segment.all(scratch, kind)
        tokens = sum(segment.facts["tokens"] for segment in segments)
        groups = max(self._config.processes, 1 + tokens * phrases.PAIR_BYTES // (self._config.share // 2))
        pairs = f"{new}of{groups}"
        found = scratch.folder / f"{LEARNED}-{new}.found.npy"

        with self._phase(new, "pieces", groups + len(segments)) as phase:

            def count() -> None:
                scratch.sweep(pairs)
                todo = set(range(groups)) - {int(suffix(name)) for name, _ in scratch.committed(pairs)}
                self._work(phase, lambda: phrases.PairJob(scratch, pairs, segments, groups), sorted(todo))

            if scratch.facts(f"{LEARNED}-{new}") is None:
                save(found, phrases.learn(segments, self._groups(segments), pairs, count))
                scratch.commit(f"{LEARNED}-{new}", {})
            self._rewrite(scratch, phase, segments, new, partial(phrases.Joiner, phrases=found))

    def _rewrite(
        self,
        scratch: ScratchFolder,
        phase: Phase,
        segments: list[Segment],
        kind: str,
        rewriter: Callable[[Segment], Rewriter],
    ) -> None:
        """Make segments of kind `kind` from `segments`, whose streams are then removed."""
        scratch.sweep(kind)
        done = {suffix(name) for name, _ in scratch.committed(kind)}
        todo = [segment for segment in segments if suffix(segment.name) not in done]
        self._work(phase, lambda: RewriteJob(scratch, kind, rewriter), todo)
        for segment in segments:
            stream_path(scratch, segment.name).unlink(missing_ok=True)

    def _tokenise(self, scratch: ScratchFolder, corpus: Corpus) -> None:
        """Write the segments of the corpus."""
        config = self._config
        scratch.sweep(SEGMENT)
        done = {split for _, facts in scratch.committed(SEGMENT) for split, _, _ in facts["slices"]}
        tokenizer = make_tokenizer(config.tokenizer)
        tokenizer.line("")  # load NLTK before workers are forked
        encoder = Encoder(
            tokenizer, stops=config.splits_sentences, lowercase=config.lowercase, zero=config.digits == "zero"
        )
        encoder.encode(_WARM_UP_TEXT, np.array([0]), np.array([len(_WARM_UP_TEXT)]), 0)
        encoder.clear()
        todo = (split for split in corpus.splits() if split.ordinal not in done)
        with self._phase("tokenise", "bytes", corpus.nbytes) as phase:
            self._work(phase, lambda: EncodeJob(scratch, encoder, config), todo)

    def _groups(self, segments: list[Segment]) -> int:
        """Return the number of groups in which words are counted; hash tables take about four times their counts."""
        counts_bytes: int = sum(segment.facts["counts_bytes"] for segment in segments)
        return 1 + counts_bytes * 4 // (self._config.share * self._config.processes)

    def _choose(self, segments: list[Segment]) -> Vocabulary:
        """Choose the vocabulary, write the frequency ranks of every segment's words, and return the vocabulary."""
        config = self._config
        with self._phase("vocabulary", "segments", len(segments)) as phase:
            loads = [segment.words for segment in segments]
            vocabulary = choose_vocabulary(loads, config.vocab_size, config.min_count, self._groups(segments))
            if not vocabulary.words:
                raise CorpusError(f"no word of the corpus occurs {config.min_count} times: nothing to count")
            ranking = vocabulary.ranking()
            for segment in segments:
                words, ranks = segment.words(), np.full(segment.size - 1, -1, np.int32)
                ranks[words.numbers - 1] = ranking.look_up(words.data, words.bounds[:-1], words.bounds[1:])
                segment.save(RANKS, ranks)
                phase.advance(1)
            self._measure([os.getpid()])
        return vocabulary

    def _cell_keys(self, vocabulary: Vocabulary) -> CellKeys:
        config, words = self._config, len(vocabulary.words)
        partitions = config.partitions or default_partitions(vocabulary.counts)
        if partitions > words:
            raise UsageError(f"--partitions {partitions} does not fit a vocabulary of {words} words")
        bounds, permutation = arrange(vocabulary.counts, partitions, config.seed)
        layout = Layout(bounds, config.tile, config.symmetric)
        cell_keys = CellKeys(layout, permutation)
        if cell_keys.bits > MAX_KEY_BITS:
            raise CorpusError(f"a vocabulary of {words} words in {layout.partitions} partitions is too large")
        return cell_keys

    def _count(self, scratch: ScratchFolder, segments: list[Segment], counted: CountResult) -> None:
        """Spill the pairs of the segments."""
        config, keys = self._config, counted.cell_keys
        size = disk_space.record_bytes(counted.facts["tokens"], config.window, Buckets(keys.bits).dtype.itemsize)
        disk_space.require(scratch.folder, size)
        scratch.sweep(COUNTED)
        done = {(segment, split) for _, facts in scratch.committed(COUNTED) for segment, split, _, _ in facts["slices"]}
        slices = [piece for segment in segments for piece in segment.slices]
        todo = [piece for piece in slices if (piece.segment, piece.split) not in done]
        limits = {
            "square_side": min(MAX_SQUARE_SIDE, int((config.share // 8 / 8) ** 0.5)),
            "max_records": min(MAX_RECORDS, config.share * 6 // 10 // 16),
        }

        def job() -> CountJob:
            by_rank, weighting = counted.vocabulary.by_rank, counted.weighting
            return CountJob(scratch, PairCounter(keys, by_rank, config.window, weighting, **limits))

        with self._phase("count", "tokens", sum(piece.stop - piece.start for piece in todo)) as phase:
            self._work(phase, job, todo)

    def _add_up(self, scratch: ScratchFolder, counted: CountResult) -> None:
        """Reduce the spill to parts of the matrix."""
        scratch.sweep(PART)
        buckets = Buckets(counted.cell_keys.bits)
        spill = Spill(scratch.folder)
        sizes = spill.bucket_sizes(buckets)
        cells = counted.cell_keys.layout.rows**2
        disk_space.require(scratch.folder, disk_space.entry_bytes(min(int(sizes.sum()), cells)))
        done = [(facts["first"], facts["last"]) for _, facts in scratch.committed(PART)]
        ranges = _bucket_ranges(sizes, self._config.share // 64, done)
        reducer = Reducer(spill, buckets, counted.weighting)
        with self._phase("add up", "buckets", sum(last - first for first, last in ranges)) as phase:
            self._work(phase, lambda: ReduceJob(scratch, counted.cell_keys, reducer, counted.facts["corpus"]), ranges)

    def _write(self, scratch: ScratchFolder, counted: CountResult) -> dict[str, Any]:
        layout = counted.cell_keys.layout
        facts = counted.facts | {
            "vocabulary": layout.rows,
            "bounds": list(layout.bounds),
            "tile": layout.tile,
            "symmetric": layout.symmetric,
            "seed": self._config.seed,
            **matrix_totals(scratch, layout, counted.weighting.scale),
        }
        size = facts["stored"] * ENTRY.itemsize
        disk_space.require(scratch.folder, size)
        with self._phase("write", "bytes", size) as phase:
            made = (counted.cell_keys, counted.vocabulary, facts, counted.texts)
            for done in write_dataset(self._config.out, scratch, *made):
                phase.advance(done)
        return facts | {
            "words": layout.rows,
            "seconds": self._seconds,
            "peak_memory_bytes": self._peak_bytes,
            "path": str(self._config.out),
        }

    def _phase(self, name: str, unit: str, total: int | None) -> Phase:
        return Phase(name, unit, total, self._seconds)

    def _work(self, phase: Phase, make_job: Callable[[], Job], tasks: Iterable[Any]) -> None:
        """Run all tasks in a pool of jobs, and advance `phase` by each result."""

        def tick(pids: list[int]) -> None:
            phase.tick()
            if time.monotonic() - self._measured > _MEASURE_EVERY_S:
                self._measure(pids)

        with self._pool(make_job, tick) as pool:
            for amount in pool.run(tasks):
                phase.advance(amount)
            for _ in pool.finish():
                phase.tick()

    def _measure(self, pids: list[int]) -> None:
        self._peak_bytes = max(self._peak_bytes, sum(memory_bytes(pid)[0] for pid in pids))
        self._measured = time.monotonic()


def _bucket_ranges(sizes: Indices, most: int, done: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Divide the buckets that are not done into ranges [first, last) of at most `most` records, or of one bucket."""
    covered = np.zeros(len(sizes), np.bool_)
    for first, last in done:
        covered[first:last] = True
    ranges: list[tuple[int, int]] = []
    held = 0
    for bucket in np.flatnonzero(~covered).tolist():
        first, last = ranges[-1] if ranges else (-1, -1)
        held += int(sizes[bucket])
        if last == bucket and held <= most and bucket - first < _MAX_BUCKETS_PER_TASK:
            ranges[-1] = (first, bucket + 1)
        else:
            ranges.append((bucket, bucket + 1))
            held = int(sizes[bucket])
    return ranges
