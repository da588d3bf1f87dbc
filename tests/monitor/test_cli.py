"""`glovewire monitor`: ends with the run, with the right status, whatever stands in the way; its files are there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner
from monitor_fakes import Publisher, loss, run_of, until, worker

from glovewire.common.protocol.messages import Event, Message
from glovewire.common.transport.sockets import Context
from glovewire.monitor.cli import monitor
from glovewire.monitor.history.records import Recorder, read_metrics

COMMAND = [sys.executable, "-c", "from glovewire.monitor.cli import monitor; monitor()"]


def start(*arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "MPLBACKEND": "Agg"}
    return subprocess.Popen(
        [*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )


def speak(process: subprocess.Popen[str], publisher: Publisher, log: Path, samples: list[Message]) -> None:
    """Publish until the monitor has logged something, then all of `samples`."""

    def again() -> None:
        assert process.poll() is None, process.communicate()
        publisher.publish(worker("w0"))

    until(lambda: log.exists() and log.stat().st_size > 0, "the monitor's first sample", again)
    for sample in samples:
        publisher.publish(sample)


def test_it_ends_with_the_run_and_leaves_log_and_plot(tmp_path: Path) -> None:
    log, picture = tmp_path / "log.jsonl", tmp_path / "loss.png"
    with Publisher() as publisher:
        process = start(publisher.address, "--log", str(log), "--plot", str(picture), "--json")
        speak(process, publisher, log, list(run_of(seconds=20)))
        out, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (0, "")
    told = json.loads(out.splitlines()[-1])
    assert told["finished"] is True
    assert told["lost_samples"] == 0
    assert told["entries"] == 54_000_000
    assert "event=finished" in out
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert len(read_metrics(log).overall.all_points()) == 100


def test_a_failed_run_is_one_line_and_exit_1(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    with Publisher() as publisher:
        process = start(publisher.address, "--log", str(log))
        speak(process, publisher, log, [loss(), Event(2.0, "failed", "shard 0", "disk full")])
        _, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (1, "error: the run failed: disk full\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_it_cleanly_with_its_files(tmp_path: Path, number: signal.Signals) -> None:
    log, picture = tmp_path / "log.jsonl", tmp_path / "loss.svg"
    with Publisher() as publisher:
        process = start(publisher.address, "--log", str(log), "--plot", str(picture))
        speak(process, publisher, log, [loss()])
        until(lambda: b'"entries_per_second"' in log.read_bytes() and b'"epoch"' in log.read_bytes(), "the loss")
        process.send_signal(number)
        _, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (0, "")
    assert picture.exists()


def test_a_silent_address_is_named_in_one_line(tmp_path: Path) -> None:
    with Context() as context:
        _, address = context.publisher("tcp://127.0.0.1:0")
        result = CliRunner().invoke(monitor, [address, "--timeout", "0.3"])
    assert result.exit_code == 1
    assert result.stderr.startswith(f"error: no sample from {address} within 0.3 s")
    assert result.stderr.count("no sample") == 1, "seen to fail: it was said twice"
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "give a run folder, or the publish address"),
        (["127.0.0.1:5556"], "write tcp://HOST:PORT"),
        (["tcp://127.0.0.1:1", "--plot", "loss.gif"], ".png or .svg"),
        (["tcp://127.0.0.1:1", "--replay", "run"], "either addresses or --replay"),
        (["--replay", "run", "--log", "x.jsonl"], "--log needs a running server"),
        (["tcp://127.0.0.1:1", "--linger", "5"], "--linger is an option of --web"),
        (["tcp://127.0.0.1:1", "--allow-host", "x"], "--allow-host is an option of --web"),
        *((["tcp://127.0.0.1:1", "--timeout", value], "positive") for value in ("0", "nan", "inf")),
    ],
)
def test_wrong_use_is_told_and_exits_with_2(arguments: list[str], says: str) -> None:
    result = CliRunner().invoke(monitor, arguments)
    assert result.exit_code == 2
    assert says in result.stderr


def test_what_cannot_be_written_is_told_before_waiting(tmp_path: Path) -> None:
    folder = tmp_path / "no"
    for option, path, error in (
        ("--log", folder / "log.jsonl", f"error: file {folder / 'log.jsonl'} cannot be written"),
        ("--plot", folder / "loss.png", f"error: {folder / 'loss.png'} cannot be written"),
    ):
        result = CliRunner().invoke(monitor, ["tcp://127.0.0.1:1", option, str(path)])
        assert result.exit_code == 1
        assert result.stderr.startswith(error)


def test_a_replay_is_printed(tmp_path: Path) -> None:
    with closing(Recorder(tmp_path / "metrics.jsonl")) as recorder:
        for sample in run_of(seconds=10):
            recorder.add(sample)
    result = CliRunner().invoke(monitor, ["--replay", str(tmp_path)])
    assert result.exit_code == 0
    assert tmp_path.name in result.stdout
    assert "bias-only loss 0.0750" in result.stdout
    missing = CliRunner().invoke(monitor, ["--replay", str(tmp_path / "nothing")])
    assert missing.exit_code == 1


def test_help_shows_defaults_and_environment_variables() -> None:
    text = " ".join(CliRunner().invoke(monitor, ["--help"]).stdout.split())
    for part in ("--web", "--tensorboard", "--prometheus", "GLOVEWIRE_MONITOR_", "default: 120"):
        assert part in text


def test_the_example_of_a_subscriber_runs(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    with Publisher() as publisher:
        process = subprocess.Popen(
            [sys.executable, "-u", str(root / "examples" / "subscriber.py"), publisher.address],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(root)},
        )
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        until(lambda: bool(process.stdout.read(1)), "its first line", lambda: publisher.publish(loss()))  # type: ignore[union-attr]
        os.set_blocking(process.stdout.fileno(), True)
        publisher.publish(loss(entries=12_345))
        publisher.publish(Event(1.0, "finished", "shard 0", ""))
        out, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    assert "12,345 entries  loss 0.5000" in out


def test_a_wait_of_nan_is_refused() -> None:
    refused = CliRunner().invoke(monitor, ["--replay", "no such run", "--web", "0", "--linger", "nan"])
    assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1), refused.output
    assert "linger must be a number of seconds" in refused.stderr
