"""Write the tokens that preprocessing counts as text, for programs that read tokens and for comparison with NLTK."""

from glovewire.preprocess.config import PreprocessConfig
from glovewire.preprocess.corpus.sources import find_corpus
from glovewire.preprocess.parallel.scratch import open_scratch
from glovewire.preprocess.pipeline import Pipeline
from glovewire.preprocess.segments import Segment, read_slice


def write_tokens(config: PreprocessConfig) -> None:
    """Write the tokens of a corpus to the file `config.out`: blanks between words, one line per line."""
    corpus = find_corpus(config)
    with open_scratch(config.out, {}, resume=False) as scratch, config.out.open("w", encoding="utf-8") as stream:
        segments = Pipeline(config).segments(scratch, corpus)
        words = {segment.name: _words_by_number(segment) for segment in segments}
        for piece in sorted((piece for segment in segments for piece in segment.slices), key=lambda each: each.split):
            known = words[piece.segment]
            text = " ".join([known[number] for number in read_slice(scratch, piece).tolist()])
            stream.write(text.replace(" \n", "\n").replace("\n ", "\n"))


def _words_by_number(segment: Segment) -> list[str]:
    """Return the words of a segment by number; number 0 ends a line."""
    words, found = segment.words(), ["\n"] * segment.size
    text, bounds = words.data.tobytes(), words.bounds.tolist()
    for number, start, stop in zip(words.numbers.tolist(), bounds, bounds[1:], strict=False):
        found[number] = text[start:stop].decode()
    return found
