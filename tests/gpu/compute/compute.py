"""How exactly GPU time is shared out on a real card: compute.py BUILD_DIR OUT [quick] [SECTION...]; see
README.md."""

import os
import statistics
import sys
import time

from bench import Bench, is_installed, run_sections
from shares import effective_after, fair
from table import write_table
from workers import Clocks, Crew, size_of

SINGLE = ("gemm", "small", "bursty", "train", "graph", "long")
LIMITS = (10, 25, 50, 75, 90)
LIMIT_PAIRS = ((25, 75), (30, 60), (50, 50), (50, 100), (80, 80))
PAIRS = (("gemm", "gemm-1"), ("train", "train-1"), ("gemm", "small"), ("train", "graph"))
LONG = int(os.environ.get("COMPUTE_LONG", "500"))  # seconds
MIB = 1 << 20


class Compute:
    def __init__(self, bench, quick):
        self.bench = bench
        self.seconds = 3 if quick else 10
        self.pair_seconds = 3 if quick else 8
        self.settle = 1.0
        self.clocks = Clocks()
        self.native_rates = {}
        self.last_crew = None

    @property
    def crew(self):
        """All sections have the same, unless something went wrong in one."""
        if self.last_crew is None or self.last_crew.is_broken():
            self.last_crew = Crew(self.bench, shared=True, units=self.unit_ms)
        return self.last_crew

    def native(self, *names):
        """What workloads get done without nvshare, alone, measured once each."""
        kinds = sorted({name.split("-")[0] for name in names} - set(self.native_rates))
        if not kinds:
            return
        crew = Crew(self.bench, shared=False)
        for worker in crew.get(*kinds):
            rates, _, (begin, end) = crew.run({worker.name: 100}, self.seconds, 0.5)
            if rates[worker.name] is None:
                raise RuntimeError(f"{worker.name} got nothing done")
            # What would be all of the GPU: without its pauses.
            full = 1000 / worker.unit_ms() if worker.kind.startswith("bursty") else rates[worker.name]
            self.native_rates[worker.kind] = {
                "rate": rates[worker.name], "full": full, "unit_ms": worker.unit_ms(),
                "duty": round(100 * rates[worker.name] / full, 2), "clock": self.clocks.mean(begin, end)}
        crew.end()

    def unit_ms(self, kind):
        return self.native_rates.get(kind, {}).get("unit_ms")

    def of(self, name):
        return self.native_rates[name.split("-")[0]]

    def cell(self, limits, seconds):
        """Workers under limits. Percent of the GPU that each got, by what it got done."""
        self.crew.get(*limits)
        rates, counted, window = self.crew.run(limits, seconds, self.settle)
        return {
            "limits": limits,
            "shares": {name: round(100 * (value or 0) / self.of(name)["full"], 2)
                       for name, value in rates.items()},
            "counted": {name: round(value, 2) for name, value in counted.items()},
            "clock": self.clocks.mean(*window),
        }

    def judge(self, cell, wanted, points, least_total=None):
        """Each within so many points of what is wanted; together at least so much."""
        cell["wanted"] = {name: round(value, 2) for name, value in wanted.items()}
        cell["errors"] = {name: round(cell["shares"][name] - value, 2) for name, value in wanted.items()}
        cell["total"] = round(sum(cell["shares"].values()), 2)
        cell["ok"] = max(abs(error) for error in cell["errors"].values()) <= points
        if least_total is not None:
            cell["least_total"] = round(least_total, 2)
            cell["ok"] = cell["ok"] and cell["total"] >= least_total
        return cell

    def entry(self, name, cells, **more):
        print(f"{name}: {sum(cell['ok'] for cell in cells)} of {len(cells)} within limits", flush=True)
        return {"name": name, **more, "cells": cells, "ok": all(cell["ok"] for cell in cells)}

    def single(self):
        self.native(*SINGLE)
        self.crew.get(*SINGLE)
        for name in SINGLE:
            points = 3.0 if name == "long" else 1.0
            cells = []
            for limit in LIMITS:
                wanted = {name: min(limit, self.of(name)["duty"]) if name == "bursty" else limit}
                cells.append(self.judge(self.cell({name: limit}, self.seconds), wanted, points))
            yield self.entry(f"single {name}", cells, points=points, native=self.of(name))

    def pairs(self):
        names = {name for pair in PAIRS for name in pair}
        self.native(*names)
        self.crew.get(*names)
        for pair in PAIRS:
            cells = []
            for limits in LIMIT_PAIRS:
                promised = dict(zip(pair, limits))
                cells.append(self.judge(self.cell(promised, self.pair_seconds), fair(promised), 1.5,
                                        0.985 * min(sum(limits), 100)))
            yield self.entry("pairs " + " + ".join(pair), cells, points=1.5)

    def unlimited(self):
        """Without limits: nothing is lost, and equal parts whatever kernels are like."""
        for pair, points, least in ((("gemm", "gemm-1"), 100, 99), (("train", "train-1"), 100, 98),
                                    (("small23", "gemm"), 2.0, None)):
            self.native(*pair)
            cell = self.cell({name: 100 for name in pair}, self.seconds)
            yield self.entry("unlimited " + " + ".join(pair),
                             [self.judge(cell, {name: 50 for name in pair}, points, least)],
                             native={name: self.of(name) for name in pair})

    def bursty(self):
        """Two that together leave a fifth of the GPU: each as if it were alone."""
        pair = ("bursty40", "bursty40-1")
        self.native(*pair)
        alone = {name: self.cell({name: 100}, self.seconds)["shares"][name] for name in pair}
        cell = self.cell({name: 100 for name in pair}, self.seconds)
        parts = {name: round(100 * cell["shares"][name] / max(alone[name], 0.01), 2) for name in pair}
        of_native = {name: round(100 * alone[name] / self.of(name)["duty"], 2) for name in pair}
        cell.update(wanted=alone, parts=parts, alone_of_native=of_native, total=round(sum(cell["shares"].values()), 2),
                    ok=min(parts.values()) >= 97)
        yield self.entry("bursty two of 40 %", [cell], least_part=97, native=self.of("bursty40"))

    def live(self):
        """Limits that change while it works."""
        name, every, each = "gemm", 0.01, 2.0
        self.native(name)
        worker = self.crew.get(name)[0]
        changes = (30, 70, 20, 90, 50)
        at = time.monotonic() + 0.3
        self.crew.limit(name, 50)
        worker.go(at, each * (len(changes) + 1), every)
        moments = []
        for number, cores in enumerate(changes, start=1):
            time.sleep(max(at + number * each - time.monotonic(), 0))
            self.crew.limit(name, cores)
            moments.append((time.monotonic(), cores))
        self.crew.wait(worker.is_done, 30, "does not end")
        cells = []

        def share_between(begin, end):
            value = worker.rate(begin, end)
            return None if value is None else 100 * value / self.of(name)["full"]

        for moment, cores in moments:
            after = effective_after(share_between, moment, cores)
            share = share_between(moment + 0.2, moment + each)
            cells.append({"limits": {name: cores}, "shares": {name: round(share or 0, 2)},
                          "wanted": {name: cores}, "effective_after_s": after,
                          "ok": after is not None and after <= 0.2})
        yield self.entry("live", cells, limit_s=0.2)

    def four(self):
        """Four processes of one tenant: its limit holds for all of them together."""
        names = [f"gemm-in{number}" for number in range(4)]
        self.native("gemm")
        some = self.crew.get_in_one_tenant("four", 25, names)
        at = time.monotonic() + 0.3
        for one in some:
            one.go(at, self.settle + self.seconds, 0.1)
        end = at + self.settle + self.seconds
        time.sleep(max(end - time.monotonic(), 0))
        self.crew.limit("four", 100)
        self.crew.wait(lambda: all(one.is_done() for one in some), 30, "does not end")
        shares = {one.name: round(100 * (one.rate(at + self.settle, end) or 0) / self.of("gemm")["full"], 2)
                  for one in some}
        total = round(sum(shares.values()), 2)
        yield self.entry("four in one tenant", [{"limits": {"four": 25}, "shares": shares, "total": total,
                                                 "wanted": {"four": 25}, "ok": abs(total - 25) <= 1}])

    def long(self):
        """Nothing drifts and nothing leaks."""
        pair = ("gemm", "train")
        self.native(*pair)
        workers = self.crew.get(*pair)
        for name in pair:
            self.crew.limit(name, 50)
        seconds = min(LONG, int(self.bench.left()) - 20)
        slice_s = max(seconds / 10, 1)
        scheduler = self.bench.status(self.crew.environment)["scheduler"]["pid"]
        at = time.monotonic() + 0.3
        for worker in workers:
            worker.go(at, seconds, 0.5)
        sizes = []
        for number in range(1, 11):
            time.sleep(max(at + number * slice_s - time.monotonic(), 0))
            sizes.append(size_of(scheduler))
        self.crew.wait(lambda: all(worker.is_done() for worker in workers), 30, "does not end")
        cells = []
        for number in range(10):
            begin = at + number * slice_s + (self.settle if number == 0 else 0)
            shares = {worker.name: 100 * (worker.rate(begin, at + (number + 1) * slice_s) or 0) /
                      self.of(worker.name)["full"] for worker in workers}
            cell = {"limits": {name: 50 for name in pair}, "clock": self.clocks.mean(begin, begin + slice_s),
                    "shares": {name: round(value, 2) for name, value in shares.items()}}
            cells.append(self.judge(cell, {name: 50 for name in pair}, 1.5))
        drift = {name: round(statistics.mean(cell["shares"][name] for cell in cells[-3:]) -
                             statistics.mean(cell["shares"][name] for cell in cells[1:4]), 2)
                 for name in pair}
        grown = sizes[-1][0] - sizes[1][0]
        entry = self.entry("long", cells, seconds=seconds, drift_points=drift,
                           scheduler={"memory": [one[0] for one in sizes], "files": [one[1] for one in sizes],
                                      "grown": grown, "grown_limit": MIB})
        entry["ok"] = (entry["ok"] and max(abs(value) for value in drift.values()) <= 1 and
                       grown <= MIB and sizes[-1][1] <= sizes[1][1])
        yield entry


def main(words):
    build, out, *wanted = words
    quick = "quick" in wanted
    wanted = [word for word in wanted if word != "quick"]
    if not is_installed("torch"):
        print("compute: PyTorch is needed", file=sys.stderr)
        return 2
    bench = Bench("compute", build, out)
    compute = Compute(bench, quick)
    part = 0.4 if quick else 1
    sections = {
        "single": (380 * part, compute.single),
        "pairs": (230 * part, compute.pairs),
        "unlimited": (60 * part, compute.unlimited),
        "bursty": (50 * part, compute.bursty),
        "live": (15, compute.live),
        "four": (30, compute.four),
        "long": (60, compute.long),
    }
    title = "tests/gpu/compute/run.sh build/dev out " + " ".join(words[2:])
    try:
        return run_sections(bench, title, sections, wanted or [name for name in sections if name != "long"],
                            after=write_table)
    finally:
        compute.clocks.stop()
        bench.stop()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
