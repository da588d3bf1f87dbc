"""Bugs that were mended, and protections against what disks do: texts of the program and what stood there before.

`mutants.py` plays them: (what is right, file, text, text of the bug).
"""

from __future__ import annotations

DISK = (
    ("the folders of a run are synced when they are made", "common/storage/artifacts.py",
     "    with suppress(PermissionError):  # a folder that one may write to, but not read, cannot be flushed\n"
     "        _flush(path.parent)\n", ""),
    ("files are synced before they get their name", "common/storage/artifacts.py",
     "            for file in files_in(scratch):\n                _flush(file)\n", "            pass\n"),
    ("a folder is synced when a file in it gets its name", "common/storage/artifacts.py",
     "        if flush:\n            _flush(path.parent)\n", ""),
    ("a generation whose first checkpoint is damaged is not joined", "server/checkpoints/generations.py",
     "files.is_intact(config.out, generation.label, generation.parts)",
     "not files.missing(config.out, generation.label, generation.parts)"),
    ("a disk that fails costs metrics, not the run", "server/telemetry/metrics_file.py",
     "            with contextlib.suppress(OSError):  # a disk that fails\n"
     "                self._file.truncate(self._bytes)\n",
     "            self._file.truncate(self._bytes)\n"),
    ("metrics that cannot be removed are reported", "server/checkpoints/generations.py",
     '        with output_errors(config.out, "run"):\n'
     "            (config.out / run_folder.METRICS).unlink(missing_ok=True)\n",
     "        (config.out / run_folder.METRICS).unlink(missing_ok=True)\n"),
    ("the checkpoint to resume from is checked", "server/checkpoints/files.py",
     "                artifacts.Manifest.load(part_folder(run, label, shard, shards), KIND, SCHEMA)\n",
     "                artifacts.Manifest.load(part_folder(run, label, shard, shards), KIND, SCHEMA, verify=False)\n"),
    ("a checkpoint from which a generation begins is kept", "server/checkpoints/files.py",
     "                if label != begun:\n", "                if True:\n"),
    ("what killed processes were writing is removed", "server/checkpoints/files.py",
     "        folder = path.with_name(name.removeprefix(\".\"))\n", "        continue\n"),
)  # fmt: skip

PUT_BACK = (
)  # fmt: skip
