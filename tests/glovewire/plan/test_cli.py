"""`glovewire plan`: it says what it is doing while it works, and gives sizes in units that fit them."""

from click.testing import CliRunner

from glovewire.plan.cli import plan


def test_it_says_what_takes_time_and_speaks_of_gigabytes() -> None:
    words = (
        "--entries",
        "4e8",
        "--words",
        "120000",
        "--partitions",
        "30",
        "--kernel-rate",
        "2e7",
        "--servers",
        "1",
        "--local-epochs",
        "1",
    )
    result = CliRunner().invoke(plan, words)
    assert result.exit_code == 0, result.output
    assert "simulating an epoch of 30 strips with different numbers of servers ..." in result.stderr.splitlines()
    assert "simulating" not in result.stdout
    line = next(line for line in result.stdout.splitlines() if "pulls" in line)
    assert line.count(" GB ") == 2, line
    assert " MB" not in line
