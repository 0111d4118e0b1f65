#!/usr/bin/env python3
"""What bench/restart_stages.py reads out of logs: a group's stages count from its last rank, an earlier start and another kill do not count.

usage: restart_stages_test.py
"""
import datetime
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench"))
from restart_stages import stage_table, stages_after  # noqa: E402

LOG = """\
2026-01-01 10:00:00.000 info rank 0: started: process 0.100 s, ready 0.200 s
2026-01-01 10:00:01.000 warning device lost: rank 1: the device process ended with signal 9 (Killed)
2026-01-01 10:00:01.700 info rank 1: started: process 0.010 s, weights 0.300 s, ready 0.600 s
2026-01-01 10:00:01.800 warning start failed: rank 0: the device process ended with signal 9 (Killed) before it was ready
no line with a time
2026-01-01 10:00:02.500 info rank 1: started: process 0.020 s, weights 0.100 s, all there 0.350 s, ready 0.500 s
2026-01-01 10:00:02.510 info rank 0: started: process 0.010 s, all there 0.380 s, weights 0.300 s, ready 0.500 s
2026-01-01 10:00:02.520 warning up again, with its KV cache
2026-01-01 10:00:09.000 warning device lost: rank 0: the device process ended with signal 9 (Killed)
"""


def at(text):
    return datetime.datetime.strptime("2026-01-01 " + text, "%Y-%m-%d %H:%M:%S.%f").timestamp()


class RestartStages(unittest.TestCase):
    def test_each_stage_counts_from_its_last_rank_of_the_last_start(self):
        expected = {"noticed": 0.25, "started": 1.26, "process": 1.27, "weights": 1.56, "all there": 1.64, "ready": 1.76, "up": 1.77}
        found = stages_after(LOG, at("10:00:00.750"))
        self.assertEqual({what: round(seconds, 6) for what, seconds in found.items()}, expected)

    def test_a_loss_that_the_log_knows_to_the_millisecond_only_is_found(self):
        self.assertIn("up", stages_after(LOG, at("10:00:01.000900")))

    def test_nothing_starts_before_the_loss_was_noticed_however_coarse_a_process_knows_its_beginning(self):
        log = LOG.replace("weights 0.100 s, all there 0.350 s, ready 0.500 s", "ready 1.505 s").replace("all there 0.380 s, weights 0.300 s, ready 0.500 s", "ready 1.515 s")
        found = stages_after(log, at("10:00:00.750"))
        self.assertEqual([round(found[what], 6) for what in ("noticed", "started", "process")], [0.25, 0.25, 0.265])

    def test_a_group_that_is_not_up_yet_was_noticed_and_no_more(self):
        self.assertEqual(stages_after(LOG, at("10:00:08.500")), {"noticed": 0.5})

    def test_nothing_was_lost(self):
        self.assertEqual(stages_after(LOG, at("10:00:09.500")), {})

    def test_the_table_is_in_the_order_of_time(self):
        lines = stage_table([{"up": 2.0, "noticed": 0.25, "token": 2.5}, {"noticed": 0.75, "up": 3.0}])
        self.assertEqual([line.split()[0] for line in lines], ["s", "noticed", "up", "token"])
        self.assertEqual(lines[2].split(), ["up", "2.000", "3.000", "2.500", "2.000"])
        self.assertEqual(lines[3].split(), ["token", "2.500", "-", "2.500", "0.000"])


if __name__ == "__main__":
    unittest.main()
