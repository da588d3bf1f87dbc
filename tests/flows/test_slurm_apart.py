"""Real Slurm over two machines without a common folder: tasks are killed, and a cancelled job resumes."""

from __future__ import annotations

import contextlib
import functools
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from handmade import random_dataset
from machines import Machines, missing
from processes import Flow, Running, until
from source import ROOT

absent = "" if shutil.which("slurmctld") and shutil.which("slurmd") else "needs Slurm (Debian: slurm-wlm)"
why = missing() or absent
pytestmark = pytest.mark.skipif(bool(why), reason=why or "no reason")
EPOCHS = 120
COMPLETE = "event=finished subject='shard 0' text=complete"
SCRIPT = ROOT / "examples" / "slurm" / "train.sh"
FIRST, SECOND = Machines.addresses
CONFIGURATION = f"""
ClusterName=glovewire
SlurmctldHost={socket.gethostname()}({FIRST})
SlurmUser=root
AuthType=auth/none
CredType=cred/none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
NodeName={FIRST} CPUs=2
NodeName={SECOND} CPUs=2
PartitionName=main Nodes=ALL Default=YES
StateSaveLocation=FOLDER/state
SlurmdSpoolDir=FOLDER/%n
SlurmctldPidFile=FOLDER/slurmctld.pid
SlurmdPidFile=FOLDER/%n.pid
"""
"""Without munge and control groups, which a machine may lack; the names of the nodes are their addresses."""


def stop(running: Running) -> None:
    running.signal(signal.SIGTERM)
    until(lambda: not running.running, "Slurm ends")


def task(words: str, scratch: Path) -> psutil.Process | None:
    """The process of glovewire whose command line has the words, on a node with this folder for what jobs leave."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):  # it has just ended
            line = process.cmdline()
            ours = line[1:3] == ["-m", "glovewire"] and process.environ().get("TMPDIR") == str(scratch)
            if ours and words in " ".join(line):
                return process
    return None


@pytest.fixture
def slurm() -> Iterator[Path]:
    """A folder for Slurm, with a name short enough for its sockets."""
    folder = Path(tempfile.mkdtemp(prefix="gw-slurm-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def test_a_job_of_real_slurm_trains_though_tasks_are_killed_and_resumes_after_it_was_cancelled(
    tmp_path: Path, slurm: Path
) -> None:
    submitted, scratch, programs = (tmp_path / name for name in ("submitted", "scratch", "bin"))
    log, copies = submitted / "log", submitted / "runs" / "slurm" / "checkpoints"
    for folder in (slurm / "state", scratch, programs):
        folder.mkdir(parents=True)
    random_dataset(submitted / "data", size=40)
    (slurm / "slurm.conf").write_text(CONFIGURATION.replace("FOLDER", str(slurm)))
    (slurm / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")  # none is asked for
    glovewire = programs / "glovewire"
    glovewire.write_text(f'#!/bin/sh\nexec {sys.executable} -m glovewire "$@"\n')
    glovewire.chmod(0o755)
    ours = {"SLURM_CONF": str(slurm / "slurm.conf"), "TMPDIR": str(scratch)}

    with Flow(submitted) as flow, Machines([submitted, scratch]) as machines, contextlib.ExitStack() as cluster:

        def daemon(number: int, says: str, *words: str) -> None:
            running = flow.start(program=machines.on(number, *words), **ours)
            cluster.callback(stop, running)
            running.says(says)

        def slurm_says(*words: str, **environment: str) -> str:
            return flow.start(program=machines.on(1, *words), **ours, **environment).ends(0).out

        def submit(latency: str) -> str:
            return slurm_says(
                "sbatch", "--parsable", "--ntasks=4", "--mem-per-cpu=0", "--output=log",
                str(SCRIPT), "data", "runs/slurm", "--dim", "8", "--epochs", str(EPOCHS),
                GLOVEWIRE_WORKER_LATENCY=latency, PATH=f"{programs}:/usr/bin:/bin",
            ).strip()  # fmt: skip

        def story() -> str:
            return "".join(running.err for running in flow.all[:3]) + (log.read_text() if log.exists() else "")

        def state(job: str) -> str:
            return slurm_says("squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T").strip()

        def ends(job: str, how: str) -> None:
            """Wait until a job has left nothing on its nodes; only then ask Slurm, with a process each time."""
            until(lambda: not [*scratch.iterdir()], story)
            until(lambda: state(job) not in ("RUNNING", "COMPLETING"), story)
            assert state(job) == how, story()

        daemon(1, "Running as primary controller", "slurmctld", "-D")
        for number, address in enumerate(machines.addresses, 1):
            daemon(number, "slurmd started", "slurmd", "-D", "-N", address)
        cluster.callback(slurm_says, "scancel", "--user=root")  # before the daemons end

        job = submit("30ms")
        until(lambda: len([*copies.glob("round-*.shard-1-of-2")]) > 1, story)  # one of them is whole
        for words in ("--shard 1/2", "--name task-3"):
            until(functools.partial(task, words, scratch), story).kill()
        until((copies / ".generation-000001").exists, story)
        slurm_says("scancel", job)
        ends(job, "CANCELLED")
        first = log.read_text()
        assert COMPLETE not in first, "it was over too soon"

        job = submit("0ms")
        until(lambda: COMPLETE in log.read_text(), story)
        ends(job, "COMPLETED")
        assert "event=epoch subject=2 " not in log.read_text().removeprefix(first), "it began anew"
        flow.train("calm", "--workers", 1, "--epochs", EPOCHS).ends(0)
        assert flow.vectors("runs/slurm") == flow.vectors("calm")
