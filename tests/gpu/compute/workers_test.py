"""python3 workers_test.py: workers that fail, hang or work, without a GPU."""

import pathlib
import sys
import tempfile
import textwrap
import unittest
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "common"))
import workers
from bench import Bench

# What workload.py does, as far as its log shows it.
STAND_IN = """
    import fcntl, os, sys, time
    kind, commands, log, lock = sys.argv[1], *(sys.argv[sys.argv.index(one) + 1]
                                               for one in ("--commands", "--log", "--lock"))
    log = open(log, "w", buffering=1)
    with open(lock, "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        log.write("loading\\n")
        if kind == "broken":
            sys.exit("first line\\nno such kernel")
        if kind == "stuck":
            time.sleep(60)
    log.write("ready unit_ms=1 submit_ms=0.5\\n")
    for _ in range(500):
        for line in open(commands).read().splitlines():
            words = line.split()
            while time.monotonic() < float(words[1]): time.sleep(0.001)
            if kind == "fragile":
                os.abort()
            if kind == "endless":
                time.sleep(60)
            for number in range(30):
                log.write(f"progress at={int((float(words[1]) + number / 100) * 1e9)} units={number}\\n")
            log.write("done\\n")
            time.sleep(60)
        time.sleep(0.01)
"""


class CrewTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        path = pathlib.Path(folder.name)
        (path / "stand_in.py").write_text(textwrap.dedent(STAND_IN))
        for name, value in (("WORKLOAD", path / "stand_in.py"), ("LOADING", 1)):
            changed = mock.patch.object(workers, name, value)
            changed.start()
            self.addCleanup(changed.stop)
        self.bench = Bench("workers-test", path, path / "out")
        self.addCleanup(self.bench.stop)
        self.crew = workers.Crew(self.bench, shared=False)

    def error_of(self, action, *arguments):
        with self.assertRaises(RuntimeError) as caught:
            action(*arguments)
        return str(caught.exception)

    def test_who_does_not_load_is_named_and_not_in_the_way(self):
        self.crew.load("stuck", "broken", "good")
        self.assertEqual(self.error_of(self.crew.get, "broken"),
                         "without nvshare: broken has ended with 1: no such kernel")
        self.assertRegex(self.error_of(self.crew.get, "stuck", "good"), ": stuck was not ready after . s")
        self.assertEqual(self.crew.get("good")[0].ready()["unit_ms"], 1)
        self.assertEqual([one.name for one in self.bench.running if one.process.poll() is None], ["good"])

    def test_what_a_host_took_is_a_part_of_all_processors_time(self):
        before = workers.processor_time("cpu  100 0 50 800 5 0 5 40 7 7\ncpu0 1 1 1 1\n")
        self.assertEqual(before, (40, 1000))
        self.assertEqual(workers.taken_away(before, (45, 2000)), 0.5)
        self.assertEqual(workers.taken_away(before, before), 0)

    def test_a_rate_is_of_what_was_done_after_it_settled(self):
        rates, _, (begin, end) = self.crew.run({"good": 100}, 0.2, 0.05)
        self.assertAlmostEqual(rates["good"], 100, places=3)
        self.assertAlmostEqual(end - begin, 0.2)

    def test_who_fails_at_work_is_named_and_started_again(self):
        self.assertRegex(self.error_of(self.crew.run, {"fragile": 100}, 0.1, 0),
                         "^without nvshare: fragile has ended with -6: it said nothing$")
        again, = self.crew.get("fragile")
        self.assertFalse(again.has_ended())
        again.go(0, 1, 0.1)
        self.assertRegex(self.error_of(self.crew.finish, [again], 5), "fragile has ended with -6")
        self.assertRegex(self.error_of(self.crew.get, "fragile"), "fragile has ended with -6")  # not a third time

    def test_who_does_not_end_is_stopped(self):
        worker, = self.crew.get("endless")
        worker.go(0, 1, 0.1)
        self.assertRegex(self.error_of(self.crew.finish, [worker], 0.1),
                         "endless did not end its work within 0.1 s")
        self.assertTrue(worker.has_ended())


if __name__ == "__main__":
    unittest.main()
