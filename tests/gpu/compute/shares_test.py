"""python3 shares_test.py: what is read from progress, and what limits promise."""

import unittest

from shares import drift_of, effective_after, fair, judged, lag_of, leaks_of, progress_of, rate, ready_of


class SharesTest(unittest.TestCase):
    def test_units_go_on_over_several_runs(self):
        text = ("ready unit_ms=1\nprogress at=1000000000 units=10\nprogress at=2000000000 units=30\ndone\n"
                "progress at=5000000000 units=4\nprogress at=broken\n")
        self.assertEqual(progress_of(text), [(1.0, 10), (2.0, 30), (5.0, 34)])

    def test_a_rate_is_that_of_the_time_between(self):
        samples = [(time / 100, time / 200) for time in range(2000)]
        self.assertAlmostEqual(rate(samples, 1, 11), 0.5)
        self.assertIsNone(rate(samples, 30, 40))
        self.assertIsNone(rate([], 1, 3))
        self.assertIsNone(rate([(2, 1), (2, 1)], 1, 3))

    def test_time_in_which_nothing_is_done_counts(self):
        faster = [(time / 100, min(time, 600) * 0.9 + max(time - 600, 0) * 0.2) for time in range(1200)]
        self.assertAlmostEqual(rate(faster, 1, 11), 55, delta=0.2)
        stopped = [(time / 100, time) for time in range(600)] + [(11, 600)]
        self.assertAlmostEqual(rate(stopped, 1, 11), 50, delta=1)

    def test_it_does_not_matter_when_turns_begin(self):
        for on, off in ((0.15, 0.15), (0.06, 0.18), (0.15, 0.05)):
            for late in (0.0, 0.05, 0.12, 0.2, 0.27):
                samples = [(late + turn * (on + off) + step / 100, turn * on + step / 100)
                           for turn in range(80) for step in range(1, round(on * 100) + 1)]
                self.assertAlmostEqual(rate(samples, 1, 11), on / (on + off), delta=0.001)

    def test_where_few_begin_and_end_does_not_matter(self):
        pairs = [(4 * number + more, 2 * number + (more > 0)) for number in range(9) for more in (0, 0.2)]
        for begin in (0, 0.1, 3, 4.1):
            self.assertAlmostEqual(rate(pairs, begin, begin + 10), 0.5, delta=0.05)
        # Half of a GPU for kernels of 200 ms, from the first of a pair to the second of one.
        halves = [(0.8 * number + more, 2 * number + (more > 0)) for number in range(13) for more in (0, 0.2)]
        self.assertAlmostEqual(rate(halves, 0, 9.9), 2.5, delta=0.02)

    def test_a_workload_is_ready_when_it_says_so(self):
        self.assertEqual(ready_of("loading\n"), {})
        self.assertEqual(ready_of("loading\nready unit_ms=1.5 sub"), {})
        self.assertEqual(ready_of("loading\nready unit_ms=1.5 submit_ms=0.25\nprogress at=1 units=1\n"),
                         {"unit_ms": 1.5, "submit_ms": 0.25})

    def test_limits(self):
        self.assertEqual(fair({"a": 25, "b": 75}), {"a": 25, "b": 75})
        self.assertEqual(fair({"a": 30, "b": 60}), {"a": 30, "b": 60})
        self.assertEqual(fair({"a": 80, "b": 80}), {"a": 50, "b": 50})
        self.assertEqual(fair({"a": 50, "b": 100}), {"a": 50, "b": 50})
        self.assertEqual(fair({"a": 100, "b": 20, "c": 100}), {"a": 40, "b": 20, "c": 40})

    def test_when_a_limit_is_in_force(self):
        def share(begin, end):  # 30 before 10.1, 70 from then on
            return 30 + 40 * max(0.0, end - max(begin, 10.1)) / (end - begin)

        self.assertAlmostEqual(effective_after(share, 10, 70, until=12), 0.04, places=3)
        self.assertIsNone(effective_after(share, 10, 10, until=12))

        def for_a_while(begin, end):  # as wanted, but for a moment
            return 70 if end < 10.9 or begin > 11.1 else 30

        self.assertAlmostEqual(effective_after(for_a_while, 10, 70, until=12), 1.1, delta=0.03)

    def test_how_long_the_old_limit_went_on(self):
        def samples(late):  # 30 a second until 10 + late, then 70
            return [(9 + i / 100, 30 * i / 100 + 40 * max(0.0, i / 100 - 1 - late)) for i in range(400)]

        for late in (0, 0.15, 0.4):
            self.assertAlmostEqual(lag_of(samples(late), 10, 30, 70), late, places=2)
        self.assertIsNone(lag_of(samples(0), 20, 30, 70))
        self.assertIsNone(lag_of([], 20, 30, 70))

    def test_what_is_within_limits(self):
        self.assertTrue(judged({"shares": {"a": 24.1, "b": 75.9}}, {"a": 25, "b": 75}, 1.0, 98.5)["ok"])
        self.assertFalse(judged({"shares": {"a": 23.9, "b": 75}}, {"a": 25, "b": 75}, 1.0)["ok"])
        self.assertFalse(judged({"shares": {"a": 49.2, "b": 49.2}}, {"a": 50, "b": 50}, 1.0, 98.5)["ok"])

    def test_what_drifts_and_what_leaks(self):
        shares = [{"a": value} for value in (90, 50, 50, 50, 50, 50, 50, 52, 52, 52)]
        self.assertEqual(drift_of(shares), {"a": 2})
        steady = {"scheduler": {"memory": 5 << 20, "files": 9}, "a": {"memory": 1 << 30, "files": 9, "gpu": 7}}
        self.assertEqual(leaks_of([{}, steady, {}, steady]), {})
        for name, key, more in (("scheduler", "memory", 2 << 20), ("a", "memory", 9 << 20), ("a", "files", 1),
                                ("a", "gpu", 1)):
            grown = {**steady, name: {**steady[name], key: steady[name][key] + more}}
            self.assertEqual(list(leaks_of([{}, steady, grown])), [name])
        self.assertEqual(list(leaks_of([{}, steady, {"a": steady["a"]}])), ["scheduler"])


if __name__ == "__main__":
    unittest.main()
