"""One fault, on one role, in one mode: a small training of two shards, two workers and a monitor has to survive it.

`play` plays a cell of this matrix and returns its outcome; violated expectations are its `problems`.
"""

from __future__ import annotations

import contextlib
import json
import signal
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forked import Forked
from processes import free_port, until
from relay import Fault, MessageRelay
from small_disk import small_disk
from stage import LEASE_S, SHARDS, SHORT_SILENCE_S, SILENCE_S, Cell, Role, Stage, here

BATCH = 64


@dataclass
class Outcome:
    """The outcome of a cell."""

    cell: Cell
    end: str = ""
    seconds: float = 0.0
    pushes: dict[str, int] = field(default_factory=dict)
    same_bytes: bool | None = None
    lost_on_the_way: int = 0
    problems: list[str] = field(default_factory=list)


def undisturbed(folder: Path, epochs: int) -> bytes:
    """The vectors after `epochs` epochs of blocks/exclusive with one shard, one worker and no fault."""
    out, port = f"alone-{epochs}", free_port()
    with ExitStack() as stack:
        server = Forked(
            folder, f"{out}-server", "server", "data", "--out", out, "--dim", 8, "--epochs", epochs, "--bind",
            here(port), "--publish", "tcp://127.0.0.1:0", "--no-verify",
        )  # fmt: skip
        stack.callback(server.kill)
        worker = Forked(folder, f"{out}-worker", "worker", "data", "--server", here(port), "--no-verify")
        stack.callback(worker.kill)
        until(lambda: server.status is not None, f"{out} ends: {server.err[-300:]!r}", 300)
    return (folder / out / "vectors.npy").read_bytes()


def play(cell: Cell, folder: Path, expected: bytes | None, out: str = "run", patience: float = 3.0) -> Outcome:
    """Play one cell; `expected` are the vectors of the same training without a fault.

    `patience` stretches deadlines on a machine that is busy with other things.
    """
    outcome = Outcome(cell)
    began = time.monotonic()
    with ExitStack() as stack:
        stage = Stage(folder, cell, out, stack)
        if cell.fault is Fault.DISK:
            stack.enter_context(small_disk(stage.path))
        try:
            stage.start()
            hurt(stage)
            finish(stage, outcome, began + cell.deadline_s * patience)
        except AssertionError as error:
            outcome.problems.append(str(error).splitlines()[0])
        outcome.seconds = time.monotonic() - began
        outcome.end = outcome.end or "hangs"
        if not outcome.problems:
            check(stage, outcome, expected)
    return outcome


def hurt(stage: Stage) -> None:
    """Inject the cell's fault of a process or disk; relays inject those of messages and connections all along."""
    fault, victim = stage.cell.fault, stage.victim()
    if fault not in (Fault.KILL, Fault.STOP, Fault.DISK):
        return
    under_way(stage)
    if fault is Fault.KILL:
        victim.signal(signal.SIGKILL)
        until(lambda: victim.status is not None, "it is dead")
        stage.restart_victim()
    elif fault is Fault.STOP:
        victim.signal(signal.SIGSTOP)
        if stage.cell.role is Role.WORKER:
            until(lambda: "event=lost subject=w0" in stage.servers[0].err, "the stopped worker is lost")
        else:
            end = time.monotonic() + 1.5 * LEASE_S
            until(lambda: time.monotonic() > end, "the lease is over")
        victim.signal(signal.SIGCONT)
    else:
        filling = stage.path / "filling"
        with contextlib.suppress(OSError), filling.open("wb", buffering=0) as stream:
            while True:
                stream.write(bytes(4096))
        until(lambda: any("no space left" in one.err for one in stage.servers), "a checkpoint does not fit")
        filling.unlink()


def under_way(stage: Stage) -> None:
    """Wait until every shard has a checkpoint to go back to."""
    parts = [f"[!.]*.shard-{shard}-of-{SHARDS}" for shard in range(SHARDS)]
    folder = stage.path / "checkpoints"
    until(lambda: all(any(folder.glob(part)) for part in parts), "there is a checkpoint")


def finish(stage: Stage, outcome: Outcome, deadline: float) -> None:
    """Wait until all processes have ended; record how."""
    everybody = [*stage.servers, *stage.workers, stage.monitor]
    for one in everybody:
        left = max(deadline - time.monotonic(), 0.1)
        until(lambda one=one: one.status is not None, f"{one.name} hangs: {one.err[-300:]!r}", left)
    failed = {one: one.last_words for one in everybody if one.status != 0}
    outcome.end = "; ".join(failed.values()) or "completes"
    if stage.cell.end_unheard and "and no finished event" in failed.get(stage.monitor, ""):
        failed.pop(stage.monitor)
        outcome.end = f"completes; the monitor ends after {SHORT_SILENCE_S:g} s of silence"
    for worker in stage.unheard & failed.keys():
        if f"has not answered for {SILENCE_S:g} s" in failed[worker]:
            failed.pop(worker)
            outcome.end = f"completes; a worker that missed the end exits after {SILENCE_S:g} s of silence"
    outcome.problems += [f"{one.name}: {why}" for one, why in failed.items()]


def check(stage: Stage, outcome: Outcome, vectors: bytes | None) -> None:
    """Check that every block was counted once, every push is accounted for, and the bytes are the same."""
    facts = [json.loads(server.out.splitlines()[-1]) for server in stage.servers]
    cell, problems = stage.cell, outcome.problems
    outcome.pushes = {key: sum(one["pushes"][key] for one in facts) for key in facts[0]["pushes"]}
    pushes = outcome.pushes
    if pushes["heard"] != pushes["applied"] + pushes["repeated"] + pushes["refused"]:
        problems.append(f"pushes do not reconcile: {pushes}")
    relays = [relay for relay in stage.relays if isinstance(relay, MessageRelay)]
    outcome.lost_on_the_way = pushes["sent"] - pushes["heard"]
    expected = sum(relay.lost for relay in relays)
    exact = cell.fault not in (Fault.KILL, Fault.STOP, Fault.CUT)
    if cell.fault is Fault.DROP:  # a goodbye may be lost, too
        exact = all(relay.all_parted for relay in relays)
    if outcome.lost_on_the_way != expected if exact else outcome.lost_on_the_way < 0:
        problems.append(f"sent {pushes['sent']}, heard {pushes['heard']}, the relays took {expected}")
    total, counted = _facts(stage.folder / "data")["entries"] * cell.length, facts[0]["entries"]
    if cell.mode.startswith("minibatch"):  # the table also has what killed workers had not reported
        last = max((stage.path / "checkpoints").glob(f"final*.shard-0-of-{SHARDS}"), key=_generation)
        counted = _facts(last)["gradients"] * BATCH
    if counted != total if cell.mode.startswith("blocks") else counted < total:
        problems.append(f"{counted} entries were trained, of {total}")
    if not 0 <= facts[0]["seconds"] <= outcome.seconds:
        problems.append(f"shard 0 says that it trained for {facts[0]['seconds']:.1f} s")
    if cell.mode == "blocks/exclusive":
        outcome.same_bytes = (stage.path / "vectors.npy").read_bytes() == vectors
        if not outcome.same_bytes:
            problems.append("other bytes than undisturbed")
    if cell.fault is Fault.KILL and cell.role is Role.SHARD and not _life(stage, 1)["label"]:
        problems.append("the shards began anew and not from a checkpoint")
    if cell.fault is Fault.STOP and cell.role is Role.SHARD and "event=lost" in stage.servers[1].err:
        problems.append("the shard that was stopped took others for lost")
    if cell.fault is Fault.CLOCK and cell.mode.startswith("blocks") and pushes["refused"]:
        problems.append(f"{pushes['refused']} pushes were refused: who made them was taken for lost")


def _generation(final: Path) -> int:
    """The generation that ended with this final checkpoint."""
    label, _, _ = final.name.partition(".")
    return int(label.partition("-")[2] or 0)


def _life(stage: Stage, number: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((stage.path / "checkpoints" / f".generation-{number:06d}").read_text("utf-8"))
    return found


def _facts(artifact: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((artifact / "manifest.json").read_text(encoding="utf-8"))["facts"]
    return found
