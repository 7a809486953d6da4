"""CUDA IPC by the runtime API (ipc_sample.cu) without nvshare and under `nvshare run`, at the default backend.

ipc_sample.py BUILD_DIR OUT; needs an NVIDIA GPU and nvcc, and takes less than 90 s. Prints one line of JSON, which is
also in OUT/ipc_sample.json, and ends with 1 when anything is wrong."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve()
sys.path[:0] = [str(HERE.parent), str(HERE.parent.parent / "common")]

from bench import Bench, nvcc  # noqa: E402
from ipc_torch import SLACK, eventually, gpu_used  # noqa: E402

CONSUMERS = 3  # as in ipc_sample.cu
ROUNDS = 12
PAUSE_MS = 1000  # in the middle of a round, in which a process is killed


def results_of(text, role):
    """What the processes of this role said in their last lines."""
    lines = [line[len("RESULT "):] for line in text.splitlines() if line.startswith("RESULT ")]
    return [one for one in map(json.loads, lines) if one["role"] == role]


def rounds_of(text):
    return sum(line.startswith("ROUND ") for line in text.splitlines())


def left_in(status):
    """What a scheduler still has of programs that have ended, in words; empty: nothing."""
    if not status.get("ok"):
        return "the scheduler does not answer"
    # The user's tenant stays a while, so that a debt is not forgotten.
    left = [f"the tenant {one['name']}" for one in status["tenants"] if one["kind"] == "run"]
    for gpu in status["gpus"]:
        for key in ("clients", "memory_allocated", "swapped"):
            if gpu[key]:
                left.append(f"{gpu[key]} {key} of GPU {gpu['index']}")
    if status["scheduler"]["arena_used"]:
        left.append(f"{status['scheduler']['arena_used']} bytes of host memory")
    return ", ".join(left)


class Check:
    def __init__(self, bench, sample):
        self.bench = bench
        self.sample = sample
        self.environment = bench.environment()
        self.wrong = []
        self.sockets = 0
        self.events = None  # whether they work without nvshare

    def expect(self, good, text):
        if not good:
            self.wrong.append(text)

    def start(self, name, *words, shared=True):
        return self.bench.start(name, [self.sample, *map(str, words)], self.environment, [] if shared else None)

    def start_pair(self, rounds, pause_ms):
        """The producer in one run, the consumers in another one."""
        self.sockets += 1
        path = f"/tmp/nvshare-ipc-sample-socket-{os.getpid()}-{self.sockets}"
        return [self.start("producer", "producer", path, rounds, pause_ms), self.start("consumers", "consumers", path)]

    def end(self, started, codes):
        """Waits for all. What they said, in one text."""
        ended, texts = self.bench.wait(started, 40)
        text = "".join(texts.values())
        for name, code in codes.items():
            self.expect(ended[name] == code, f"{name} has ended with {ended[name]}: {texts[name][-400:]}")
        return text

    def all_rounds(self, text):
        """Every process has gone through every round, with events where the driver has them."""
        producers, consumers = results_of(text, "producer"), results_of(text, "consumer")
        self.expect(len(producers) == 1 and len(consumers) == CONSUMERS,
                    f"{len(producers)} producers and {len(consumers)} consumers have a result")
        for one in producers + consumers:
            self.expect(one["rounds"] == ROUNDS, f"a {one['role']} has done {one['rounds']} rounds")
            if self.events is None:
                self.events = one["events"]
            self.expect(one["events"] == self.events,
                        f"a {one['role']} has events: {one['events']}, not as without nvshare")

    def family(self, shared):
        self.all_rounds(self.end([self.start("family", "family", ROUNDS, 0, shared=shared)], {"family": 0}))

    def two_runs(self):
        self.all_rounds(self.end(self.start_pair(ROUNDS, 0), {"producer": 0, "consumers": 0}))

    def kill_one_of(self, started, name):
        """A process that uses the GPU, between the two steps of a round."""
        producer = started[0]

        def goes_on(rounds):
            eventually(lambda: rounds_of(producer.text()) >= rounds or producer.process.poll() is not None, 15)
            return producer.process.poll() is None and rounds_of(producer.text()) >= rounds

        if not goes_on(2):
            return self.expect(False, f"no rounds: {producer.last_words()}")
        tenants = self.bench.status(self.environment).get("tenants", [])
        pids = [process["pid"] for one in tenants if one["name"] == name for process in one["processes"]]
        if not pids or not goes_on(rounds_of(producer.text()) + 1):
            return self.expect(False, f"{name} has no process on the GPU, or stands still: {producer.last_words()}")
        os.kill(pids[0], signal.SIGKILL)

    def producer_killed(self):
        started = self.start_pair(0, PAUSE_MS)
        self.kill_one_of(started, "producer")
        # nvshare run ends by the signal that ended its program.
        text = self.end(started, {"producer": -signal.SIGKILL, "consumers": 0})
        gone = [one["producer_gone"] for one in results_of(text, "consumer")]
        self.expect(gone == [True] * CONSUMERS, f"of the consumers, the producer was gone for: {gone}")

    def consumer_killed(self):
        started = self.start_pair(0, PAUSE_MS)
        self.kill_one_of(started, "consumers")
        text = self.end(started, {"producer": 0, "consumers": 1})
        gone = [one["gone"] for one in results_of(text, "producer")]
        self.expect(gone == [1], f"of the producer, consumers that were gone: {gone}")
        self.expect(len(results_of(text, "consumer")) == CONSUMERS - 1, "the other consumers have not ended well")

    def section(self, run):
        """Runs it, and looks at what is left afterwards. What came of it."""
        self.wrong = []
        begin = time.monotonic()
        before = gpu_used()
        run()
        self.bench.stop([one for one in self.bench.running if one.name != "scheduler"])
        eventually(lambda: not left_in(self.bench.status(self.environment)), 10)
        left = left_in(self.bench.status(self.environment))
        self.expect(not left, f"left behind: {left}")
        if before is not None:
            back = eventually(lambda: gpu_used() <= before + SLACK, 10)
            self.expect(back, f"{gpu_used()} bytes of the GPU are used, and {before} were before")
        return {"ok": not self.wrong, "seconds": round(time.monotonic() - begin, 1), "wrong": self.wrong}


def build_sample(bench):
    """The program; an error's text when there is none."""
    binary = bench.out / "ipc_sample"
    command = [nvcc(), "-O2", "-arch=native", "-o", str(binary), str(HERE.with_suffix(".cu"))]
    try:
        subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return None, f"nvcc: {getattr(error, 'stderr', None) or error}"
    return str(binary), ""


def run_all(bench, sample):
    """Results by section. The scheduler is there from the beginning to the end, so that it can be asked."""
    check = Check(bench, sample)
    directory = check.environment["NVSHARE_RUN_DIR"]
    bench.start("scheduler", [bench.program("nvshare-scheduler"), "--run-dir", directory], check.environment)
    eventually(lambda: bench.status(check.environment), 10)
    sections = {
        "without nvshare": lambda: check.family(False),
        "one run": lambda: check.family(True),
        "two runs": check.two_runs,
        "producer killed": check.producer_killed,
        "consumer killed": check.consumer_killed,
    }
    results = {name: check.section(run) for name, run in sections.items()}
    return {"ok": all(one["ok"] for one in results.values()), "events": check.events, "sections": results}


def main(build, out):
    os.environ.setdefault("BENCH_SECONDS", "85")
    begin = time.monotonic()
    bench = Bench("ipc_sample", build, out)
    sample, error = build_sample(bench)
    answer = {"ok": False, "error": error} if sample is None else run_all(bench, sample)
    answer["seconds"] = round(time.monotonic() - begin, 1)
    line = json.dumps(answer)
    (bench.out / "ipc_sample.json").write_text(line + "\n")
    print(line)
    return 0 if answer["ok"] else 1


if __name__ == "__main__":
    if len(sys.argv) != 3:
        print("usage: ipc_sample.py BUILD_DIR OUT", file=sys.stderr)
        sys.exit(2)
    sys.exit(main(*sys.argv[1:]))
