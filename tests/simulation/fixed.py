"""Fixed bugs, and protections against faults of disks: texts of the program, and what replaces them in a mutant.

`mutants.py` plays them: (what is right, file, text, text of the bug).
"""

from __future__ import annotations

DISK = (
    ("files are synced before they get their name", "common/storage/artifacts.py",
     "            for file in files_in(scratch):\n"
     "                flush_path(file)\n",
     "            pass\n"),
    ("a folder is synced when a file in it gets its name", "common/storage/artifacts.py",
     "        if flush:\n"
     "            flush_path(path.parent)\n",
     ""),
    ("a damaged checkpoint is passed over", "server/checkpoints/files.py",
     "            _facts(run, label, shards)\n", "            _facts(run, label, shards, verify=False)\n"),
    ("a checkpoint that a disk does not read is not passed over", "server/checkpoints/files.py",
     "    if artifacts.is_unreadable(error):\n", "    if False:\n"),
    ("no shard joins a generation whose first checkpoint is damaged", "server/checkpoints/generations.py",
     "files.is_intact(config.out, generation.label, generation.parts, verify=verify)", "True"),
)  # fmt: skip

PUT_BACK = (
    ("checkpoints go on after one was skipped", "server/checkpoints/cuts.py",
     "        if isinstance(self._blocks, ExclusiveBlocks):\n            self._advance",
     "        if self._cuts and isinstance(self._blocks, ExclusiveBlocks):\n            self._advance"),
    ("the folders of a run are synced when they are made", "common/storage/artifacts.py",
     "    with suppress(PermissionError):  # a folder that one may write to, but not read, cannot be flushed\n"
     "        flush_path(path.parent)\n",
     ""),
    ("a disk that fails costs metrics, not the run", "server/telemetry/metrics_file.py",
     "            with contextlib.suppress(OSError):  # a disk that fails\n"
     "                self._file.truncate(self._bytes)\n",
     "            self._file.truncate(self._bytes)\n"),
    ("metrics that cannot be removed are reported", "server/checkpoints/generations.py",
     '        with output_errors(config.out, "run"):\n'
     "            (config.out / run_folder.METRICS).unlink(missing_ok=True)\n",
     "        (config.out / run_folder.METRICS).unlink(missing_ok=True)\n"),
    ("a checkpoint from which a generation begins is kept", "server/checkpoints/files.py",
     " and label != begun]", "]"),
    ("what killed processes were writing is removed", "server/checkpoints/files.py",
     '        folder = path.with_name(name.removeprefix("."))\n',
     "        continue\n"),
    ("a shard 0 that died while it assembled the vectors does so again", "server/service.py",
     "if config.shard == 0 and not generations.has_results(config, ended):", "if False:"),
    ("a checkpoint that was pruned is not reported as on disk", "server/checkpoints/cuts.py",
     "        self._on_disk.difference_update(written.removed)\n",
     ""),
    ("parts of different generations are not combined", "server/checkpoints/files.py",
     'return len({each.get("generation") for each in facts}) > 1',
     "return False"),
    ("a lost pull is not taken for a slow one", "common/client/channel.py",
     "        if request.times == 1:\n",
     "        if True:\n"),
    ("every shard counts the steps of a dense model", "worker/dense/session.py",
     "        for part in self._trained_parts():\n"
     '            self._push("gradient"',
     "        for part in filter(lambda part: part.last > part.first, self._trained_parts()):\n"
     '            self._push("gradient"'),
)  # fmt: skip
