"""Remove one protection at a time, and see after how many seeds the simulation finds it: `make mutants`.

A protection is a text of the program, and another text replaces it. Each mutant is a copy of the tree. A mutant that
400 seeds do not find gets the seeds that have failed once, see found.py, and then up to 2,000 in all. A test has to
find what no seed finds. This folder and tests/support have to be on the PYTHONPATH.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from apart_mutants import APART, STORED
from fixed import DISK, PUT_BACK
from found import FOUND
from scenario import DRAW

ROOT = Path(__file__).parents[2]
COPIED = ("common", "glovewire", "monitor", "preprocess", "server", "tests", "worker")
SEEDS = int(os.environ.get("SEEDS", "2000"))
FEW_FIRST = (40, 400)
"""Numbers of seeds that all mutants get first: most need no more, so a mutant that is hard to find delays no other."""
ONCE_FAILED = -1
"""Instead of a number of seeds: the seeds that have failed once."""


class Mutant(NamedTuple):
    """A protection to remove: what it is, and where."""

    what: str
    path: str
    old: str
    new: str


MUTANTS = (
    Mutant("a pull waits for its version", "server/consistency/blocks.py",
           "return bool(self.rounds[partition] >= pull.version)", "return True"),
    Mutant("a push from an earlier round is a repeat", "server/consistency/blocks.py",
           "if push.version < current:", "if False:"),
    Mutant("automatic checkpoints come after whole sweeps", "server/service.py",
           '    sweeps = -(-config.checkpoint_every // options.local_epochs)\n'
           '    every = sweeps * (layout.partitions if options.schedule == "blocks" else batches)\n',
           '    per_epoch = layout.partitions if options.schedule == "blocks" else batches\n'
           '    every = -(-config.checkpoint_every * per_epoch // options.local_epochs)\n'),
    Mutant("entries before a checkpoint are those of all local epochs", "server/checkpoints/initial_state.py",
           "    return entries * options.local_epochs\n", "    return entries\n"),
    Mutant("a push counts once", "server/core/core.py",
           'if is_new("push", push.sequence, session.pushed):', "if True:"),
    Mutant("a push before which one is missing is refused", "server/sessions.py",
           "    if sequence > last + 1:", "    if False:"),
    Mutant("a report counts once", "server/core/core.py",
           'if is_new("report", report.sequence, session.reported):', "if True:"),
    Mutant("before-images undo what a lost worker has added", "server/core/pull_push.py",
           "            self._undo_partial_visit(partition, push)\n", ""),
    Mutant("before-images are kept until all rounds are complete", "server/core/pull_push.py",
           "        self.undo_log.drop_before(low_water)\n", "        self.undo_log.drop_before(low_water + 1)\n"),
    Mutant("of rows pushed twice in a round the first image counts", "server/core/undo_log.py",
           "        fresh = ~np.isin(numbers, np.concatenate(earlier))", "        fresh = np.ones(len(numbers), bool)"),
    Mutant("a silent worker is lost", "server/sessions.py",
           "lost = [s for s in sessions if now - s.seen > lease_s]", "lost = []"),
    Mutant("strips of a lost worker go to others", "server/core/core.py",
           'rounds = state.progress.release(session.name, lost=kind == "lost")', "rounds = []"),
    Mutant("a push under an ended lease is refused", "server/leases/pushes.py",
           "if push.lease < newest or push.version < self.low_water:", "if push.version < self.low_water:"),
    Mutant("under a lease each row is pushed once, in order", "server/leases/pushes.py",
           "if push.first != start:", "if False:"),
    Mutant("a push needs the token of its lease", "server/leases/pushes.py",
           "if not granted or partition", "if partition"),
    Mutant("a request needs a key with the right role", "server/core/rights.py",
           "if client.role not in right.roles:", "if False:"),
    Mutant("rows kept of pulls are bounded", "server/consistency/staleness.py",
           "while len(kept) > KEPT_PULLS or", "while"),
    Mutant("a report needs the receipts of all pushes", "server/leases/progress.py",
           "if report.receipt ^ expected:", "if False:"),
    Mutant("shards notice a newer generation", "server/checkpoints/generations.py",
           "if found is None or found.number <= generation.number:", "if True:"),
    Mutant("a shard that died in a generation begins the next", "server/checkpoints/generations.py",
           "if not entered and _has_beginning(config, current):", "if _has_beginning(config, current):"),
    Mutant("a checkpoint is complete when every shard has its part", "server/checkpoints/files.py",
           'if not artifacts.is_there(f"{folder}/{part_name(label, shard, shards)}")]', "if False]"),
    Mutant("a cut copies a partition when it reaches its round", "server/checkpoints/cuts.py",
           "if partition in self._missing and self._blocks.rounds[partition] >= self.round:",
           "if partition in self._missing:"),
    Mutant("workers leave a complete run when its rows are saved", "server/core/core.py",
           "if end.ending not in LASTING or self._rows_saved:", "if True:"),
    Mutant("shards end when all rows are saved", "server/leaving.py",
           "if self.config.shard == 0 or self.end.ending in LASTING:", "if self.config.shard == 0:"),
    Mutant("processes that were asked to end wait as those of a complete run", "common/endings.py",
           "LASTING = (Ending.COMPLETE, Ending.ASKED)", "LASTING = (Ending.COMPLETE,)"),
    Mutant("a dense model without values leaves nothing to wait for", "server/checkpoints/generations.py",
           "if not (mark.left or mark.is_empty)]", "if not mark.left]"),
    Mutant("a monitor requests missing samples from the history", "monitor/stream/reassembly.py",
           "            if size and self._history:", "            if False:"),
    Mutant("a monitor counts missing samples", "monitor/stream/reassembly.py",
           "lost = 0 if self._gap.late else max(0, self._gap.size - self._gap.found)", "lost = 0"),
    Mutant("a monitor drops samples that come twice", "monitor/stream/reassembly.py",
           "        if is_held or (self._last is not None and sample.number <= self._last):\n            return\n", ""),
    Mutant("a monitor drops late samples of an earlier run", "monitor/stream/reassembly.py",
           "        if sample.run in self._former_runs:\n            return\n", ""),
    Mutant("a dense model's gradient is dropped after a restart", "worker/dense/client.py",
           "            if self._is_of(session):\n", "            if True:\n"),
    Mutant("no update is made after the last step", "server/core/pull_push.py",
           "if self._tensors is not None and 0 < self._most_updates <= self._consistency.version(0):", "if False:"),
    Mutant("no checkpoint is cut at a round that rows are past",
           "server/checkpoints/cuts.py", "        if blocks.is_past(round):\n", "        if False:\n"),
    Mutant("a restarted shard does not know a goodbye", "server/core/core.py",
           "if end.ending in LASTING and peer not in self._left:", "if False:"),
    Mutant("no generation follows when the workers have left", "server/leaving.py",
           "generations.record_end(config, self.generation, self.end.ending)\n                continue\n", "return\n"),
    Mutant("workers leave a single shard when its final checkpoint is written", "server/leaving.py",
           "            daemon.write_now(last)\n        else:",
           "            daemon.farewell()\n            daemon.write_now(last)\n        else:"),
    Mutant("a worker that comes late hears that the run is over when its rows are saved", "server/core/core.py",
           "if hello.role != \"worker\" or not self._is_unsaved:", "if True:"),
    Mutant("a worker that waits to be let go is not told to join again", "server/core/core.py",
           "        if peer not in self._left:  # a worker", "        if True:  # a worker"),
    Mutant("a shard that is a generation behind does not end a worker that joins", "common/client/core.py",
           "if isinstance(error, errors.RunOver) and not self.joined and self._is_welcome_elsewhere(channel):",
           "if False:"),
    Mutant("a refusal as out of order is answered at once only if an earlier request waits", "common/client/core.py",
           "            if channel.has_earlier(request):\n", "            if True:\n"),
    Mutant("no worker is more than S steps ahead (ssp)", "server/consistency/minibatch.py",
           "return self._steps[worker] - min(self._steps.values()) <= self._parameter", "return True"),
    Mutant("a synchronous update has a gradient of every worker", "server/consistency/minibatch.py",
           "if self.missing or len(self._steps.keys() - self._pushed()) > self._parameter:", "if self.missing:"),
    Mutant("a gradient for a past step is dropped (sync)", "server/consistency/minibatch.py",
           "return push.version < self.updates", "return False"),
    Mutant("a strip has one holder", "server/leases/schedule.py",
           "        rounds = [self.held.pop(lease)[0] for lease in leases]\n",
           "        rounds = [self.held[lease][0] for lease in leases]\n"),
    Mutant("a repeated request for a lease gets the same one", "server/core/core.py",
           "if lease.ticket == session.ticket and session.grant is not None:", "if False:"),
    Mutant("waiting requests of a lost session are dropped", "server/core/core.py",
           "        state.waiting.drop(session)\n        rounds", "        rounds"),
    Mutant("requests are retransmitted", "common/client/channel.py",
           "            if request.due_at(self.round_trip_s) < now:", "            if request.sent == UNSENT:"),
    Mutant("nothing overtakes a request that is held back", "common/client/channel.py",
           "        must_wait = self._holds_back", "        must_wait = False"),
    Mutant("an unknown session is opened again", "common/client/core.py",
           "if refused == errors.UnknownSession.code and self._role and not isinstance(request.message, m.Hello):",
           "if False:"),
    Mutant("a refusal as out of order is no answer", "common/client/core.py",
           "if refused == errors.OutOfOrder.code:", "if False:"),
    Mutant("a welcome of another run ends the session", "common/client/core.py",
           "(welcome.run, welcome.worker) != (before.run, before.worker):", "False:"),
    Mutant("pending requests go to a session that was opened again", "common/client/core.py",
           "        elif before is not None:\n            channel.mark_unsent()\n",
           "        elif before is not None:\n"),
    Mutant("a worker that has left shard 0 joins all shards again", "common/client/core.py",
           "if self.joined and self.channels[0].welcome is None:", "if False:"),
    Mutant("shards of two generations are greeted again", "common/client/core.py",
           "if not self.strangers or self.not_ready is not None:", "if False:"),
    Mutant("waiting workers send heartbeats", "common/client/core.py",
           "if self._heartbeat_at(channel) < now:", "if False:"),
    Mutant("a heartbeat without a reply is sent again each second", "common/client/core.py",
           "if not channel.repeat(m.Heartbeat()):", "if not channel.awaits(m.Heartbeat):"),
    Mutant("a worker that joins one shard anew says hello where the run is over", "common/client/core.py",
           "waits = not self.joined or any(each.awaits(m.Hello) for each in self.channels)", "waits = not self.joined"),
    Mutant("a worker whose session is over joins again", "worker/service.py",
           "except (errors.LeaseLost, errors.UnknownSession) as error:", "except errors.LeaseLost as error:"),
    Mutant("a worker that holds up the others is overdue", "server/core/core.py",
           "        for name in overdue:\n", "        for name in ():\n"),
    Mutant("a worker whose gradient others wait for is overdue", "server/core/core.py",
           "state.progress.overdue(now, self._waited_for)", "state.progress.overdue(now, dict)"),
    Mutant("a run that is over does not wait for a worker that waits for another shard", "server/core/core.py",
           "if waiting is not None and waiting.incarnation == hello.incarnation:", "if False:"),
    Mutant("a shard whose disk is full tells the others later that the run is over", "server/service.py",
           "                if problem != str(error):\n",
           "                announced = True\n                if problem != str(error):\n"),
    Mutant("a shard that ends tells the others once its disk has room again", "server/leaving.py",
           "            self.tell()\n", ""),
    Mutant("a worker whose last hello was late hears that the run is over", "server/core/core.py",
           "if isinstance(error, UnknownSession) and peer in self._left and self._state.over is not None:",
           "if False:"),
    Mutant("a worker still waiting for a shard when the run is over greets the others again", "common/client/core.py",
           "if isinstance(reply, m.HeartbeatAck) and reply.stop and", "if False and"),
    Mutant("a shard whose rows are trained does not wait for workers when the run ends", "server/core/core.py",
           "is_drained = state.cuts.is_trained if", "is_drained = False if"),
    Mutant("a client that has joined does not say hello again", "common/client/core.py",
           "            if self.joined:\n                for each", "            if False:\n                for each"),
    Mutant("a worker that is stuck leases another strip", "worker/training/strips.py",
           "or now - self._moved_at <= STUCK_S:", "or True:"),
    *map(Mutant._make, (*DISK, *PUT_BACK, *APART, *STORED)),
)  # fmt: skip

TESTS = {
    "automatic checkpoints come after whole sweeps":
        "server/checkpoints/test_cuts.py::test_automatic_checkpoints_come_after_whole_sweeps",
    "a shard that ends tells the others once its disk has room again":
        "server/test_leaving.py::test_the_other_shard_is_told_until_it_has_finished",
    "a worker whose last hello was late hears that the run is over":
        "server/core/test_core_work.py::test_a_worker_that_has_joined_after_all_hears_that_the_run_is_over",
    "a worker still waiting for a shard when the run is over greets the others again":
        "common/client/test_core.py::"
        "test_who_still_waits_for_a_shard_when_the_run_is_over_says_hello_again_to_the_others",
    "a shard whose rows are trained does not wait for workers when the run ends":
        "server/core/test_core_liars.py::"
        "test_a_shard_that_hears_of_the_end_waits_for_its_workers_unless_its_rows_are_trained",
    "parts of different generations are not combined":
        "server/checkpoints/test_generations.py::"
        "test_no_shard_enters_a_generation_whose_beginning_was_written_anew_meanwhile",
    "a shard that lost its disk gets back its mark":
        "server/test_peers.py::test_on_an_empty_disk_a_shard_gets_back_its_own_mark",
    "a monitor drops late samples of an earlier run":
        "monitor/stream/test_reassembly.py::test_a_late_sample_of_the_life_before_is_none_of_this_one",
    "a push under an ended lease is refused":
        "server/core/test_core_lying.py::test_a_lease_that_has_ended_pushes_no_more",
    "a dense model without values leaves nothing to wait for":
        "server/checkpoints/test_generations.py::test_of_a_dense_model_without_values_there_is_nothing_to_wait_for",
    "no checkpoint is cut at a round that rows are past":
        "server/checkpoints/test_cuts.py::test_a_cut_is_the_table_after_exactly_so_many_rounds",
    "a shard that is a generation behind does not end a worker that joins":
        "common/client/test_core.py::test_a_run_that_is_over_for_one_shard_only_goes_on_once_that_one_has_noticed",
    "a gradient for a past step is dropped (sync)":
        "server/core/test_tensors.py::test_a_gradient_that_is_too_late_or_refused_hears_that_whatever_rows_it_asks_for",
    "a worker that joins one shard anew says hello where the run is over":
        "common/client/test_core.py::"
        "test_who_joins_a_shard_anew_when_the_run_is_over_says_hello_to_the_others[True]",
    "a worker that has left shard 0 joins all shards again":
        "common/client/test_core.py::test_who_leaves_and_is_not_known_any_more_has_to_join_again",
    "no shard joins a generation whose first checkpoint is damaged":
        "server/checkpoints/test_generations.py::test_a_generation_whose_beginning_is_gone_is_followed_by_another",
    "a shard whose disk is full tells the others later that the run is over":
        "simulation/test_simulation.py::test_what_was_found_once_stays_mended[11874-4]",
    "a refusal as out of order is answered at once only if an earlier request waits":
        "common/client/test_core.py::test_what_is_refused_again_and_again_is_not_sent_again_at_once",
    "pending requests go to a session that was opened again":
        "common/client/test_core.py::test_a_server_that_does_not_know_us_hears_hello_again_and_what_was_pending",
    "checkpoints go on after one was skipped":
        "server/checkpoints/test_cuts.py::test_after_a_disk_was_too_slow_checkpoints_are_taken_again",
    "metrics that cannot be removed are reported":
        "server/checkpoints/test_generations.py::test_a_record_that_cannot_be_removed_is_one_clear_error",
    "a checkpoint that was pruned is not reported as on disk":
        "server/checkpoints/test_cuts.py::test_what_is_no_longer_on_disk_is_not_said_to_be_there",
    "a lost pull is not taken for a slow one":
        "common/client/test_channel.py::test_a_loss_does_not_count_as_slowness_and_a_second_reply_shows_that_nothing_was_lost",
    "parts are copied before the generation that begins from them":
        "server/checkpoints/test_copies.py::test_a_generation_is_not_copied_before_the_parts_that_it_begins_from",
    "a part that its owner wrote again is copied again":
        "server/checkpoints/test_copies.py::test_a_part_that_its_owner_has_written_again_is_copied_again",
    "shard 0 alone begins generations":
        "server/test_peers.py::test_shard_0_begins_the_generations_of_all",
    "two generations of one number become one":
        "server/checkpoints/test_copies.py::test_two_beginnings_of_a_run_become_one",
    "shard 0 begins no generation before it has looked":
        "server/checkpoints/test_copies.py::test_shard_0_begins_none_before_it_knows_what_the_others_have",
    "a shard that starts looks into the folders of all others":
        "server/test_peers.py::test_a_shard_that_starts_begins_nothing_before_all_others_have_answered",
    "on an empty disk a shard waits for all others":
        "server/test_peers.py::test_on_an_empty_disk_a_shard_waits_for_all_others",
    "a shard on an empty disk waits until it knows the others' generation":
        "server/test_peers.py::test_on_an_empty_disk_a_shard_waits_until_it_knows_the_others_generation",
    "while one does not answer, all are asked again":
        "server/test_peers.py::test_while_one_does_not_answer_all_are_asked_again",
    "it knows the same generation of that number":
        "server/test_peers.py::test_a_shard_serves_when_another_knows_its_mark_in_the_same_generation",
    "a part that could not be copied is asked for again before what follows":
        "server/checkpoints/test_copies.py::"
        "test_a_part_that_could_not_be_copied_is_asked_for_again_before_what_follows_is_taken",
    "an unreadable part does not count as removed":
        "server/checkpoints/test_copies.py::test_a_part_that_a_disk_does_not_read_is_not_taken_for_a_removed_one",
    "a checkpoint that a disk does not read is not passed over":
        "server/checkpoints/test_files.py::test_one_that_a_disk_does_not_read_is_not_passed_over",
    "copies are not forgotten because a disk was lost":
        "server/checkpoints/test_copies.py::test_nothing_is_removed_because_a_disk_was_lost[0]",
    "shard 0 records the end for another one when it has all final checkpoints itself":
        "server/checkpoints/test_copies.py::test_shard_0_records_the_end_for_another_one_when_it_has_all_final_checkpoints",
    "a shard whose disk got an older state back was in a generation before":
        "server/test_peers.py::test_a_shard_that_was_in_a_generation_before_an_old_backup_goes_on_in_the_next",
    "it also waits for those that look for what they have lost":
        "server/test_peers.py::test_a_shard_that_ends_waits_for_one_that_still_looks",
    "who holds a later strip gets the skipped one in any case":
        "server/leases/test_schedule.py::test_a_worker_that_waits_for_a_skipped_strip_gets_it_though_it_holds_enough",
    "the first strip is skipped for the next few only":
        "server/leases/test_schedule.py::test_a_strip_that_nobody_has_is_not_skipped",
    "who holds a later strip gets the skipped one before others":
        "server/leases/test_schedule.py::test_workers_in_turn_never_all_wait",
    "a stop waits for skipped strips":
        "server/leases/test_schedule.py::test_a_run_that_stops_trains_what_was_skipped",
    "a part that is written again meanwhile is not uploaded as one":
        "common/storage/test_stores.py::test_a_folder_that_is_replaced_meanwhile_is_not_uploaded_as_one",
    "a shard that finds its run over uploads what is left":
        "server/test_stored_checkpoints.py::test_a_shard_that_finds_its_run_over_uploads_what_is_left",
    "shards that share a folder bring a generation under names of their own":
        "server/test_stored_checkpoints.py::test_shards_bring_a_generation_to_a_shared_folder_at_the_same_time",
    "a part that is gone is compared as shard 0 counts":
        "server/test_stored_checkpoints.py::test_shard_0_counts_how_far_a_checkpoint_has_come",
    "the generation in the store is brought":
        "server/test_stored_checkpoints.py::test_parts_and_the_generation_are_brought_to_an_empty_disk",
    "what a shard has not brought from the store yet is not forgotten":
        "simulation/test_simulation.py::test_what_was_found_once_stays_mended[18538-8]",
    "the newest checkpoint is kept whatever a shard has counted":
        "server/checkpoints/test_files.py::test_the_last_one_is_kept_though_shard_0_alone_counts_the_entries",
    "a checkpoint with a part to be replaced does not count":
        "server/test_stored_checkpoints.py::test_a_checkpoint_of_which_a_part_is_to_be_replaced_keeps_no_other_from_being_needed",
    "a part is replaced while the store has another checkpoint":
        "server/test_stored_checkpoints.py::test_a_part_is_not_replaced_before_the_store_has_another_checkpoint",
}  # fmt: skip
"""Protections whose absence few seeds find, or none, each with a test in the folder `tests` that fails without it."""
EARLIER = {
    "a part that its owner wrote again is copied again": 11,
    "a push under an ended lease is refused": 8,
    "copies are not forgotten because a disk was lost": 8,
    "shard 0 records the end for another one when it has all final checkpoints itself": 8,
    "the newest checkpoint is kept whatever a shard has counted": 11,
}
"""Mutants that seeds of an earlier draw find, and seeds of the newest do not; see DRAW in scenario.py."""


def main() -> int:
    """Try each mutant whose name contains an argument (default: all); print a table; return 1 if one was not found."""
    left = [each for each in MUTANTS if not sys.argv[1:] or any(word in each.what for word in sys.argv[1:])]
    print("| protection | seeds | what failed |\n|---|---|---|", flush=True)
    with ThreadPoolExecutor(int(os.environ.get("JOBS", os.cpu_count() or 1))) as pool:
        rest = SEEDS - len(FOUND)
        for most in [*(few for few in FEW_FIRST if few < SEEDS), ONCE_FAILED, *[rest] * (rest > 0)]:
            tries, left = zip(left, pool.map(partial(tried, most=most), left), strict=True), []
            for mutant, (seeds, problem) in tries:
                if seeds:
                    print(f"| {mutant.what} | {seeds} | {problem} |", flush=True)
                else:
                    left.append(mutant)
    found = [(mutant, is_found_by_test(mutant)) for mutant in left]
    for mutant, is_found in found:
        test = TESTS[mutant.what].rpartition("::")[2] if is_found else ""
        print(f"| {mutant.what} | {'a test' if is_found else 'not found'} | {test} |", flush=True)
    return not all(is_found for _, is_found in found)


def tried(mutant: Mutant, most: int) -> tuple[str, str]:
    """Return how many seeds it took to find a mutant, "" if none of `most` did, and the problem of the last seed.

    With ONCE_FAILED, return the seed and its draw instead of a number.
    """
    kinds = {"--apart": APART, "--stored": STORED}
    which = [option for option, those in kinds.items() if mutant.what in {what for what, *_ in those}]
    draw = ["--draw", str(EARLIER[mutant.what])] if mutant.what in EARLIER else []
    choice = ["--found", "--seeds", str(len(FOUND))] if most == ONCE_FAILED else ["--seeds", str(most), *which, *draw]
    run = run_mutant(mutant, ["tests/simulation/simulate.py", "--until-failure", *choice])
    assert run.returncode in (0, 1), run.stderr
    if not run.returncode:
        return "", ""
    played, seed, of, problem = run.stdout.strip().split(" ", 3)
    earlier = f" of draw {of}" if int(of) != DRAW else ""
    failed_once = f"{seed} of draw {of}, which failed once"
    return failed_once if most == ONCE_FAILED else f"{int(played):,}{earlier}", problem[:90]


def is_found_by_test(mutant: Mutant) -> bool:
    """Return whether the test of a mutant fails with it; `make test` shows that it passes without."""
    if mutant.what not in TESTS:
        return False
    run = run_mutant(mutant, ["-m", "pytest", "-q", "-p", "no:cacheprovider", f"tests/{TESTS[mutant.what]}"])
    assert run.returncode in (0, 1), run.stdout
    return run.returncode == 1


def run_mutant(mutant: Mutant, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run Python with `arguments` in a copy of the tree without the protection."""
    with TemporaryDirectory() as name:
        for folder in COPIED:
            shutil.copytree(ROOT / folder, Path(name) / folder, symlinks=True)
        shutil.copy(ROOT / "pyproject.toml", name)
        path = Path(name) / mutant.path
        text = path.read_text(encoding="utf-8")
        assert text.count(mutant.old) == 1, f"{mutant.what}: {mutant.path} has {text.count(mutant.old)} such texts"
        path.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
        paths = [name, f"{name}/tests/simulation", f"{name}/tests/support"]
        return subprocess.run(
            [sys.executable, *arguments],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            capture_output=True,
            text=True,
            check=False,
            cwd=name,
        )


if __name__ == "__main__":
    sys.exit(main())
