"""The dataset on disk: what is written is what is mapped, and whatever does not fit is refused before it is used."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from handmade import full_matrix, random_dataset

from glovewire.common.errors import ArtifactError
from glovewire.common.storage import dataset as datasets
from glovewire.common.storage.artifacts import MANIFEST, Manifest, seal
from glovewire.common.storage.dataset import Dataset, Layout


@pytest.mark.parametrize("symmetric", [True, False])
def test_the_matrix_comes_back_as_it_was(tmp_path: Path, symmetric: bool) -> None:
    dataset, dense = random_dataset(tmp_path / "d", symmetric=symmetric)
    np.testing.assert_array_equal(full_matrix(dataset).toarray(), dense)
    assert full_matrix(dataset).dtype == np.float32
    assert dataset.total_entries == np.count_nonzero(dense)


@pytest.mark.parametrize("symmetric", [True, False])
def test_blocks_cover_every_entry_once(tmp_path: Path, symmetric: bool) -> None:
    dataset, _ = random_dataset(tmp_path / "d", symmetric=symmetric)
    ranges = [dataset.block_range(a, b) for a, b in dataset.layout.blocks]
    assert ranges[0][0] == 0
    assert ranges[-1][1] == len(dataset.entries)
    assert all(last == first for (_, last), (first, _) in itertools.pairwise(ranges))
    assert sum(dataset.full_entries(a, b) for a, b in dataset.layout.blocks) == dataset.total_entries


def test_tiles_of_a_block_are_relative_to_it(tmp_path: Path) -> None:
    dataset, _ = random_dataset(tmp_path / "d")
    layout = dataset.layout
    for a, b in layout.blocks:
        entries, starts = dataset.block(a, b)
        assert starts[0] == 0
        assert starts[-1] == len(entries)
        in_stripe = layout.tile_rows(a)
        for tile in range(len(starts) - 1):
            part = entries[starts[tile] : starts[tile + 1]]
            assert (part["i"] // layout.tile == tile % in_stripe).all()
            assert (part["j"] // layout.columns == tile // in_stripe).all()


def test_entries_are_mapped_and_read_only(tmp_path: Path) -> None:
    dataset, _ = random_dataset(tmp_path / "d")
    assert isinstance(dataset.entries, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        dataset.entries["x"][0] = 1


def test_frequencies_are_those_of_the_words_in_the_order_of_the_rows(tmp_path: Path) -> None:
    dataset, _ = random_dataset(tmp_path / "d")
    total = sum(dataset.counts.tolist())
    expected = [dataset.counts[word] / total for word in dataset.permutation]
    np.testing.assert_allclose(dataset.frequencies, expected, rtol=1e-12)


def test_the_checksum_is_that_of_the_content(tmp_path: Path) -> None:
    one, two, other = (
        random_dataset(tmp_path / name, size=size)[0].checksum for name, size in (("a", 25), ("b", 25), ("c", 20))
    )
    assert one == two != other


def test_partitions_may_be_empty() -> None:
    layout = Layout((0, 0, 1, 1, 2, 3), 4, True)
    assert [layout.size(p) for p in range(5)] == [0, 1, 0, 1, 1]
    assert len(layout.blocks) == 15
    assert len(layout.first_tile) == 16


def altered(path: Path, name: str, change: Callable[[Any], Any]) -> None:
    """Change an array and seal the folder again, as an attacker would."""
    np.save(path / name, change(np.load(path / name)))
    resealed(path)


def resealed(path: Path, **facts: Any) -> None:
    old = json.loads((path / MANIFEST).read_text())
    seal(path, old["kind"], old["schema"], {**old["facts"], **facts})


def set_first(field: str, value: Any) -> Callable[[Any], Any]:
    def change(entries: Any) -> Any:
        entries[field][0] = value
        return entries

    return change


def as_zip(path: Path, name: str) -> None:
    np.savez(path / "a.npz", a=np.load(path / name))
    (path / "a.npz").replace(path / name)
    resealed(path)


def claim(path: Path, name: str, described: str) -> None:
    """An array file whose header says something that its bytes do not hold."""
    header = described.ljust(117).encode() + b"\n"
    (path / name).write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(64))
    resealed(path)


HUGE = "{'descr': '<i8', 'fortran_order': False, 'shape': (1152921504606846,), }"

HOSTILE: dict[str, Callable[[Path], None]] = {
    "row outside its block": lambda p: altered(p, datasets.ENTRIES, set_first("i", 60_000)),
    "column outside its block": lambda p: altered(p, datasets.ENTRIES, set_first("j", 9)),
    "weight NaN": lambda p: altered(p, datasets.ENTRIES, set_first("x", np.nan)),
    "weight zero": lambda p: altered(p, datasets.ENTRIES, set_first("x", 0)),
    "weight negative": lambda p: altered(p, datasets.ENTRIES, set_first("x", -1)),
    "entries missing": lambda p: altered(p, datasets.ENTRIES, lambda e: e[:-1]),
    "entries of another type": lambda p: altered(p, datasets.ENTRIES, lambda e: e["x"].copy()),
    "entries a single one": lambda p: altered(p, datasets.ENTRIES, lambda e: e[0]),
    "tiles run back": lambda p: altered(p, datasets.TILES, lambda t: t[::-1].copy()),
    "tiles too few": lambda p: altered(p, datasets.TILES, lambda t: t[:-1]),
    "tiles beyond the entries": lambda p: altered(p, datasets.TILES, lambda t: t + 1),
    "counts too few": lambda p: altered(p, datasets.COUNTS, lambda c: c[1:]),
    "permutation with a word twice": lambda p: altered(p, datasets.PERMUTATION, lambda c: np.zeros_like(c)),
    "permutation beyond the words": lambda p: altered(p, datasets.PERMUTATION, lambda c: c + 1),
    "word missing": lambda p: ((p / datasets.VOCABULARY).write_text("one\n"), resealed(p))[0],
    "vocabulary no UTF-8": lambda p: ((p / datasets.VOCABULARY).write_bytes(b"\xff\n"), resealed(p))[0],
    "checksums of blocks missing": lambda p: ((p / datasets.CHECKSUMS).unlink(), resealed(p))[0],
    "array a pickle": lambda p: ((p / datasets.TILES).write_bytes(b"\x80\x04N."), resealed(p))[0],
    "array empty": lambda p: ((p / datasets.TILES).write_bytes(b""), resealed(p))[0],
    "array a zip": lambda p: as_zip(p, datasets.TILES),
    "array of more than there is": lambda p: claim(p, datasets.TILES, HUGE),
    "array of more than a number can say": lambda p: claim(p, datasets.ENTRIES, HUGE.replace("846", "846" * 9)),
    "array of less than nothing": lambda p: claim(p, datasets.TILES, HUGE.replace("(1", "(-1")),
    "array of no shape": lambda p: claim(p, datasets.TILES, HUGE.replace("(1152921504606846,)", "None")),
    "array of objects": lambda p: claim(p, datasets.COUNTS, HUGE.replace("<i8", "|O")),
    "array with code in its header": lambda p: claim(p, datasets.COUNTS, "__import__('os').abort()"),
    "counts of text": lambda p: altered(p, datasets.COUNTS, lambda c: c.astype("U8")),
    "permutation of floats": lambda p: altered(p, datasets.PERMUTATION, lambda c: c.astype(np.float64)),
    "tiles of floats": lambda p: altered(p, datasets.TILES, lambda t: t.astype(np.float64)),
    "tiles of records": lambda p: altered(p, datasets.TILES, lambda t: t.astype([("x", "<i8")])),
    "tiles in the other byte order": lambda p: altered(p, datasets.TILES, lambda t: t.astype(">i8")),
    "partitions by the thousand, all but empty": lambda p: resealed(p, bounds=[*[0] * 4096, 25]),
    "partitions none": lambda p: resealed(p, bounds=[]),
    "partitions negative": lambda p: resealed(p, bounds=[0, -3, 25]),
    "partitions of a billion rows": lambda p: resealed(p, bounds=[0, 10**9]),
    "partitions from the second row on": lambda p: resealed(p, bounds=[1, 8, 16, 25]),
    "partitions another number": lambda p: resealed(p, bounds=[0, 8, 25]),
    "partitions infinite": lambda p: resealed(p, bounds=[0, float("inf")]),
    "partitions text": lambda p: resealed(p, bounds="many"),
    "tile none": lambda p: resealed(p, tile=0),
    "vocabulary negative": lambda p: resealed(p, vocabulary=-25),
    "vocabulary huge": lambda p: resealed(p, vocabulary=1 << 62),
    "total too large": lambda p: resealed(p, entries=10**9),
    "total text": lambda p: resealed(p, entries="many"),
    "symmetric no more": lambda p: resealed(p, symmetric=False),
}


@pytest.mark.parametrize("harm", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_dataset_that_was_made_to_harm_is_refused(tmp_path: Path, harm: Callable[[Path], None]) -> None:
    path = tmp_path / "d"
    random_dataset(path)
    harm(path)
    with pytest.raises(ArtifactError) as caught:
        Dataset.open(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", [datasets.ENTRIES, datasets.TILES, datasets.VOCABULARY, datasets.COUNTS])
def test_a_file_that_was_cut_or_altered_is_named(tmp_path: Path, name: str) -> None:
    path = tmp_path / "d"
    random_dataset(path)
    whole = (path / name).read_bytes()
    (path / name).write_bytes(whole[:-1])
    with pytest.raises(ArtifactError, match=rf"{name} has .* bytes instead of"):
        Dataset.open(path)
    (path / name).write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(ArtifactError, match=rf"{name} does not match its checksum"):
        Dataset.open(path)
    (path / name).unlink()
    with pytest.raises(ArtifactError, match=f"{name} is missing"):
        Dataset.open(path)


@pytest.mark.parametrize("name", datasets.FILES)
def test_a_file_that_the_manifest_does_not_list_is_not_read(tmp_path: Path, name: str) -> None:
    """Seen to fail: it was read without a checksum, or ended as a FileNotFoundError with no way out."""
    path = tmp_path / "d"
    random_dataset(path)
    manifest = json.loads((path / MANIFEST).read_text())
    del manifest["files"][name]
    (path / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(ArtifactError, match=rf"is a dataset without {name}: make it again"):
        Dataset.open(path)


@pytest.mark.parametrize("verify", [True, False])
def test_a_dataset_of_another_schema_is_refused(tmp_path: Path, verify: bool) -> None:
    path = tmp_path / "old"
    random_dataset(path)
    seal(path, datasets.KIND, 1, {"vocabulary": 25})
    with pytest.raises(ArtifactError, match="has schema version 1, this program reads version 2: make it again"):
        Dataset.open(path, verify=verify)


@pytest.mark.parametrize("symmetric", [True, False])
def test_distinct_rows_are_those_of_a_partition_that_share_an_entry_with_another(
    tmp_path: Path, symmetric: bool
) -> None:
    dataset, dense = random_dataset(tmp_path / "d", size=40, symmetric=symmetric, share=0.02)
    layout, rows = dataset.layout, dense[np.ix_(dataset.permutation, dataset.permutation)] > 0
    found = 0
    for b, a in itertools.combinations(range(layout.partitions), 2):
        own, other = slice(*layout.span(a)), slice(*layout.span(b))
        shared = rows[own, other].any(axis=0) | rows[other, own].any(axis=1)
        expected = np.flatnonzero(shared) + layout.bounds[b]
        assert dataset.distinct(a, b).tolist() == expected.tolist()
        found += 0 < len(expected) < layout.size(b)
    assert found


@pytest.mark.parametrize("fact", ["vocabulary", "bounds", "tile", "symmetric", "entries"])
def test_a_fact_that_is_missing_is_named(tmp_path: Path, fact: str) -> None:
    path = tmp_path / "d"
    random_dataset(path)
    facts = dict(Manifest.load(path, datasets.KIND, datasets.SCHEMA).facts)
    del facts[fact]
    seal(path, datasets.KIND, datasets.SCHEMA, facts)
    with pytest.raises(ArtifactError, match=fact):
        Dataset.open(path)
