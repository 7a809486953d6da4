"""workload.py NAME --commands FILE --log FILE --lock FILE: work for a GPU that can be counted.

Loads, warms up and measures how long a unit of its work takes, one process at a time (--lock: `loading`
in its log says that it has begun), writes `ready unit_ms=... submit_ms=...`, and then does what is
appended to its file of commands:

    go AT SECONDS EVERY STEADY      works from AT (CLOCK_MONOTONIC, seconds) on for so long, and writes
                                    `progress at=NS units=N` at most every so many seconds, when work is
                                    done (in bursts: when one is). STEADY 1: without its pauses
    quit
"""

import argparse
import dataclasses
import fcntl
import time

import torch

BATCH_MS = 5  # that is submitted at a time; two are on the way


@dataclasses.dataclass
class Work:
    unit: object  # a function: submits one
    busy_ms: float = 0  # bursts of so much work
    idle_ms: float = 0  # with so long between one's end and the next one's beginning
    period_ms: float = 0  # or from beginning to beginning; what is late is caught up with


def gemm(size):
    # A card that slows down under a program is faster when that has only a part of it, and the part is
    # then worth more. So they are of zeros, as real numbers draw more power, and in single precision:
    # the tensor cores of an H200 run at 1740 MHz instead of 1980, zeros or not, and faster when they
    # have pauses (README.md).
    a, b, out = (torch.zeros(size, size, device="cuda") for _ in range(3))
    return lambda: torch.mm(a, b, out=out)


def elementwise(count):
    x = torch.zeros(count, device="cuda")
    return lambda: x.add_(1)


def train():
    import torch_model

    model = torch_model.Model(width=1024, heads=16, layers=6).cuda()
    # It learns nothing: after minutes of the same data its numbers would be others than at the beginning,
    # and draw other power.
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0)
    data = torch_model.batch(size=32, length=128)

    def step():
        optimizer.zero_grad(set_to_none=True)
        torch_model.loss_of(model, *data).backward()
        optimizer.step()

    return step


def graph():
    work = gemm(1536)
    small = elementwise(1 << 20)
    for one in (work, small):
        one()
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        for _ in range(8):
            work()
            small()

    def replay(kept=(work, small)):  # a graph does not keep the memory it works on
        captured.replay()

    return replay


def one_kernel(cycles):
    # A number of cycles, not of milliseconds that would have to be measured first: the same kernel in
    # every process.
    return lambda: torch.cuda._sleep(cycles)


WORKS = {
    "gemm": lambda: Work(gemm(3584)),  # about 2 ms on an H200
    # About 18 and 23 us. Not x.add_(1) on 40 MiB, which takes as long: on a busy host Python submits those slower
    # than the GPU works, and they are a percent faster or slower by where their memory lies.
    "small": lambda: Work(one_kernel(33_000)),
    "small23": lambda: Work(one_kernel(43_000)),
    "bursty": lambda: Work(gemm(1536), busy_ms=60, idle_ms=40),
    "bursty40": lambda: Work(gemm(1536), busy_ms=40, idle_ms=60),
    "bursty40due": lambda: Work(gemm(1536), busy_ms=40, period_ms=100),
    "train": lambda: Work(train()),
    "graph": lambda: Work(graph()),
    "long": lambda: Work(one_kernel(396_000_000)),  # 200 ms at 1980 MHz
}


def timed(unit, count):
    """Milliseconds of the GPU for each."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    for _ in range(count):
        unit()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / count


def warm_up(work):
    for _ in range(5):
        work.unit()
    torch.cuda.synchronize()


def measure(work):
    """How long a unit takes on the GPU: enough of them that launching the first does not count."""
    roughly = timed(work.unit, 3)
    return timed(work.unit, max(3, int(200 / max(roughly, 0.001))))


def measure_submission(work, unit_ms):
    """How long a unit takes to submit. Where that is longer, it is not the GPU that is measured. Few of
    them: who has too much on the way waits for the GPU."""
    count = min(max(1, int(5 / unit_ms)), 200)
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(count):
        work.unit()
    took = (time.perf_counter() - begin) * 1000 / count
    torch.cuda.synchronize()
    return took


class Counter:
    """Counts what is done, and says so."""

    def __init__(self, log, every):
        self.log = log
        self.every = every
        self.units = 0
        self.said = 0

    def say(self):
        now = time.monotonic()
        if now - self.said >= self.every:
            self.said = now
            self.log.write(f"progress at={int(now * 1e9)} units={self.units}\n")


class Queue:
    """Two batches on the way: while one runs the next is there already."""

    def __init__(self, work, counter, in_bursts):
        self.work = work
        self.counter = counter
        self.in_bursts = in_bursts
        self.waiting = []

    def submit(self, units):
        if len(self.waiting) == 2:
            self.settle()
        for _ in range(units):
            self.work.unit()
        done = torch.cuda.Event(blocking=True)
        done.record()
        self.waiting.append((done, units))

    def settle(self):
        done, units = self.waiting.pop(0)
        done.synchronize()
        self.counter.units += units
        if not self.in_bursts:
            self.counter.say()

    def drain(self):
        while self.waiting:
            self.settle()
        self.counter.say()


def sleep_until(at):
    time.sleep(max(at - time.monotonic(), 0))


def saturate(queue, batch, end):
    while time.monotonic() < end:
        queue.submit(batch)
    queue.drain()


def in_bursts(queue, batch, unit_ms, end):
    work = queue.work
    burst = max(1, round(work.busy_ms / unit_ms))
    due = time.monotonic()
    while time.monotonic() < end:
        left = burst
        while left > 0:
            queue.submit(min(batch, left))
            left -= batch
        queue.drain()
        if work.period_ms:
            due += work.period_ms / 1000
            sleep_until(due)
        else:
            time.sleep(work.idle_ms / 1000)


def run(work, unit_ms, log, at, seconds, every, steady):
    batch = max(1, round(BATCH_MS / unit_ms))
    queue = Queue(work, Counter(log, every), in_bursts=work.busy_ms > 0 and not steady)
    sleep_until(at)
    if queue.in_bursts:
        in_bursts(queue, batch, unit_ms, at + seconds)
    else:
        saturate(queue, batch, at + seconds)
    log.write("done\n")


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("name", choices=WORKS)
    for name in ("--commands", "--log", "--lock"):
        arguments.add_argument(name, required=True)
    arguments.add_argument("--unit-ms", type=float, default=0, help="how long a unit takes, if known")
    options = arguments.parse_args()

    log = open(options.log, "w", buffering=1)
    with open(options.lock, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        log.write("loading\n")
        work = WORKS[options.name]()
        warm_up(work)
        unit_ms = options.unit_ms or measure(work)
        submit_ms = measure_submission(work, unit_ms)
    log.write(f"ready unit_ms={unit_ms:.6f} submit_ms={submit_ms:.6f}\n")
    with open(options.commands) as commands:
        while True:
            words = commands.readline().split()
            if not words:
                time.sleep(0.005)
            elif words[0] == "quit":
                return
            else:
                run(work, unit_ms, log, *(float(word) for word in words[1:]))


main()
