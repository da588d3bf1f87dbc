"""The Slurm script from start to end, with a stand-in for `srun` that has one machine."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from handmade import random_dataset
from processes import Flow, free_port
from source import ROOT

SRUN = """#!/bin/bash
# Runs a command as often as it is told to, all at once, and fails if one of them does.
count=$SLURM_NTASKS code=0
while [[ $1 == --* ]]; do
  case $1 in --ntasks=*) count=${1#*=} ;; esac
  shift
done
export SLURMD_NODENAME=localhost
for ((task = 0; task < count; task++)); do "$@" & done
for task in $(jobs -p); do wait "$task" || code=$?; done
exit $code
"""
GLOVEWIRE = f"""#!/bin/bash
# The last worker is killed when it first begins.
if [[ "$*" == *task-3* ]] && mkdir killed 2> /dev/null; then kill -KILL $$; fi
exec {sys.executable} -m glovewire "$@"
"""


def program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def test_a_job_trains_on_all_its_tasks_though_one_is_killed_and_leaves_vectors(tmp_path: Path) -> None:
    random_dataset(tmp_path / "data", size=40)
    programs = tmp_path / "bin"
    programs.mkdir()
    program(programs / "srun", SRUN)
    program(programs / "glovewire", GLOVEWIRE)
    with Flow(tmp_path) as flow:
        job = flow.start(
            "data", tmp_path / "run", "--dim", 8, "--epochs", 3,
            program=["bash", str(ROOT / "examples" / "slurm" / "train.sh")],
            SLURM_NTASKS="4", PORT=str(free_port()), PATH=f"{programs}:{os.environ['PATH']}",
        )  # fmt: skip
        job.ends(0)
        left = "event=left ending=complete"
        assert job.err.count(left) == 2, job.story  # workers; the others are shards
        flow.train("calm", "--workers", 1, "--epochs", 3).ends(0)
        assert flow.vectors("run") == flow.vectors("calm")
