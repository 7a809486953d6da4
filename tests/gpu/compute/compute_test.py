"""python3 compute_test.py: what is written down when programs fail, without a GPU."""

import contextlib
import io
import json
import pathlib
import sys
import tempfile
import time
import unittest
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "common"))
import compute
from bench import Bench, run_sections
from table import table_of, write_table


class Works:
    """A crew whose workers are exact: 100 units a second of a whole GPU. `fails`: name or (name, percent)."""

    environment = {"NVSHARE_RUN_DIR": "/nowhere"}

    def __init__(self, *fails, slow=()):
        self.fails = fails
        self.slow = slow  # runs that are disturbed
        self.runs = 0
        self.workers = {}

    def load(self, *names):
        for name in names:
            self.workers[name] = mock.Mock(**{"ready.return_value": {"unit_ms": 10.0, "submit_ms": 9.0}})

    def get(self, *names):
        self.load(*names)

    def run(self, limits, seconds, settle, steady=False):
        self.runs += 1
        for name, cores in limits.items():
            if name in self.fails or (name, cores) in self.fails or self.runs in self.fails:
                raise RuntimeError(f"{name} has ended with 1:\nno | kernel")
        part = 0.9 if self.runs in self.slow else 1.0
        return {name: part * cores for name, cores in limits.items()}, {}, (0, 1)


class ComputeTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.out = pathlib.Path(folder.name) / "out"
        self.compute = compute.Compute(Bench("compute", folder.name, self.out), quick=True)
        self.compute.native = Works()

    def results(self, section, shared):
        self.compute.shared = shared
        with contextlib.redirect_stdout(io.StringIO()):
            run_sections(self.compute.bench, "title", {section: (1, getattr(self.compute, section))}, [],
                         after=write_table)
        content = json.loads((self.out / "compute.json").read_text())
        return {entry["name"]: entry for entry in content["results"]}

    def test_one_cell_that_fails_does_not_lose_the_others(self):
        results = self.results("single", Works(("gemm", 25), "graph"))
        gemm = results["single gemm"]
        self.assertEqual([(cell["limits"]["gemm"], cell["ok"]) for cell in gemm["cells"]],
                         [(10, True), (50, True), (75, True), (90, True), (25, False)])
        self.assertFalse(gemm["ok"])
        self.assertEqual([cell["ok"] for cell in results["single graph"]["cells"]], [False] * 5)
        self.assertTrue(results["single train"]["ok"])
        self.assertTrue(results["single train"]["native"]["train"]["host_bound"])
        table = (self.out / "compute.md").read_text()
        self.assertIn("| single gemm | 25 |  | gemm has ended with 1: no / kernel |", table)

    def test_short_kernels_are_the_mean_of_several_processes(self):
        class Unequal(Works):  # one of them is slower than the others
            def run(self, limits, *arguments):
                rates, counted, window = super().run(limits, *arguments)
                slower = {name: 0.96 if name == self.slower else 1.0 for name in rates}
                return {name: slower[name] * value for name, value in rates.items()}, {"any": 7.0}, window

        self.compute.native, shared = Unequal(), Unequal()
        self.compute.native.slower, shared.slower = "small-2", "small-3"
        small = self.results("single", shared)["single small"]
        self.assertEqual([cell["shares"]["small"] for cell in small["cells"]], list(compute.LIMITS))
        self.assertEqual(small["native"]["small"]["full"], 99)
        self.assertEqual(len(small["cells"][0]["each"]), 4)
        self.assertEqual(small["cells"][0]["counted"], {"small": 7.0})
        self.assertEqual(small["cells"][2]["each"]["small-3"], 48.48)
        # All of them together are right, one by itself is not: above a limit by two points.
        self.assertEqual([cell["ok"] for cell in small["cells"]], [True, True, True, False, False])

    def test_parts_of_a_section_can_be_named(self):
        for words, names, code in ((["single:train,small"], ["single train", "single small"], 0),
                                   (["pairs:train+graph"], ["pairs train + graph"], 1),
                                   (["single:trian"], [], 2), (["live:gemm"], [], 2)):
            def made(*_):
                self.compute.only = {}
                self.compute.shared = Works()
                return self.compute

            with mock.patch.multiple(compute, Compute=made, is_installed=lambda _: True), \
                    contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as said:
                self.assertEqual(compute.main(["build", str(self.out), *words]), code)
            if names:
                content = json.loads((self.out / "compute.json").read_text())
                self.assertEqual([entry["name"] for entry in content["results"]], names)
            else:
                self.assertIn("no such", said.getvalue())

    def test_what_was_seen_is_written_at_once(self):
        seen = []

        class Watches(Works):
            def run(watched, limits, *arguments):
                seen.append(len((self.out / "compute-raw.jsonl").read_text().splitlines()))
                return super().run(limits, *arguments)

        self.results("unlimited", Watches())
        self.assertEqual(seen, [1, 4, 7])  # with what each does alone, before and after (gemm: once for all)

    def test_what_cannot_be_measured_afterwards_is_taken_from_before(self):
        self.compute.native = Works(2)
        gemm = self.results("single", Works())["single gemm"]
        self.assertTrue(gemm["ok"])
        self.assertIn("afterwards: gemm has ended", gemm["error"])

    def test_a_baseline_that_was_disturbed_is_measured_again(self):
        for disturbed in (1, 2):
            self.compute.native = Works(slow=(disturbed,))
            self.compute.last_alone = {}
            results = self.results("single", Works())
            self.assertEqual(results["single gemm"]["native"]["gemm"]["full"], 100)
            self.assertEqual(len(results["single gemm"]["native"]["gemm"]["measured"]), 3)
            self.assertEqual(len(results["single small"]["native"]["small"]["measured"]), 2)
            self.assertTrue(results["single gemm"]["ok"])

    def test_a_baseline_that_is_never_the_same_is_none(self):
        class Slower(Works):
            def run(self, limits, *arguments):
                rates, counted, window = super().run(limits, *arguments)
                return {name: value * 0.98 ** self.runs for name, value in rates.items()}, counted, window

        self.compute.native = Slower()
        gemm = self.results("single", Works())["single gemm"]
        self.assertFalse(gemm["ok"])
        self.assertFalse(any(cell["ok"] for cell in gemm["cells"]))
        why = "gemm is not steady without nvshare: 98.0, 96.0, 94.1 a second"
        self.assertIn(why, gemm["error"])
        self.assertIn(f"| single gemm | | | {why} | | | | NO |", (self.out / "compute.md").read_text())

    def test_a_program_that_never_works_alone_has_no_shares(self):
        self.compute.native = Works("gemm")
        results = self.results("single", Works())
        self.assertIn("gemm has ended", results["single gemm"]["error"])
        self.assertTrue(results["single small"]["ok"])

    def test_without_time_it_says_so(self):
        self.compute.bench.end = time.monotonic() + 9
        cells = self.results("single", Works())["single gemm"]["cells"]
        self.assertIn("needs 9 s, and there are", cells[0]["error"])

    def test_tables_have_every_kind_of_entry(self):
        machine = {"gpu": "a GPU", "driver": "1"}
        cell = {"limits": {"a": [15, 25]}, "shares": {"a": 20.5}, "effective_after_s": None, "lag_s": 0.25,
                "taken_away": 0.1, "ok": False}
        entries = [{"name": "x", "error": "why"}, {"name": "y", "cells": [cell]}]
        text = table_of({"machine": machine, "results": entries})
        self.assertIn("| x | | | why | | | | NO |", text)
        self.assertIn("| y | [15, 25] |  | 20.5 | after None s, lag 0.25 s | ? | 0.1 | NO |", text)


if __name__ == "__main__":
    unittest.main()
