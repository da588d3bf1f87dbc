"""Play every attack that one peer can make on a run, and compare the outcome with what is promised.

    PYTHONPATH=.:tests/support python benchmarks/hostile.py [--only "waiting pulls"] [--out hostile.json]

A run is one or two servers and two honest workers on loopback, with a simulated latency that leaves both cores time for
the attacker (`attacks.py` has the attacks, and who can make them). Promises: the same bytes as without the attacker;
memory of each server within 1.5 times its rows plus 150 MB, and 64 kB for each connection (anonymous pages, sampled);
at most twice the time; workers and servers end successfully; the log and the run folder stay small. N-grams, which are
fitted after training, are left out: their memory has its own bound (docs/objectives.md). Takes about 17 minutes on 2
idle cores. Prints one table row per attack, then one JSON object; exit status 1 if a promise is broken.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import scipy.sparse
from attacks import ATTACKS, DENSE_ROWS, HONEST, Attack, Target
from forked import PROGRAM
from handmade import write_dataset
from processes import FREE, Flow, Running

from glovewire.bench.measurements import surroundings
from glovewire.common.model.options import TrainingOptions
from glovewire.common.model.row_layout import RowLayout
from glovewire.common.storage.dataset import Dataset
from glovewire.worker.dense import Client

WORDS, ENTRIES, PARTITIONS, DIM, EPOCHS = 12_000, 150_000, 8, 256, 10
STEPS = 400
LEASE_S, LATENCY = 2.0, "40ms"
FIXED_BYTES, TABLES, CONNECTION_BYTES = 150e6, 1.5, 64e3
SLOWER, GRACE_S = 2.0, 1.5
"""A run may take SLOWER times as long plus GRACE_S, by which one start may be slower than another on a busy machine."""
GIVE_UP = 4
REPEAT_AFTER = 10
"""Attacks on a stage before it is played undisturbed again, because other load on the machine may have changed."""
MAX_LOG_LINES = 400
SAMPLE_S = 0.05
CLIENTS = {"w0": "worker", "w1": "worker", "carl": "worker", "monitor": "monitor"}


@dataclass
class Played:
    """Outcome of one run; sizes in bytes. `broken` names the broken promises."""

    name: str
    who: str = ""
    item: int = 0
    seconds: float = 0.0
    peak: int = 0
    log_lines: int = 0
    folder: int = 0
    result: bytes = b""
    broken: list[str] = field(default_factory=list)

    def as_fields(self) -> dict[str, Any]:
        """Return the facts without the bytes."""
        facts = asdict(self)
        del facts["result"]
        return {**facts, "peak_mb": round(self.peak / 1e6, 1), "holds": not self.broken}


def main() -> int:
    """Play, print and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="play the attacks with a name that has this; separate several by ;")
    parser.add_argument("--out", type=Path, help="write the JSON object here, too")
    args = parser.parse_args()
    chosen = [each for each in ATTACKS if any(part in each.name for part in args.only.split(";"))]
    if not chosen:
        parser.error(f"--only {args.only!r} is in the name of no attack: benchmarks/attacks.py lists them")
    before = surroundings()
    with tempfile.TemporaryDirectory(prefix="glovewire-hostile-") as name:
        folder = Path(name)
        make_data(folder / "data")
        played = list(play_all(folder, chosen))
    facts = {
        "surroundings": before,
        "bound_mb": {stage: bound(stage) / 1e6 for stage in STAGES},
        "attacks": [each.as_fields() for each in played],
        "broken": sum(bool(each.broken) for each in played),
    }
    if args.out is not None:
        args.out.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(facts))
    return 1 if facts["broken"] else 0


def make_data(path: Path) -> None:
    """Write a random dataset: a table of 25 MB and little work."""
    draw = np.random.default_rng(1)
    i, j = draw.integers(0, WORDS, (2, ENTRIES))
    one = scipy.sparse.coo_matrix((draw.integers(1, 900, ENTRIES) / 60, (i, j)), (WORDS, WORDS)).tocsr()
    both = (one + one.T).astype(np.float32).tocoo()
    words = sorted(f"w{n:05}" for n in range(WORDS))
    write_dataset(path, both, draw.integers(1, 6, WORDS), words, partitions=PARTITIONS, tile=256)


# ---- stages


@dataclass(frozen=True)
class Stage:
    """How a run is set up: options of its servers, and what else runs alongside it."""

    options: Sequence[object] = ()
    shards: int = 1
    keys: bool = False
    files: int = 0
    dense: bool = False
    page: bool = False
    prometheus: bool = False


STAGES = {
    "open": Stage(),
    "open-256": Stage(files=256),
    "open-1024": Stage(files=1024),
    "keys": Stage(keys=True),
    "keys-256": Stage(keys=True, files=256),
    "two": Stage(shards=2),
    "sync": Stage(("--schedule", "minibatch", "--consistency", "sync", "--batch-size", 3000, "--epochs", 1)),
    "dense": Stage(("--objective", "tensors", "--consistency", "sync", "--steps", STEPS), dense=True),
    "page": Stage(page=True),
    "prometheus": Stage(prometheus=True, files=256),
}


def bound(stage: str, connections: int = 0) -> float:
    """Return how much memory a server of this stage may take while an attacker holds `connections`."""
    rows = DENSE_ROWS if STAGES[stage].dense else WORDS // STAGES[stage].shards
    table = TABLES * rows * 4 * (256 if STAGES[stage].dense else row_width())
    return FIXED_BYTES + table + connections * CONNECTION_BYTES


def row_width() -> int:
    """Return the number of floats in a row of word vectors."""
    return RowLayout.of(TrainingOptions(dim=DIM)).width


# ---- playing


def play_all(folder: Path, chosen: Sequence[Attack]) -> Iterator[Played]:
    """Play each attack after undisturbed runs of its stage; print a row of the table for each."""
    print(
        "| attack | who | item | seconds | undisturbed | peak MB | undisturbed | of | promises |",
        "|---|---|---|---|---|---|---|---|---|",
        sep="\n",
    )
    plain: dict[tuple[str, bool], list[Played]] = {}
    results: dict[str, bytes] = {}
    for number, attack in enumerate(chosen):
        undisturbed = plain.setdefault(attack.setting, [])
        if len(undisturbed) * REPEAT_AFTER <= sum(each.setting == attack.setting for each in chosen[:number]):
            undisturbed.append(one := play(folder, f"plain-{number}", attack.setting))
            if one.broken or one.result != results.setdefault(attack.stage, one.result):
                raise SystemExit(f"without an attacker: {one.broken or 'other bytes each time'}")
        found = play(folder, f"run-{number}", attack.setting, attack, give_up_s(undisturbed))
        judge(found, attack, undisturbed)
        print_row(found, attack, undisturbed)
        yield found


def give_up_s(undisturbed: Sequence[Played]) -> float:
    """Return the seconds after which an unfinished run counts as one that never ends."""
    return GIVE_UP * median(each.seconds for each in undisturbed) + 8 * LEASE_S


def print_row(found: Played, attack: Attack, undisturbed: Sequence[Played]) -> None:
    """Print one row of the table."""
    usual = median(each.seconds for each in undisturbed)
    verdict = "hold" if not found.broken else "**" + "; ".join(found.broken) + "**"
    memory = [found.peak, max(each.peak for each in undisturbed), bound(attack.stage, attack.connections)]
    cells = [f"{found.seconds:.1f}", f"{usual:.1f}", *(f"{nbytes / 1e6:.0f}" for nbytes in memory)]
    print("|", " | ".join([attack.name, attack.who, str(attack.item), *cells, verdict]), "|", flush=True)


def judge(found: Played, attack: Attack, undisturbed: Sequence[Played]) -> None:
    """Add the broken promises to `found`."""
    broken = found.broken
    usual = median(each.seconds for each in undisturbed)
    if not found.result:
        broken.append("no vectors")
    elif found.result != undisturbed[0].result and not attack.withdrawn:
        broken.append("other bytes")
    if found.peak > (most := bound(attack.stage, attack.connections)):
        broken.append(f"memory {found.peak / 1e6:.0f} MB of {most / 1e6:.0f}")
    if found.seconds > SLOWER * usual + GRACE_S and not attack.withdrawn:
        broken.append(f"{found.seconds / usual:.1f} times as long")
    if found.log_lines > MAX_LOG_LINES:
        broken.append(f"{found.log_lines} lines in the log")
    if found.folder > (size := undisturbed[0].folder + 4 * (bound(attack.stage) - FIXED_BYTES)):
        broken.append(f"a run folder of {found.folder / 1e6:.0f} MB, more than {size / 1e6:.0f}")


def play(
    folder: Path, run: str, setting: tuple[str, bool], attack: Attack | None = None, limit_s: float = 600.0
) -> Played:
    """Play one attack, or none, in a setting (`Attack.setting`); return the outcome of the run."""
    stage, kill = setting
    how, found = STAGES[stage], Played(attack.name if attack else "", attack.who if attack else "")
    found.item = attack.item if attack else 0
    with Flow(folder, forks=False) as flow:
        keys = make_keys(flow) if how.keys else None
        servers = start_servers(flow, run, how, keys)
        addresses, streams = zip(*(server.ready() for server in servers), strict=True)
        target = target_of(folder, list(addresses), streams[0], keys, how)
        add_ports(flow, target, servers[0], how)
        with attacker(target, attack, found) as begin:
            if attack is not None and attack.before:
                begin()
            began = time.monotonic()
            workers = Honest(flow, how, target)
            if attack is not None and not attack.before:
                servers[0].says("event=joined subject=w1")
                begin()
            follow(servers, workers, found, began + limit_s, kill=kill)
            found.seconds = time.monotonic() - began
            target.over.set()
        conclude(flow, run, servers, workers, found)
    return found


def target_of(folder: Path, addresses: list[str], stream: str, keys: Path | None, how: Stage) -> Target:
    """Return what the attacker knows."""
    dataset = Dataset.open(folder / "data", verify=False)
    checksum = "" if how.dense else dataset.checksum
    facts = (addresses, stream, checksum, list(dataset.layout.bounds), row_width())
    over, ready = multiprocessing.Event(), multiprocessing.Event()
    return Target(*facts, EPOCHS * PARTITIONS, over, ready, keys)


def make_keys(flow: Flow) -> Path:
    """Make the keys of all clients once."""
    keys = flow.path("keys")
    if not keys.exists():
        for number, (name, role) in enumerate(CLIENTS.items()):
            flow.run("keys", keys, "--name", name, "--role", role, *(["--add"] if number else []))
    return keys


def start_servers(flow: Flow, run: str, how: Stage, keys: Path | None) -> list[Running]:
    """Start the shards."""
    program = ["sh", "-c", f'ulimit -n {how.files}; exec "$@"', "sh", *PROGRAM] if how.files else None
    what: list[object] = [] if how.dense else ["data", "--epochs", EPOCHS, "--dim", DIM, "--subwords", 0]
    fixed = [
        "--bind",
        FREE,
        "--publish",
        FREE,
        "--no-verify",
        "--lease",
        LEASE_S,
        "--patience",
        2 * LEASE_S,
        "--workers",
        2,
    ]
    if keys is not None:
        fixed += ["--keys", keys]
    if how.prometheus:
        fixed += ["--prometheus", 0]
    shards = [["--shard", f"{shard}/{how.shards}"] for shard in range(how.shards)]
    words = [["server", *what, "--out", run, *how.options, *fixed, *shard] for shard in shards]
    return [flow.start(*map(str, each), program=program) for each in words]


def add_ports(flow: Flow, target: Target, server: Running, how: Stage) -> None:
    """Start the dashboard and find the port for Prometheus, if the stage has them."""
    if how.page:
        watcher = flow.start("monitor", target.stream, "--web", "0")
        watcher.says("dashboard http://")
        host, _, port = watcher.err.split("dashboard http://")[1].split("/")[0].rpartition(":")
        target.page, target.watcher = (host, int(port)), watcher.pid
    if how.prometheus:
        server.says("event=metrics")
        target.metrics = int(server.err.split("url=http://127.0.0.1:")[1].split("/")[0])


class Honest:
    """The honest workers of a run, processes both; `replace` kills one and starts another."""

    def __init__(self, flow: Flow, how: Stage, target: Target) -> None:
        self._flow, self._how, self._target = flow, how, target
        self.running = {name: self._start(name) for name in HONEST}
        self.killed: list[str] = []

    def _start(self, name: str) -> Running:
        target = self._target
        if self._how.dense:
            program = [sys.executable, __file__, "--dense-worker", target.addresses[0], name]
            return self._flow.start(program=program, PYTHONPATH=os.pathsep.join(sys.path))
        key = ("--keys", target.keys / f"{name.split('-')[0]}.key") if target.keys else ()
        how = ("--latency", LATENCY, "--no-verify", *map(str, key))
        return self._flow.worker(*target.addresses, name=name, timeout=60, how=how)

    def replace(self, name: str) -> None:
        """Kill a worker and start another."""
        self.running.pop(name).process.kill()
        self.running[f"{name}-again"] = self._start(f"{name}-again")


def follow(servers: Sequence[Running], workers: Honest, found: Played, deadline: float, *, kill: bool) -> None:
    """Sample the memory of the servers until all have ended, at most until the deadline."""
    kill_at = time.monotonic() + LEASE_S / 2 if kill else math.inf
    while any(server.running for server in servers):
        found.peak = max([found.peak, *(anonymous_bytes(server.pid) for server in servers)])
        now = time.monotonic()
        if now > kill_at:
            workers.replace(HONEST[1])
            kill_at = math.inf
        if now > deadline:
            found.broken.append("the run does not end")
            return
        time.sleep(SAMPLE_S)


def anonymous_bytes(pid: int) -> int:
    """Return the memory of a process that no file backs, 0 once it has ended."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines():
            if line.startswith("Pss_Anon:"):
                return int(line.split()[1]) << 10
    return 0


@contextmanager
def attacker(target: Target, attack: Attack | None, found: Played) -> Iterator[Callable[[], None]]:
    """Run the attack in its own process, which the yielded function starts; end it with the block."""
    process: Any = None
    receiver, sender = multiprocessing.Pipe(duplex=False)

    def begin() -> None:
        nonlocal process
        assert attack is not None
        target.began = time.monotonic()
        process = multiprocessing.Process(target=attack_run, args=(attack, target, sender))
        process.start()
        if attack.before:
            target.ready.wait(15.0)

    try:
        yield begin
    finally:
        target.over.set()
        if process is not None:
            process.join(60.0 if attack is not None and STAGES[attack.stage].page else 5.0)
            if receiver.poll():  # otherwise it still waits for a server that has ended
                found.broken += receiver.recv()
            if process.is_alive():
                process.kill()
                process.join()


def attack_run(attack: Attack, target: Target, sender: Any) -> None:
    """Play the attack at low priority, with the open-file limit raised; send the broken promises that it returns."""
    os.nice(10)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        wrong = attack.play(target) or []
    except Exception as error:  # noqa: BLE001
        wrong = [f"(the attack failed: {type(error).__name__}: {error})"]
    sender.send(wrong)
    sender.close()
    os._exit(0)  # sockets of a hostile context may have much unsent


def conclude(flow: Flow, run: str, servers: Sequence[Running], workers: Honest, found: Played) -> None:
    """Record how all processes ended, and the files that the run left."""
    for process in [*servers, *workers.running.values()]:
        deadline = time.monotonic() + 5.0
        while process.running and time.monotonic() < deadline:
            time.sleep(SAMPLE_S)
        code = process.process.poll()
        if code != 0:
            who = process.words.split()[1] if len(process.words.split()) > 1 else "worker"
            last = process.err.strip().splitlines()[-1:] or [""]
            found.broken.append(
                f"a {who} " + ("never ended" if code is None else f"ended with {code}: {last[0][:120]}")
            )
        if "Traceback" in process.err:
            found.broken.append("a traceback")
    found.log_lines = max(server.err.count("\n") for server in servers)
    found.folder = sum(path.stat().st_size for path in flow.path(run).rglob("*") if path.is_file())
    for name in ("vectors.npy", "tensors.npz"):
        if flow.path(run, name).exists():
            found.result = flow.path(run, name).read_bytes()


def dense_worker(address: str, name: str) -> None:
    """Train a dense model honestly: its gradients are a function of the parameters alone."""
    with Client([address], name, timeout_s=60) as client:
        client.create({"w": np.linspace(-1, 1, DENSE_ROWS * 256, dtype=np.float32), "f": np.arange(7)}, fixed=["f"])
        for parameters in client.steps():
            time.sleep(0.005)
            client.push({"w": 0.1 * parameters["w"]}, loss=float((parameters["w"] ** 2).mean()))


if __name__ == "__main__":
    multiprocessing.set_start_method("fork")
    if sys.argv[1:2] == ["--dense-worker"]:
        dense_worker(*sys.argv[2:4])
        sys.exit(0)
    sys.exit(main())
