"""How exactly GPU time is shared out on a real card: compute.py BUILD_DIR OUT [quick] [SECTION[:WHAT,...]...];
see README.md."""

import os
import statistics
import sys
import time

from bench import Bench, is_installed, run_sections
from shares import drift_of, effective_after, fair, judged, lag_of, leaks_of, mean_of, rate
from table import table_of, write_table
from workers import PAUSE, Clocks, Crew, processor_time, size_of, taken_away

SINGLE = ("gemm", "small", "bursty", "train", "graph", "long")
LIMITS = (10, 25, 50, 75, 90)
LIMIT_PAIRS = ((25, 75), (30, 60), (50, 50), (50, 100), (80, 80))
PAIRS = (("gemm", "gemm-1"), ("train", "train-1"), ("gemm", "small"), ("train", "graph"))
# Between two short kernels a GPU takes longer in one process than in another, the same whenever that process
# is asked: a percent of kernels of 20 us, and as much as a limit may be off. So it is several that are measured.
COPIES = {"small": 4}
LONG = int(os.environ.get("COMPUTE_LONG", "500"))  # seconds
UNITS = 50  # of work alone, that a cell has to be long enough for
RECENT = 150  # seconds for which what a program does alone need not be measured again
DISTURBED = 0.01  # part by which what a program does alone may differ before and after
HOST_BOUND = 0.8  # of a unit's time: who takes longer to submit one may not keep the GPU busy


def kinds_of(names):
    return sorted({name.split("-")[0] for name in names})


def copies_of(kind):
    """The processes by which a kind is measured."""
    return [kind, *(f"{kind}-{number}" for number in range(1, COPIES.get(kind, 1)))]


def parts_of(some):
    """What can be named of a section: `train`, or `train+train-1`."""
    return {"+".join(one): one for one in some}


PARTS = {"single": parts_of((name,) for name in SINGLE), "pairs": parts_of(PAIRS)}


class Compute:
    def __init__(self, bench, quick):
        self.bench = bench
        self.seconds = 3 if quick else 10
        self.alone_seconds = 2 if quick else 4
        self.settle = 1.0
        self.clocks = Clocks()
        # Both stay until the end: what a program does alone is measured between what it does shared.
        self.native = Crew(bench, shared=False)
        self.shared = Crew(bench, shared=True, units=self.unit_ms)
        self.last_alone = {}  # kind -> what it did alone, and when
        self.kept_s = 0  # seconds that the end of an entry takes
        self.only = {}  # section -> what was named of it

    def load(self, *names):
        """All at once. Who cannot be used is found out later, by those who need it."""
        self.native.load(*(copy for kind in kinds_of(names) for copy in copies_of(kind)))
        self.shared.load(*names)

    def ready(self, kind):
        worker = self.native.workers.get(kind)
        return worker.ready() if worker else {}

    def unit_ms(self, kind):
        return self.ready(kind).get("unit_ms")

    def expect_time(self, seconds):
        if self.bench.left() < seconds + self.kept_s:
            raise RuntimeError(f"needs {seconds + self.kept_s:.0f} s, and there are {self.bench.left():.0f} left")

    # --- what a program does alone ---

    def rate_alone(self, kind, steady):
        copies = copies_of(kind)
        self.native.get(*copies)
        seconds = max(self.alone_seconds_of(kind), UNITS * self.unit_ms(kind) / 2000)
        each, windows = {}, []
        for copy in copies:
            rates, _, window = self.native.run({copy: 100}, seconds, 0.5, steady)
            if not rates[copy]:
                raise RuntimeError(f"{copy} got nothing done without nvshare")
            each[copy] = rates[copy]
            windows.append(window)
        if len(each) > 1:
            self.bench.note({"alone": kind, "each": each})
        return statistics.mean(each.values()), self.clocks.mean(windows[0][0], windows[-1][1])

    def alone_seconds_of(self, kind):
        return max(self.alone_seconds / len(copies_of(kind)), min(self.alone_seconds, 2))

    def alone(self, kind):
        """Without nvshare: `full` is all of the GPU, units per second without pauses; `duty` what is left
        of that with them, in percent."""
        full, clock = self.rate_alone(kind, steady=True)
        duty = 100.0
        if kind.startswith("bursty"):
            duty = 100 * self.rate_alone(kind, steady=False)[0] / full
        self.last_alone[kind] = {"full": full, "duty": duty, "clock": clock, "at": time.monotonic()}
        self.bench.note({"alone": kind, **self.last_alone[kind]})
        return self.last_alone[kind]

    def lately(self, kind):
        last = self.last_alone.get(kind)
        return last if last and time.monotonic() - last["at"] < RECENT else self.alone(kind)

    def before_and_after(self, kind, before):
        """So that a card that changes bit by bit does not count. A third time where the two differ: then one of
        them was disturbed, and the other two are to be the same."""
        measured = [before, self.alone(kind)]
        if abs(measured[1]["full"] / before["full"] - 1) > DISTURBED and self.bench.left() > self.kept_s:
            measured.append(self.alone(kind))
        return self.native_of(kind, measured)

    def native_of(self, kind, measured):
        ready = self.ready(kind)
        rates = sorted(one["full"] for one in measured)
        steady = len(rates) == 1 or min(b / a for a, b in zip(rates, rates[1:])) - 1 <= DISTURBED
        return {"full": statistics.median(one["full"] for one in measured),
                "duty": round(statistics.median(one["duty"] for one in measured), 2), **ready,
                "host_bound": ready["submit_ms"] > HOST_BOUND * ready["unit_ms"], "steady": steady,
                "drift_percent": round(100 * (measured[-1]["full"] / measured[0]["full"] - 1), 2),
                "measured": [one["full"] for one in measured], "clock": measured[-1]["clock"],
                "clock_before": measured[0]["clock"]}

    # --- entries ---

    def cell(self, limits, part=1.0):
        """Workers under limits, for a part of a cell's time: what each got done."""
        units = [self.unit_ms(kind) or 0 for kind in kinds_of(limits)]
        seconds = max(part * self.seconds, UNITS * max(units) / 1000 if len(limits) == 1 else 0)
        self.expect_time(PAUSE + self.settle + seconds + 1)
        before = processor_time()
        rates, counted, window = self.shared.run(limits, seconds, self.settle)
        return {"limits": limits, "rates": rates, "clock": self.clocks.mean(*window),
                "taken_away": taken_away(before, processor_time()), "meter": self.meter(),
                "counted": {name: round(value, 2) for name, value in counted.items()}}

    def meter(self):
        """What the scheduler billed lately, what NVML saw, and the difference, in percent of the GPU's time."""
        return next((gpu.get("meter") for gpu in self.bench.status(self.shared.environment).get("gpus", [])), None)

    def single_cell(self, kind, limit):
        """One program, or several of its kind one after the other: the mean of them."""
        copies = copies_of(kind)
        return mean_of(kind, [self.cell({copy: limit}, 1 / len(copies)) for copy in copies])

    def measured(self, name, limits, measure):
        """The cells that `measure` makes, or one that says why there are none."""
        try:
            cells = measure()
        except RuntimeError as error:
            print(f"{name} {limits}: {error}", flush=True)
            cells = [{"limits": limits, "ok": False, "error": str(error)}]
        for cell in cells:
            self.bench.note({"entry": name, **cell})
        return cells

    def entry(self, name, names, runs, judge, **more):
        """`runs`: limits, and a function that makes cells under them; one that fails is a cell that says
        so. Their rates become percent of what these programs do alone, before and after; `judge` (cells,
        native) makes verdicts of those that did not fail."""
        kinds = kinds_of(names)
        self.kept_s = sum((2 if kind.startswith("bursty") else len(copies_of(kind))) *
                          (self.alone_seconds_of(kind) + 1.5) for kind in kinds)
        try:
            self.expect_time(self.kept_s)
            before = {kind: self.lately(kind) for kind in kinds}
        except RuntimeError as error:
            print(f"{name}: {error}", flush=True)
            return {"name": name, "ok": False, "error": str(error)}
        cells = [cell for limits, measure in runs for cell in self.measured(name, limits, measure)]
        try:
            native = {kind: self.before_and_after(kind, before[kind]) for kind in kinds}
        except RuntimeError as error:
            more["error"] = f"afterwards: {error}"
            native = {kind: self.native_of(kind, [before[kind]]) for kind in kinds}
        unsteady = [f"{kind} is not steady without nvshare: " +
                    ", ".join(f"{rate:.1f}" for rate in one["measured"]) + " a second"
                    for kind, one in native.items() if not one["steady"]]
        if unsteady:
            more["error"] = "; ".join(unsteady)
        for cell in cells:
            cell["shares"] = {one: round(100 * (value or 0) / native[one.split("-")[0]]["full"], 2)
                              for one, value in cell.pop("rates", {}).items()}
        failed = [cell for cell in cells if "error" in cell]
        cells = judge([cell for cell in cells if "error" not in cell], native) + failed
        for cell in cells:
            cell["ok"] = cell["ok"] and not unsteady
        print(f"{name}: {sum(cell['ok'] for cell in cells)} of {len(cells)} within limits", flush=True)
        return {"name": name, **more, "native": native, "cells": cells, "scheduler": self.scheduler_size(),
                "ok": bool(cells) and all(cell["ok"] for cell in cells)}

    def scheduler_size(self):
        pid = self.bench.status(self.shared.environment).get("scheduler", {}).get("pid")
        return size_of(pid) if pid else {}

    def cells_of(self, some):
        return [(limits, lambda limits=limits: [self.cell(limits)]) for limits in some]

    def named(self, section):
        return self.only.get(section) or list(PARTS[section].values())

    def single(self):
        kinds = [name for name, in self.named("single")]
        self.load(*(copy for kind in kinds for copy in copies_of(kind)))
        for name in kinds:
            points = 3.0 if name == "long" else 1.0

            def judge(cells, native, name=name, points=points):
                for cell in cells:
                    judged(cell, {name: min(cell["limits"][name], native[name]["duty"])}, points)
                    each = cell.get("each", {})
                    for copy, done in each.items():
                        each[copy] = round(100 * done / native[name]["full"], 2)
                        # Beside the limit it is the process that differs, by up to a percent.
                        cell["ok"] = cell["ok"] and abs(each[copy] - cell["wanted"][name]) <= points + 1
                return cells

            runs = [({name: limit}, lambda limit=limit, name=name: [self.single_cell(name, limit)])
                    for limit in LIMITS]
            yield self.entry(f"single {name}", [name], runs, judge, points=points)

    def pairs(self):
        pairs = self.named("pairs")
        self.load(*sorted({name for pair in pairs for name in pair}))
        for pair in pairs:
            def judge(cells, _):
                return [judged(cell, fair(cell["limits"]), 1.5,
                               0.985 * min(sum(cell["limits"].values()), 100)) for cell in cells]

            runs = self.cells_of([dict(zip(pair, limits)) for limits in LIMIT_PAIRS])
            yield self.entry("pairs " + " + ".join(pair), pair, runs, judge, points=1.5)

    def unlimited(self):
        """Without limits: nothing is lost, and equal parts whatever kernels are like."""
        wanted = ((("gemm", "gemm-1"), 99), (("train", "train-1"), 98), (("small23", "gemm"), None))
        self.load(*sorted({name for pair, _ in wanted for name in pair}))
        for pair, least in wanted:
            def judge(cells, _, pair=pair, least=least):
                return [judged(cell, {name: 50 for name in pair}, 2.0, least) for cell in cells]

            runs = self.cells_of([{name: 100 for name in pair}])
            yield self.entry("unlimited " + " + ".join(pair), pair, runs, judge, points=2.0)

    def bursty(self):
        """Two that together leave a fifth of the GPU: each as if it were alone. Once they pause for so long
        after their work, and once they have so much work every so often."""
        kinds = ("bursty40", "bursty40due")
        self.load(*(name for kind in kinds for name in (kind, f"{kind}-1")))
        for kind in kinds:
            pair = (kind, f"{kind}-1")

            def judge(cells, native, kind=kind, pair=pair):
                alone = {name: native[kind]["duty"] for name in pair}
                for cell in cells:
                    parts = {name: round(100 * cell["shares"][name] / alone[name], 2) for name in pair}
                    cell.update(wanted=alone, parts=parts, total=round(sum(cell["shares"].values()), 2),
                                ok=min(parts.values()) >= 97)
                return cells

            runs = self.cells_of([{name: 100 for name in pair}])
            yield self.entry(f"bursty two {kind}", pair, runs, judge, least_part=97)

    def live(self):
        """Limits that change while it works."""
        name, each, changes = "gemm", 2.0, (50, 30, 70, 20, 90, 50)
        self.load(name)

        def measure():
            self.expect_time(each * len(changes) + 2)
            times = self.shared.run_changing(name, [(number * each, cores) for number, cores in enumerate(changes)],
                                             each * len(changes))
            return [{"limits": {name: cores}, "before": before, "at": at}
                    for at, before, cores in zip(times[1:], changes, changes[1:])]

        def judge(cells, native):
            samples, full = self.shared.workers[name].samples(), native[name]["full"]

            def share_between(begin, end):
                units = rate(samples, begin, end)
                return None if units is None else 100 * units / full

            for cell in cells:
                at, cores = cell.pop("at"), cell["limits"][name]
                lag = lag_of(samples, at, cell["before"] * full / 100, cores * full / 100)
                soon, later = (round(share_between(at + 0.2, at + end) or 0, 2) for end in (0.7, each))
                cell.update(shares={name: later}, wanted={name: cores}, soon=soon, lag_s=lag,
                            effective_after_s=effective_after(share_between, at, cores, until=at + each),
                            ok=(lag is not None and lag <= 0.2 and abs(soon - cores) <= 5 and
                                abs(later - cores) <= 2))
            return cells

        yield self.entry("live", [name], [({name: changes}, measure)], judge, limit_s=0.2)
        yield self.often(name)

    def often(self, name):
        """A change gives nothing back of what was used: else many of them would be worth much."""
        low, high, every = 15, 25, 0.05
        seconds = self.settle + self.seconds / 2

        def measure():
            self.expect_time(seconds + 2)
            changes = [(number * every, (low, high)[number % 2]) for number in range(int(seconds / every))]
            times = self.shared.run_changing(name, changes, seconds)
            done = self.shared.workers[name].rate(times[0] + self.settle, times[0] + seconds)
            return [{"limits": {name: (low + high) / 2}, "changes": len(times), "rates": {name: done}}]

        def judge(cells, _):
            return [judged(cell, cell["limits"], 1.0) for cell in cells]

        return self.entry("live often", [name], [({name: (low, high)}, measure)], judge, points=1.0)

    def four(self):
        """Four processes of one tenant: its limit holds for all of them together."""
        names = [f"gemm-in{number}" for number in range(4)]
        self.native.load("gemm")

        def measure():
            some = self.shared.get_in_one_tenant("four", 25, names)
            self.expect_time(PAUSE + self.settle + self.seconds + 1)
            rates, counted, window = self.shared.work(some, {"four": 25}, self.seconds, self.settle)
            return [{"limits": {"four": 25}, "rates": rates, "counted": counted,
                     "clock": self.clocks.mean(*window)}]

        def judge(cells, _):
            for cell in cells:
                total = round(sum(cell["shares"].values()), 2)
                cell.update(total=total, wanted={"four": 25}, ok=abs(total - 25) <= 1)
            return cells

        yield self.entry("four in one tenant", names, [({"four": 25}, measure)], judge)

    def nested(self):
        """A tenant of 40 % with two runs of two processes each, beside one of 60 %."""
        for kind in ("gemm", "train"):
            yield self.nested_of(kind)

    def nested_of(self, kind):
        tenant, beside = f"{kind}-tenant", f"{kind}-beside"
        runs = {f"{tenant}-{run}": [f"{kind}-{run}{number}" for number in (1, 2)] for run in ("a", "b")}
        inside = [name for names in runs.values() for name in names]
        limits = {tenant: 40, beside: 60}
        self.native.load(kind)

        def measure():
            some = self.shared.get_in_runs(tenant, limits[tenant], runs)
            some += self.shared.get(beside)
            self.expect_time(PAUSE + self.settle + self.seconds + 1)
            before = processor_time()
            rates, counted, window = self.shared.work(some, limits, self.seconds, self.settle)
            return [{"limits": limits, "rates": rates, "counted": counted, "meter": self.meter(),
                     "taken_away": taken_away(before, processor_time()), "clock": self.clocks.mean(*window)}]

        def judge(cells, _):
            for cell in cells:
                each = cell["shares"]
                cell["each"] = dict(each)
                cell["shares"] = {run: round(sum(each[name] for name in names), 2) for run, names in runs.items()}
                cell["shares"][beside] = each[beside]
                judged(cell, {**dict.fromkeys(runs, 20.0), beside: 60.0}, 1.0, 98.5)
                cell["tenant"] = round(sum(each[name] for name in inside), 2)
                cell["ok"] = cell["ok"] and abs(cell["tenant"] - 40) <= 1
            return cells

        return self.entry(f"nested {kind}", [*inside, beside], [(limits, measure)], judge, points=1.0)

    def long(self):
        """Nothing drifts and nothing leaks."""
        pair = ("gemm", "train")
        self.load(*pair)
        limits = {name: 50 for name in pair}
        sizes = []
        # What is measured alone before and after takes time, too.
        seconds = min(LONG, int(self.bench.left()) - 40)

        def measure():
            workers = self.shared.get(*pair)
            for name, cores in limits.items():
                self.shared.limit(name, cores)
            at = time.monotonic() + PAUSE
            for worker in workers:
                worker.go(at, seconds, 0.5)
            ends = [at + number * seconds / 10 for number in range(1, 11)]
            for end in ends:
                time.sleep(max(end - time.monotonic(), 0))
                sizes.append(self.sizes())
                self.bench.note({"long": sizes[-1]})
                self.shared.look_after(workers)
            self.shared.finish(workers)
            return [{"limits": limits, "clock": self.clocks.mean(begin, end),
                     "rates": {worker.name: worker.rate(begin, end) for worker in workers}}
                    for begin, end in zip([at + self.settle, *ends], ends)]

        def judge(cells, _):
            return [judged(cell, limits, 1.5) for cell in cells]

        entry = self.entry("long", pair, [(limits, measure)], judge, seconds=seconds)
        if len(entry.get("cells", [])) == 10:
            entry.update(drift_points=drift_of([cell["shares"] for cell in entry["cells"]]), sizes=sizes)
            entry["leaks"] = leaks_of(sizes)
            entry["ok"] = (entry["ok"] and not entry["leaks"] and
                           max(abs(value) for value in entry["drift_points"].values()) <= 1)
        yield entry

    def sizes(self):
        """Of the scheduler and of the processes that it knows: bytes in memory and open files."""
        status = self.bench.status(self.shared.environment)
        sizes = {"scheduler": size_of(status["scheduler"]["pid"])} if "scheduler" in status else {}
        for tenant in status.get("tenants", []):
            for process in tenant["processes"]:
                sizes[tenant["name"]] = {**size_of(process["pid"]), "gpu": process["allocated"]}
        return sizes


def only_of(words):
    """Of `single:train,small` and the like: section -> what was named of it. Who names what there is not is told."""
    only = {}
    for word in words:
        section, _, parts = word.partition(":")
        known = PARTS.get(section, {})
        for part in filter(None, parts.split(",")):
            if part not in known:
                raise ValueError(f"no such part of {section}: {part} (there are: {', '.join(known) or 'none'})")
            only.setdefault(section, []).append(known[part])
    return only


def main(words):
    build, out, *wanted = words
    quick = "quick" in wanted
    wanted = [word for word in wanted if word != "quick"]
    if not is_installed("torch"):
        print("compute: PyTorch is needed", file=sys.stderr)
        return 2
    try:
        only = only_of(wanted)
    except ValueError as error:
        print(f"compute: {error}", file=sys.stderr)
        return 2
    wanted = list(dict.fromkeys(word.partition(":")[0] for word in wanted))
    compute = Compute(Bench("compute", build, out), quick)
    compute.only = only
    # What each needs at least to be worth beginning: it measures what there is time for.
    sections = {name: (110 if name == "long" else 40, getattr(compute, name))
                for name in ("single", "pairs", "unlimited", "bursty", "live", "four", "nested", "long")}
    settings = [f"{name}={os.environ[name]}" for name in ("BENCH_LIMIT", "COMPUTE_LONG") if name in os.environ]
    title = " ".join([*settings, "tests/gpu/compute/run.sh build/dev out", *words[2:]])
    return run_sections(compute.bench, title, sections, wanted or [name for name in sections if name != "long"],
                        after=write_table, last_words=table_of)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
