"""python3 bench_test.py: programs that fail or do not end, and what is written down of them."""

import contextlib
import io
import json
import pathlib
import sys
import tempfile
import unittest

from bench import Bench, last_line, run_sections, training_overhead


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
