"""The tensors of a finished run: `tensors.npz`, which numpy reads without us, sealed by the run's manifest."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .arrays import UNREADABLE
from .artifacts import Manifest, replacing, seal
from .errors import ArtifactError

TENSORS_KIND = "tensors"
TENSORS_SCHEMA = 1
TENSORS = "tensors.npz"


def write(run: Path, values: Mapping[str, npt.NDArray[Any]], facts: Mapping[str, Any]) -> Manifest:
    """Write `tensors.npz` into the folder `run` and seal it; equal values give equal bytes."""
    with replacing(run / TENSORS) as stream, zipfile.ZipFile(stream, "w") as archive:
        for name, value in values.items():
            member = zipfile.ZipInfo(f"{name}.npy")  # its date is 1980
            with archive.open(member, "w", force_zip64=True) as into:
                np.lib.format.write_array(into, np.asanyarray(value), allow_pickle=False)
    return seal(run, TENSORS_KIND, TENSORS_SCHEMA, {**facts, "tensors": len(values)}, only=(TENSORS,))


def read(run: Path | str, *, verify: bool = True) -> tuple[dict[str, npt.NDArray[Any]], Manifest]:
    """The tensors of a finished run by name; ArtifactError when they are missing, altered or unreadable."""
    run = Path(run)
    manifest = Manifest.load(run, TENSORS_KIND, TENSORS_SCHEMA, verify=verify)
    try:
        with np.load(run / TENSORS, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}, manifest
    except (*UNREADABLE, zipfile.BadZipFile) as error:
        raise ArtifactError(f"{run / TENSORS} cannot be read ({type(error).__name__}: {error})") from error
