"""The Slurm script from start to end, with a stand-in for `srun` that has two nodes without a common folder."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path

import psutil
from handmade import random_dataset
from processes import Flow, free_port, until
from source import ROOT

FIRST, SECOND = "127.0.0.1", "127.0.0.2"
SRUN = f"""#!/bin/bash
# Runs a command once for each task, and fails if one of them does. The second node, of odd tasks, has other folders.
count=$SLURM_NTASKS only= code=0
while [[ $1 == --* ]]; do
  case $1 in --ntasks=*) count=${{1#*=}} ;; --nodelist=*) only=${{1#*=}} ;; esac
  shift
done
run() {{
  export SLURMD_NODENAME=$1
  shift
  if [[ $SLURMD_NODENAME == {SECOND} ]]; then
    [[ "$*" != *"$SUBMITTED"* ]] || {{ echo "$SUBMITTED is not on $SLURMD_NODENAME: $*" >&2; exit 1; }}
    cd / || exit
  fi
  export HOME=$NODES/$SLURMD_NODENAME SLURM_TMPDIR=$NODES/$SLURMD_NODENAME
  exec "$@"
}}
exec 3<&0 # a background command would read nothing
for ((task = 0; task < count; task++)); do
  node=({FIRST} {SECOND})
  run "${{only:-${{node[task % 2]}}}}" "$@" <&3 &
done
for task in $(jobs -p); do wait "$task" || code=$?; done
exit $code
"""
GLOVEWIRE = f"""#!/bin/bash
# The last worker is killed when it first begins.
if [[ "$*" == *task-3* ]] && mkdir "$NODES/killed" 2> /dev/null; then kill -KILL $$; fi
exec {sys.executable} -m glovewire "$@"
"""
EPOCHS = 120


def program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def shard(job: int, words: str) -> psutil.Process | None:
    """The process of a job that runs a shard."""
    for process in psutil.Process(job).children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it has just ended
            if "glovewire" in process.cmdline() and words in " ".join(process.cmdline()):
                return process
    return None


def test_a_job_trains_on_two_nodes_though_a_worker_and_a_shard_are_killed_and_leaves_vectors(tmp_path: Path) -> None:
    submitted, nodes, programs = (tmp_path / name for name in ("submitted", "nodes", "bin"))
    random_dataset(submitted / "data", size=40)
    for folder in (programs, nodes / FIRST, nodes / SECOND):
        folder.mkdir(parents=True)
    program(programs / "srun", SRUN)
    program(programs / "glovewire", GLOVEWIRE)
    with Flow(submitted) as flow:
        # The lease is longer than anything takes: the shards wait for the worker that comes late.
        job = flow.start(
            "data", "run", "--dim", 8, "--epochs", EPOCHS, "--lease", 900,
            program=["bash", str(ROOT / "examples" / "slurm" / "train.sh")],
            SLURM_NTASKS="4", SLURM_JOB_ID="1", SLURMD_NODENAME=FIRST, PORT=str(free_port()),
            GLOVEWIRE_WORKER_LATENCY="3ms", SUBMITTED=str(submitted), NODES=str(nodes),
            PATH=f"{programs}:{os.environ['PATH']}",
        )  # fmt: skip
        copies = submitted / "run" / "checkpoints"
        until(lambda: any(copies.glob("round-*.shard-1-of-2")) or not job.running, lambda: f"it trains; {job.story}")
        found = until(lambda: shard(job.pid, "--shard 1/2") or not job.running, lambda: f"shard 1 runs; {job.story}")
        assert isinstance(found, psutil.Process), job.story
        found.send_signal(signal.SIGKILL)
        job.ends(0)
        assert job.err.count("event=left ending=complete") == 2, job.story  # workers; the others are shards
        assert (copies / ".generation-000001").exists(), "it was over too soon to show anything"
        assert (nodes / "killed").exists()
        assert not [*nodes.glob("*/glovewire-*")]
        flow.train("calm", "--workers", 1, "--epochs", EPOCHS).ends(0)
        assert flow.vectors("run") == flow.vectors("calm")
