"""python3 -m unittest, in this folder: what is read from progress and from the scheduler's numbers."""

import unittest

from turns import Moves, activity, idle_seconds, lost_of, moved_of_deficit, switches


def progress(*spans, every=5):
    """Of a job that gets a launch done every 5 ms in these (from, to), in ms."""
    lines = []
    kernels = 0
    for at in range(0, 3001, every):
        kernels += any(begin <= at < end for begin, end in spans)
        lines.append(f"progress at={at * 1000000} kernels={kernels}")
    return "\n".join(lines) + "\nkernels=7 busy_ms=1 seconds=1 share=1 checksum=0\n"


class TurnsTest(unittest.TestCase):
    def test_a_pause_ends_a_turn(self):
        spans = activity(progress((100, 500), (520, 800), (1000, 1200)))
        self.assertEqual(spans, [[100e6, 795e6], [1000e6, 1195e6]])

    def test_what_a_switch_costs_and_which_is_the_last_of_a_job(self):
        found = switches({"a": progress((0, 500), (1400, 1800)), "b": progress((800, 1200), (2200, 3000))},
                         0.005)
        self.assertEqual([(one["from"], one["exit"]) for one in found],
                         [("a", False), ("b", False), ("a", True)])
        self.assertEqual([one["lost_s"] for one in found], [0.3, 0.2, 0.4])
        lost = lost_of(found)
        self.assertEqual((lost["lost_first_s"], lost["lost_median_s"], lost["lost_mean_s"]),
                         (0.3, 0.25, 0.25))
        self.assertEqual(lost["lost_exit_s"], [0.4])

    def test_nobody_is_at_work(self):
        texts = {"a": progress((0, 1000)), "b": progress((500, 1500), (2000, 2100))}
        self.assertAlmostEqual(idle_seconds(texts), 0.505, places=3)

    def test_no_switches(self):
        self.assertEqual(lost_of([])["switches"], 0)
        self.assertNotIn("lost_median_s", lost_of([]))
        self.assertEqual(idle_seconds({"a": ""}), 0)


def status(**tenants):
    return {"gpus": [{"memory_safe": 7}], "tenants": [
        {"name": name, "processes": [1], "moves": dict(zip(Moves.KEYS, counts))}
        for name, counts in tenants.items()]}


class MovesTest(unittest.TestCase):
    def test_what_comes_soon_after_is_the_same_move(self):
        moves = Moves(100)
        for now, counts in ((101, (0, 0, 0, 0)), (102, (10, 0, 4, 100_000_000)),
                            (102.2, (30, 0, 4, 200_000_000)), (103, (30, 30, 34, 500_000_000)),
                            (110, (60, 30, 34, 600_000_000))):
            moves.look(now, status(a=counts, b=(0, 0, 0, 0)))
        self.assertEqual([(one["kind"], one["bytes"], one["copied"], one["took_s"])
                          for one in moves.episodes("a")],
                         [("out", 30, 4, 0.2), ("in", 30, 30, 0.3), ("out", 30, 0, 0.1)])
        self.assertEqual([one["until"] for one in moves.outs("a")], [2.2, 10])
        self.assertEqual(moves.outs("b"), [])
        self.assertEqual(moves.total(), {"out": 60, "in": 30, "copied": 34, "took": 600_000_000})

    def test_what_a_switch_moves_of_the_deficit(self):
        episodes = [{"kind": kind, "bytes": size, "until": until} for kind, size, until in
                    (("out", 900, 1), ("out", 105, 11), ("in", 110, 12), ("out", 101, 20), ("in", 100, 21))]
        self.assertEqual(moved_of_deficit(episodes, 5, 100), {"out_worst_of_deficit": 1.05,
                                                              "in_worst_of_deficit": 1.1,
                                                              "moved_worst_of_deficit": 1.1})
        self.assertEqual(moved_of_deficit(episodes, 30, 100)["moved_worst_of_deficit"], 0)

    def test_the_last_status_with_all_of_them_is_kept(self):
        moves = Moves()
        moves.look(1, status(a=(1, 0, 0, 0), b=(1, 0, 0, 0)))
        moves.look(2, {"gpus": [{}], "tenants": []})
        moves.look(3, {})
        self.assertEqual(moves.gpu(), {"memory_safe": 7})


if __name__ == "__main__":
    unittest.main()
