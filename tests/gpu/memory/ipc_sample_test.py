"""python3 ipc_sample_test.py: what is made of what the processes and the scheduler say."""

import types
import unittest

from ipc_sample import CONSUMERS, ROUNDS, Check, left_in, results_of, rounds_of


def result(role, rounds=ROUNDS, events=True):
    flag = "true" if events else "false"
    return f'RESULT {{"role": "{role}", "rounds": {rounds}, "events": {flag}, "gone": 0, "producer_gone": false}}\n'


def status(tenants=(), clients=0, allocated=0, arena=0):
    gpu = {"index": 0, "clients": clients, "memory_allocated": allocated, "swapped": 0}
    return {"ok": True, "tenants": [{"name": name, "kind": "run"} for name in tenants], "gpus": [gpu],
            "scheduler": {"arena_used": arena}}


class IpcSampleTest(unittest.TestCase):
    def setUp(self):
        self.check = Check(types.SimpleNamespace(environment=dict), "ipc_sample")

    def wrong(self, text):
        self.check.wrong = []
        self.check.all_rounds(text)
        return self.check.wrong

    def test_results_are_told_by_role(self):
        text = "ROUND 0\nnvshare: a line\nROUND 1\n" + result("consumer", 2) + result("producer", 3)
        self.assertEqual(rounds_of(text), 2)
        self.assertEqual([one["rounds"] for one in results_of(text, "consumer")], [2])
        self.assertEqual([one["rounds"] for one in results_of(text, "producer")], [3])
        self.assertEqual(results_of("", "producer"), [])

    def test_every_process_does_every_round(self):
        self.assertEqual(self.wrong(result("producer") + result("consumer") * CONSUMERS), [])
        self.assertEqual(self.wrong(result("producer") + result("consumer") * (CONSUMERS - 1)),
                         [f"1 producers and {CONSUMERS - 1} consumers have a result"])
        few = result("producer", 1) + result("consumer") * CONSUMERS
        self.assertEqual(self.wrong(few), ["a producer has done 1 rounds"])

    def test_events_are_as_without_nvshare(self):
        none = result("producer", events=False) + result("consumer", events=False) * CONSUMERS
        self.assertEqual(self.wrong(none), [], "the driver has none")
        self.assertFalse(self.check.events)
        self.check.events = True
        self.assertEqual(len(self.wrong(none)), 1 + CONSUMERS)

    def test_what_is_left_is_named(self):
        self.assertEqual(left_in(status()), "")
        self.assertEqual(left_in({}), "the scheduler does not answer")
        self.assertEqual(left_in(status(["producer"], 1, 4096, 8192)),
                         "the tenant producer, 1 clients of GPU 0, 4096 memory_allocated of GPU 0, "
                         "8192 bytes of host memory")


if __name__ == "__main__":
    unittest.main()
