"""What cannot work is refused: one clear line on stderr, exit 1 or 2, no traceback, nothing half-written."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from fake_server import Heard, fake_server
from handmade import random_dataset
from processes import FREE, Flow

from glovewire.cli.main import program
from glovewire.common.errors import UnknownSession
from glovewire.common.protocol.messages import Message, Refused

LONG = 100_000


@pytest.fixture(scope="module")
def flow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flow]:
    folder = tmp_path_factory.mktemp("refusals")
    random_dataset(folder / "data", size=40)
    random_dataset(folder / "other", size=30)
    for name in ("truncated", "altered", "without"):
        shutil.copytree(folder / "data", folder / name)
    with (folder / "truncated" / "entries.npy").open("r+b") as stream:
        stream.truncate(1000)
    with (folder / "altered" / "entries.npy").open("r+b") as stream:
        stream.seek(-3, os.SEEK_END)
        stream.write(b"\0\1\2")
    (folder / "without" / "tiles.npy").unlink()
    (folder / "file").write_text("in the way\n")
    with Flow(folder) as flow:
        yield flow


@pytest.fixture(autouse=True)
def _nothing_is_written(flow: Flow) -> Iterator[None]:
    before = {path for path in flow.folder.rglob("*") if not path.name.startswith(".said-")}
    yield
    assert {path for path in flow.folder.rglob("*") if not path.name.startswith(".said-")} == before


@pytest.mark.parametrize(
    ("data", "parts"),
    [
        ("truncated", ["entries.npy has 1000 bytes instead of"]),
        ("altered", ["entries.npy does not match its checksum"]),
        ("without", ["tiles.npy is missing"]),
        ("nowhere", ["nowhere does not exist"]),
        ("file", ["file is a file; a folder made by glovewire is needed"]),
        (".", ["has no manifest.json"]),
    ],
)
def test_a_dataset_that_is_not_whole(flow: Flow, data: str, parts: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(flow.folder)
    refused(["train", data, "--out", "run"], parts, status=1)


def test_a_server_and_a_worker_verify_their_dataset(flow: Flow) -> None:
    server = flow.start("server", "altered", "--out", "run", "--bind", FREE, "--publish", FREE)
    worker = flow.start("worker", "altered", "--server", "tcp://127.0.0.1:9")
    for command in (server, worker):
        command.fails("entries.npy does not match its checksum")


NAN = ["--lr", "nan"]
WRONG = {
    "a rate that is no number": (["train", "data", "--out", "run", *NAN], ["learning", "nan"]),
    "every problem at once": (["train", "data", "--out", "run", "--dim", "0", "--epochs", "0"], ["dim", "epochs"]),
    "no workers": (["train", "data", "--out", "run", "--workers", "0"], ["workers must be between 1 and 256, not 0"]),
    "no servers": (["train", "data", "--out", "run", "--servers", "0"], ["servers must be between 1 and 256, not 0"]),
    "shards of no server": (["train", "data", "--out", "run", "--store", "shared", "--servers", "2"], ["servers"]),
    "a shard too many": (["server", "data", "--out", "run", "--shard", "3/2"], ["shard", "3/2"]),
    "a shard that is none": (["server", "data", "--out", "run", "--shard", "one"], ["shard must look like 0/1"]),
    "a shard of 5,000 digits": (
        ["server", "data", "--out", "run", "--shard", f"0/{'1' * 5000}"],
        ["shard must look like 0/1"],
    ),
    "a server for NaN": (["server", "data", "--out", "run", *NAN], ["learning", "nan"]),
    "open to other machines": (["server", "data", "--out", "run", "--bind", "tcp://0.0.0.0:0"], ["--insecure"]),
    "open in another way": (["server", "data", "--out", "run", "--publish", "tcp://*:0"], ["--insecure"]),
    "a bad address": (["server", "data", "--out", "run", "--bind", "5555"], ["'5555' is not an address: write tcp://"]),
    "a bad port": (["worker", "data", "--server", "tcp://127.0.0.1:99999"], ["is not an address: write tcp://"]),
    "a store that is not a URL": (
        ["server", "data", "--out", "run", "--resume", "--checkpoints", "elsewhere"],
        ["'elsewhere' is not a URL: write s3://"],
    ),
    "a question to nobody": (["stats", "localhost:5555"], ["is not an address: write tcp://"]),
    "a wait without an end": (
        ["stats", "tcp://127.0.0.1:9", "--timeout", "nan"],
        ["timeout must be a positive number", "nan"],
    ),
    "a worker that waits for no time": (["worker", "data", "--timeout", "0"], ["timeout must be a positive number"]),
    **{
        f"a worker's name that {why}": (
            ["worker", "data", "--server", "tcp://127.0.0.1:9", "--name", name],
            ["a worker's name must be 1 to 64 printable characters"],
        )
        for why, name in {"is too long": 65 * "a", "is no text": "\udcff", "moves the cursor": "\x1b[2J"}.items()
    },
    "an unknown command": (["trian", "data"], ["'trian'", "did you mean 'train'?"]),
    "an unknown option": (["train", "data", "--epoch", "3"], ["'--epoch'", "Did you mean", "'--epochs'"]),
    "no output": (["train", "data"], ["missing option '--out'"]),
    "no dataset": (["train"], ["missing argument 'DATASET'", "glovewire train --help"]),
    **{
        f"a dense model for {' '.join(command)}": (
            [*command, "data", "--out", "run", "--objective", "tensors"],
            ["the objective tensors has no DATASET", "`glovewire server --objective tensors`"],
        )
        for command in (["train"], ["study", "speedup"])
    },
    "word vectors as a dense model": (
        ["study", "staleness", "data", "--out", "run", "--objective", "tensors"],
        ["GloVe on data", "cannot be trained with --objective tensors"],
    ),
    "a word for a number": (["train", "data", "--out", "run", "--dim", "many"], ["'--dim'", "'many'"]),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_usage(flow: Flow, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    words, parts = WRONG[case]
    monkeypatch.chdir(flow.folder)
    refused(words, parts)


def refused(words: list[str], parts: list[str], status: int = 2) -> None:
    """The program, in this process, says what is wrong in one line and ends with `status`."""
    result = CliRunner().invoke(program, words, prog_name="glovewire")
    assert (result.exit_code, result.stdout) == (status, ""), result.output
    assert len(result.stderr.splitlines()) == 1, result.stderr
    assert result.stderr.startswith("error: ")
    for part in parts:
        assert part in result.stderr


FILES = {
    "an unknown option": ("[train]\nepoch = 3\n", ["unknown option 'epoch' in [train]", "did you mean 'epochs'?"]),
    "an unknown command": ("[tarin]\nepochs = 3\n", ["[tarin]", "did you mean 'train'?"]),
    "an option outside a table": ("epochs = 3\n", ["'epochs' stands outside a table", "[train]"]),
    "no table": ("train = 3\n", ["[train] must be a table"]),
    "malformed": ("[train\nepochs = 3\n", ["is not valid TOML", "line 1"]),
    "a list for a number": ("[train]\ndim = [3]\n", ["'dim' in [train] must be a whole number, not [3]"]),
    "half a number": ("[train]\ndim = 3.5\n", ["'dim' in [train] must be a whole number, not 3.5"]),
    "a number for a switch": ("[train]\ntied = 1\n", ["'tied' in [train] must be true or false"]),
    "not a number": ("[train]\nlr = nan\n", ["learning", "nan"]),
    "two names for one": ("[train]\nlr = 1.0\nlearning-rate = 1.0\n", ["given twice"]),
    "a choice that is none": ('[train]\nschedule = "bloks"\n', ["'bloks' is not one of"]),
}


@pytest.mark.parametrize("case", FILES)
def test_wrong_entries_of_a_file(flow: Flow, case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text, parts = FILES[case]
    (tmp_path / "run.toml").write_text(text)
    monkeypatch.chdir(flow.folder)
    refused(["train", "data", "--out", "run", "--config", str(tmp_path / "run.toml")], parts)


def test_a_file_that_is_not_there(flow: Flow) -> None:
    flow.start("train", "data", "--out", "run", "--config", "no.toml").fails("no.toml cannot be read", status=2)


def test_a_wrong_environment_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOVEWIRE_TRAIN_DIM", "x")
    refused(["train", "data", "--out", "run"], ["GLOVEWIRE_TRAIN_DIM", "'x'"])


def test_a_launcher_that_is_not_installed(flow: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glovewire.common.errors.find_spec", lambda _: None)
    monkeypatch.chdir(flow.folder)
    refused(["train", "data", "--out", "run", "--launcher", "ray"], ["needs ray: pip install"], status=1)


OUTPUTS = ["file", "data", "file/run", "/proc/run"]


@pytest.mark.parametrize("out", OUTPUTS)
def test_a_run_that_exists_or_cannot_be_written(flow: Flow, out: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(flow.folder)
    refused(["train", "data", "--out", out], [f"run {out} "], status=1)


def test_a_server_whose_run_exists_or_cannot_be_written(flow: Flow) -> None:
    started = {out: flow.start("server", "data", "--out", out, "--bind", FREE, "--publish", FREE) for out in OUTPUTS}
    for out, server in started.items():
        server.fails(f"run {out} ")


def test_a_port_in_use(flow: Flow) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        for bind, publish in ((address, FREE), (FREE, address)):
            server = flow.start("server", "data", "--out", "run", "--bind", bind, "--publish", publish)
            server.fails(f"cannot listen on {address}: the port is in use")


def test_a_server_that_is_not_there(flow: Flow) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        address = f"tcp://127.0.0.1:{nobody.getsockname()[1]}"
        started = [flow.start("worker", "data", "--server", address, "--timeout", 0.3)]
        started += [
            flow.start(word, address, "--timeout", 0.3) for word in ("stats", "finish", "checkpoint", "monitor")
        ]
        for command in started:
            command.fails(address)


@pytest.mark.parametrize("free", [0, 4096, 8192, 16384])
def test_a_disk_that_is_full(flow: Flow, tmp_path: Path, free: int) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k,mode=700", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("needs the right to mount a tiny file system")
    try:
        (disk / "filling").write_bytes(bytes((64 << 10) - free))
        flow.train(str(disk / "full"), "--workers", 1, "--epochs", 3).fails("no space left on the disk")
        assert free or not (disk / "full").exists()
        assert not (disk / "full" / "vectors.npy").exists()
        assert not list(disk.rglob("*.partial"))
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_cache_that_cannot_be_used_is_told_before_a_server_is_waited_for(flow: Flow) -> None:
    (flow.folder / "file").write_text("")
    how = ["--server", "tcp://127.0.0.1:9", "--cache", "file", "--timeout", 600]
    flow.start("worker", *how).fails("cache file is a file: name another place or remove it")


def test_a_worker_that_comes_back_when_nobody_is_there_says_that_it_was_in_a_run(flow: Flow) -> None:
    """It is told that it was taken for lost; to its second hello nobody answers."""
    gone = Refused(UnknownSession.code, "you were taken for lost")
    hellos: list[int] = []

    def lost(heard: Heard) -> Message | None:
        hellos.append(heard.number)
        return gone if len(hellos) == 1 else None

    with fake_server(lost) as server:
        flow.worker(server.address, timeout=1).fails(
            "the run has not answered for 1 s", f"no server answers at {server.address}"
        )
    assert len(hellos) > 1
