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
UNITS = 50  # of work alone, that a cell has to be long enough for
RECENT = 100  # seconds for which what a program does alone need not be measured again
MIB = 1 << 20


def kinds_of(names):
    return sorted({name.split("-")[0] for name in names})


def judged(cell, wanted, points, least_total=None):
    """Each within so many points of what is wanted; together at least so much."""
    cell["wanted"] = {name: round(value, 2) for name, value in wanted.items()}
    cell["errors"] = {name: round(cell["shares"][name] - value, 2) for name, value in wanted.items()}
    cell["total"] = round(sum(cell["shares"].values()), 2)
    cell["ok"] = max(abs(error) for error in cell["errors"].values()) <= points
    if least_total is not None:
        cell["least_total"] = round(least_total, 2)
        cell["ok"] = cell["ok"] and cell["total"] >= least_total
    return cell


class Compute:
    def __init__(self, bench, quick):
        self.bench = bench
        self.seconds = 3 if quick else 10
        self.pair_seconds = 3 if quick else 8
        self.settle = 1.0
        self.clocks = Clocks()
        # Both stay until the end: what a program does alone is measured between what it does shared.
        self.native = Crew(bench, shared=False)
        self.shared = Crew(bench, shared=True, units=self.unit_ms)
        self.last_alone = {}  # kind -> what it did alone, and when

    def load(self, *names):
        """All at once. Who cannot be used is found out later, by those who need it."""
        self.native.load(*kinds_of(names))
        self.shared.load(*names)

    def ready(self, kind):
        worker = self.native.workers.get(kind)
        return worker.ready() if worker else {}

    def unit_ms(self, kind):
        return self.ready(kind).get("unit_ms")

    def seconds_for(self, kind, seconds):
        return max(seconds, UNITS * self.unit_ms(kind) / 1000)

    # --- what a program does alone ---

    def rate_alone(self, kind, steady):
        self.native.get(kind)
        seconds = max(self.seconds_for(kind, self.seconds) / 2, 2)
        rates, _, window = self.native.run({kind: 100}, seconds, 0.5, steady)
        if not rates[kind]:
            raise RuntimeError(f"{kind} got nothing done without nvshare")
        return rates[kind], self.clocks.mean(*window)

    def alone(self, kind):
        """Without nvshare: `full` is all of the GPU, units per second without pauses; `duty` what is left
        of that with them, in percent."""
        full, clock = self.rate_alone(kind, steady=True)
        duty = 100.0
        if kind.startswith("bursty"):
            duty = 100 * self.rate_alone(kind, steady=False)[0] / full
        self.last_alone[kind] = {"full": full, "duty": duty, "clock": clock, "at": time.monotonic()}
        return self.last_alone[kind]

    def lately(self, kind):
        last = self.last_alone.get(kind)
        return last if last and time.monotonic() - last["at"] < RECENT else self.alone(kind)

    def of_both(self, kind, before, after):
        """Before and after, so that a card that changes bit by bit does not count."""
        mean = {key: (before[key] + after[key]) / 2 for key in ("full", "duty")}
        return {"full": mean["full"], "duty": round(mean["duty"], 2), **self.ready(kind),
                "drift_percent": round(100 * (after["full"] / before["full"] - 1), 2),
                "clock": after["clock"], "clock_before": before["clock"]}

    # --- entries ---

    def cell(self, limits, seconds):
        """Workers under limits: what each got done."""
        rates, counted, window = self.shared.run(limits, seconds, self.settle)
        return {"limits": limits, "rates": rates, "clock": self.clocks.mean(*window),
                "counted": {name: round(value, 2) for name, value in counted.items()}}

    def entry(self, name, names, measure, judge, **more):
        """Cells that `measure` yields, their rates in percent of what these programs do alone, before and
        after; `judge` (cells, native) makes verdicts of them. Who fails has an entry that says so."""
        kinds = kinds_of(names)
        cells = []
        try:
            before = {kind: self.lately(kind) for kind in kinds}
            for cell in measure():
                cells.append(cell)
            native = {kind: self.of_both(kind, before[kind], self.alone(kind)) for kind in kinds}
        except RuntimeError as error:
            print(f"{name}: {error}", flush=True)
            return {"name": name, "ok": False, "error": str(error), "measured": cells}
        for cell in cells:
            cell["shares"] = {one: round(100 * (value or 0) / native[one.split("-")[0]]["full"], 2)
                              for one, value in cell.pop("rates", {}).items()}
        cells = judge(cells, native)
        print(f"{name}: {sum(cell['ok'] for cell in cells)} of {len(cells)} within limits", flush=True)
        return {"name": name, **more, "native": native, "cells": cells,
                "ok": all(cell["ok"] for cell in cells)}

    def single(self):
        self.load(*SINGLE)
        for name in SINGLE:
            points = 3.0 if name == "long" else 1.0

            def measure(name=name):
                seconds = self.seconds_for(name, self.seconds)
                return (self.cell({name: limit}, seconds) for limit in LIMITS)

            def judge(cells, native, name=name, points=points):
                return [judged(cell, {name: min(cell["limits"][name], native[name]["duty"])}, points)
                        for cell in cells]

            yield self.entry(f"single {name}", [name], measure, judge, points=points)

    def pairs(self):
        self.load(*sorted({name for pair in PAIRS for name in pair}))
        for pair in PAIRS:
            def measure(pair=pair):
                return (self.cell(dict(zip(pair, limits)), self.pair_seconds) for limits in LIMIT_PAIRS)

            def judge(cells, _):
                return [judged(cell, fair(cell["limits"]), 1.5,
                               0.985 * min(sum(cell["limits"].values()), 100)) for cell in cells]

            yield self.entry("pairs " + " + ".join(pair), pair, measure, judge, points=1.5)

    def unlimited(self):
        """Without limits: nothing is lost, and equal parts whatever kernels are like."""
        wanted = ((("gemm", "gemm-1"), 100, 99), (("train", "train-1"), 100, 98),
                  (("small23", "gemm"), 2.0, None))
        self.load(*sorted({name for pair, _, _ in wanted for name in pair}))
        for pair, points, least in wanted:
            def measure(pair=pair):
                yield self.cell({name: 100 for name in pair}, self.seconds)

            def judge(cells, _, pair=pair, points=points, least=least):
                return [judged(cell, {name: 50 for name in pair}, points, least) for cell in cells]

            yield self.entry("unlimited " + " + ".join(pair), pair, measure, judge)

    def bursty(self):
        """Two that together leave a fifth of the GPU: each as if it were alone."""
        pair = ("bursty40", "bursty40-1")
        self.load(*pair)

        def measure():
            for names in ([pair[0]], [pair[1]], pair):
                yield self.cell({name: 100 for name in names}, self.seconds)

        def judge(cells, native):
            alone = {**cells[0]["shares"], **cells[1]["shares"]}
            cell = cells[2]
            parts = {name: round(100 * cell["shares"][name] / max(alone[name], 0.01), 2) for name in pair}
            of_native = {name: round(100 * alone[name] / native["bursty40"]["duty"], 2) for name in pair}
            cell.update(wanted=alone, parts=parts, alone_of_native=of_native,
                        total=round(sum(cell["shares"].values()), 2), ok=min(parts.values()) >= 97)
            return [cell]

        yield self.entry("bursty two of 40 %", pair, measure, judge, least_part=97)

    def live(self):
        """Limits that change while it works."""
        name, every, each = "gemm", 0.01, 2.0
        changes = (30, 70, 20, 90, 50)
        self.load(name)

        def measure():
            worker, = self.shared.get(name)
            at = time.monotonic() + 0.3
            self.shared.limit(name, 50)
            worker.go(at, each * (len(changes) + 1), every)
            for number, cores in enumerate(changes, start=1):
                time.sleep(max(at + number * each - time.monotonic(), 0))
                self.shared.limit(name, cores)
                yield {"limits": {name: cores}, "at": time.monotonic()}
            self.shared.finish([worker])

        def judge(cells, native):
            def share_between(begin, end):
                value = self.shared.workers[name].rate(begin, end)
                return None if value is None else 100 * value / native[name]["full"]

            for cell in cells:
                cores, at = cell["limits"][name], cell.pop("at")
                after = effective_after(share_between, at, cores)
                cell.update(shares={name: round(share_between(at + 0.2, at + each) or 0, 2)},
                            wanted={name: cores}, effective_after_s=after,
                            ok=after is not None and after <= 0.2)
            return cells

        yield self.entry("live", [name], measure, judge, limit_s=0.2)

    def four(self):
        """Four processes of one tenant: its limit holds for all of them together."""
        names = [f"gemm-in{number}" for number in range(4)]
        self.native.load("gemm")

        def measure():
            some = self.shared.get_in_one_tenant("four", 25, names)
            at = time.monotonic() + 0.3
            end = at + self.settle + self.seconds
            for one in some:
                one.go(at, self.settle + self.seconds, 0.1)
            time.sleep(max(end - time.monotonic(), 0))
            self.shared.limit("four", 100)
            self.shared.finish(some)
            yield {"limits": {"four": 25}, "clock": self.clocks.mean(at + self.settle, end),
                   "rates": {one.name: one.rate(at + self.settle, end) for one in some}}

        def judge(cells, _):
            total = round(sum(cells[0]["shares"].values()), 2)
            cells[0].update(total=total, wanted={"four": 25}, ok=abs(total - 25) <= 1)
            return cells

        yield self.entry("four in one tenant", names, measure, judge)

    def long(self):
        """Nothing drifts and nothing leaks."""
        pair = ("gemm", "train")
        self.load(*pair)
        sizes = []
        # What is measured alone afterwards takes time, too.
        seconds = min(LONG, int(self.bench.left()) - 50)
        slice_s = max(seconds / 10, 1)

        def measure():
            workers = self.shared.get(*pair)
            scheduler = self.bench.status(self.shared.environment)["scheduler"]["pid"]
            for name in pair:
                self.shared.limit(name, 50)
            at = time.monotonic() + 0.3
            for worker in workers:
                worker.go(at, seconds, 0.5)
            for number in range(1, 11):
                time.sleep(max(at + number * slice_s - time.monotonic(), 0))
                sizes.append(size_of(scheduler))
            self.shared.finish(workers)
            for number in range(10):
                begin = at + number * slice_s + (self.settle if number == 0 else 0)
                end = at + (number + 1) * slice_s
                yield {"limits": {name: 50 for name in pair}, "clock": self.clocks.mean(begin, end),
                       "rates": {worker.name: worker.rate(begin, end) for worker in workers}}

        def judge(cells, _):
            return [judged(cell, {name: 50 for name in pair}, 1.5) for cell in cells]

        entry = self.entry("long", pair, measure, judge, seconds=seconds)
        if "cells" in entry:
            drift = {name: round(statistics.mean(cell["shares"][name] for cell in entry["cells"][-3:]) -
                                 statistics.mean(cell["shares"][name] for cell in entry["cells"][1:4]), 2)
                     for name in pair}
            grown = sizes[-1][0] - sizes[1][0]
            entry.update(drift_points=drift,
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
    sections = {
        "single": (270 if quick else 500, compute.single),
        "pairs": (150 if quick else 290, compute.pairs),
        "unlimited": (50 if quick else 90, compute.unlimited),
        "bursty": (60 if quick else 90, compute.bursty),
        "live": (30, compute.live),
        "four": (35 if quick else 45, compute.four),
        "long": (110, compute.long),
    }
    title = "tests/gpu/compute/run.sh build/dev out " + " ".join(words[2:])
    return run_sections(bench, title, sections, wanted or [name for name in sections if name != "long"],
                        after=write_table)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
