"""python3 bench_test.py: programs that fail or do not end, and what is written down of them."""

import contextlib
import io
import json
import pathlib
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import unittest

from bench import Bench, last_line, run_sections, training_overhead


def is_running(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except OSError:
        return False


class BenchTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.out = pathlib.Path(folder.name) / "out"
        self.bench = Bench("bench-test", folder.name, self.out)

    def start(self, name, code):
        return self.bench.start(name, [sys.executable, "-c", code], self.bench.environment())

    def test_who_does_not_end_is_stopped_and_says_so(self):
        slow = self.start("slow", "import time; time.sleep(60)")
        quick = self.start("quick", "print('done')")
        quick.process.wait()
        codes, texts = self.bench.wait([slow, quick], 0.1)
        self.assertEqual(codes, {"slow": -9, "quick": 0})
        self.assertRegex(last_line(texts["slow"]), "^slow did not end and was stopped after . s$")
        self.assertEqual(last_line(texts["quick"]), "done")

    def test_however_it_ends_nothing_is_left_running(self):
        code = """
            import os, sys, time
            from bench import Bench
            bench = Bench("bench-test", "nowhere", sys.argv[1])
            started = [bench.start("one", ["sh", "-c", "sleep 60 & echo $!; wait"], bench.environment())
                       for _ in range(20)]
            while not all(one.text().endswith("\\n") for one in started):
                time.sleep(0.01)
            print(*(one.text().strip() for one in started), flush=True)
            time.sleep(60)
        """
        process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code), self.out], stdout=subprocess.PIPE,
                                   cwd=pathlib.Path(__file__).parent, text=True)
        pids = process.stdout.readline().split()
        end = time.monotonic() + 5
        while process.poll() is None and time.monotonic() < end:  # timeout(1) sends it twice, at any moment
            process.send_signal(signal.SIGTERM)
            time.sleep(0.0005)
        self.assertEqual((process.wait(0), len(pids)), (1, 20))
        process.stdout.close()
        self.assertEqual([pid for pid in pids if is_running(pid)], [])

    def test_results_are_apart_from_what_programs_said(self):
        self.bench.wait([self.start("quick", "print('done')")], 5)
        self.bench.note({"seen": 1})
        self.bench.note({"seen": 2})
        self.assertEqual([one.name for one in self.out.iterdir() if one.is_file()], ["bench-test-raw.jsonl"])
        self.assertEqual((self.out / "bench-test-raw.jsonl").read_text(), '{"seen": 1}\n{"seen": 2}\n')
        self.assertEqual((self.out / "logs" / "001-quick-alone.log").read_text(), "done\n")

    def test_a_training_that_fails_is_no_measurement(self):
        entry = training_overhead(self.bench, [sys.executable, "-c", "print('x'); exit(3)"],
                                  self.bench.environment())
        self.assertFalse(entry["ok"])
        self.assertEqual(entry["error"], "alone: step has ended with 3: x")

    def test_a_section_that_fails_does_not_lose_the_others(self):
        def fails():
            yield {"name": "before", "ok": True}
            raise KeyError("what")

        sections = {"first": (1, fails), "late": (10_000, fails), "last": (1, lambda: iter([{"name": "good"}]))}
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            self.assertEqual(run_sections(self.bench, "title", sections, []), 1)
        content = json.loads((self.out / "bench-test.json").read_text())
        self.assertEqual([one["name"] for one in content["results"]], ["before", "first", "late", "good"])
        self.assertEqual(content["results"][1]["error"], "KeyError: 'what'")
        self.assertIn("needs 10000 s", content["results"][2]["error"])
        self.assertEqual(set(content["sections_s"]), {"first", "last"})


if __name__ == "__main__":
    unittest.main()
