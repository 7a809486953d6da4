"""Jobs that together have more memory than the card: how long they take, what moves, what is lost.

memory.py BUILD_DIR OUT [SECTION...]; see run.sh."""

import functools
import json
import os
import pathlib
import statistics
import sys
import time

from bench import Bench, is_installed, last_line, result_of, run_sections, training_overhead
from turns import Moves, activity, idle_seconds, lost_of, moved_of_deficit, switches

HERE = pathlib.Path(__file__).resolve().parent
GIB = 1 << 30
# To try it on a small (software) card: sizes, and times and amounts of work, are divided by these.
SCALE = int(os.environ.get("MEMORY_SCALE", "1"))
SPEED = int(os.environ.get("MEMORY_SPEED", "1"))
LAUNCHES = int(os.environ.get("MEMORY_LAUNCHES", "13000")) // SPEED  # of 80 GiB; one takes 3.5 to 5 ms
LOOK = 0.02  # seconds between questions about moves


def size(gib):
    return f"{gib * 1024 // SCALE}Mi"


def fixed(seconds):
    return {"NVSHARE_QUANTUM_MODE": "fixed", "NVSHARE_QUANTUM_FIXED": f"{seconds * 1000 // SPEED}ms"}


def job(bench, pattern, gib, launches):
    # A launch is waited for by itself, while the next is there already: so progress is exact.
    # What is never changed is filled first: memory that is all zeros need not be moved.
    return [bench.program("gpu-job"), "--pattern", pattern, *(["--fill"] if pattern == "infer" else []),
            "--memory", size(gib), "--piece", size(1), "--kernel", "3ms", "--queue", "1",
            "--launches", str(launches), "--progress", "5ms"]


class Sharing:
    """A run of several commands at the same time, and everything that was seen of it."""

    def __init__(self, bench, jobs, settings, limit, options=("--backend", "swap")):
        environment = bench.environment(settings)
        begin = time.monotonic()
        started = [bench.start(name, command, environment, options) for name, command in jobs.items()]
        self.moves = Moves(begin)
        self.codes, self.texts = bench.wait(
            started, limit, lambda: self.moves.look(time.monotonic(), bench.status(environment)), LOOK)
        self.seconds = round(time.monotonic() - begin, 2)
        self.good = all(code == 0 for code in self.codes.values())
        self.begin = begin

    def first_progress(self):
        """Seconds from the start to the first launch that was done, of each."""
        begins = [min(activity(text), default=[0])[0] / 1e9 for text in self.texts.values()]
        return [round(max(begin - self.begin, 0), 2) for begin in begins]

    def last_words(self):
        return {name: f"ended with {code}: {last_line(self.texts[name])}"
                for name, code in self.codes.items() if code != 0}


class Memory:
    def __init__(self, bench):
        self.bench = bench

    @functools.cached_property
    def speed_of_link(self):
        """GiB/s of plain pinned copies: out, in, and both at once together."""
        path = self.bench.logs / "link.json"
        command = [self.bench.program("swap_bench"), "--sizes", size(8), "--both", size(8), "--no-checkpoint",
                   "--out", str(path)]
        codes, texts = self.bench.wait([self.bench.start("link", command, self.bench.environment())], 120)
        if codes["link"] != 0:
            raise RuntimeError(f"swap_bench has ended with {codes['link']}: {last_line(texts['link'])}")
        measured = json.loads(path.read_text())
        self.bench.note({"link": measured})
        return measured

    def link(self):
        measured = self.speed_of_link
        yield {"name": "link", **measured["plain_copy"], "of_arena": measured["plain_copy_of_arena"],
               "two_processes": measured["two_processes"], "swap": measured["swap"], "ok": True}

    @functools.lru_cache
    def alone(self, gib, pattern="train"):
        """Without nvshare: seconds beside the work, and of a launch. Jobs' work is so many launches."""
        launches = max(LAUNCHES // 4, 100)
        command = job(self.bench, pattern, gib, launches)
        begin = time.monotonic()
        codes, texts = self.bench.wait([self.bench.start("alone", command, self.bench.environment())],
                                       150, every=0.01)
        seconds = time.monotonic() - begin
        if codes["alone"] != 0:
            raise RuntimeError(f"alone has ended with {codes['alone']}: {last_line(texts['alone'])}")
        worked = float(result_of(texts["alone"])["seconds"])
        return {"start_and_end_s": round(seconds - worked, 3), "launch_s": worked / launches}

    def alone_seconds(self, gib, launches):
        known = self.alone(gib)
        return known["start_and_end_s"] + launches * known["launch_s"]

    def together(self, name, sizes, quantum, limit, launches, settings=None):
        """Jobs of these sizes (GiB) together, against one after the other without nvshare."""
        serial = sum(self.alone_seconds(gib, launches) for gib in sizes)
        jobs = {f"job{i}": job(self.bench, "train", gib, launches) for i, gib in enumerate(sizes)}
        shared = Sharing(self.bench, jobs, {**fixed(quantum), **(settings or {})}, 1.5 * serial + 60)
        deficit = sum(sizes) * GIB / SCALE - shared.moves.gpu().get("memory_safe", 0)
        entry = {
            "name": name, "sizes_gib": sizes, "quantum_s": quantum / SPEED, "launches": launches,
            "alone": {gib: self.alone(gib) for gib in set(sizes)},
            "one_after_the_other_s": round(serial, 2), "together_s": shared.seconds,
            "makespan_ratio": round(shared.seconds / serial, 4), "makespan_limit": limit,
            "first_progress_s": shared.first_progress(), "idle_s": idle_seconds(shared.texts),
            "deficit_gib": round(deficit / GIB, 3), "moved": shared.moves.total(),
            "outs": [one for job_name in jobs for one in shared.moves.outs(job_name)],
            "failed": shared.last_words(),
        }
        entry["makespan_ok"] = shared.good and entry["makespan_ratio"] <= limit
        entry["ok"] = entry["makespan_ok"]
        return entry, shared

    def two(self, name, quantum, limit, launches):
        """Two of 80 GiB: also what each switch may cost."""
        try:
            both_ways = self.speed_of_link["plain_copy"]["both_at_once"]
            why = {}
        except RuntimeError as error:  # how long they take together is still worth knowing
            both_ways, why = float("inf"), {"error": str(error)}
        entry, shared = self.together(name, [80, 80], quantum, limit, launches)
        entry.update(lost_of(switches(shared.texts, self.alone(80)["launch_s"])), **why)
        entry["lost_limit_s"] = round(1.25 * 2 * entry["deficit_gib"] / both_ways, 3)
        entry.update(moved_of_deficit([one for job_name in ("job0", "job1") for one in shared.moves.episodes(job_name)],
                                      max(shared.first_progress()), entry["deficit_gib"] * GIB))
        for kind in ("median", "mean"):
            value = entry.get(f"lost_{kind}_s")
            entry[f"lost_{kind}_ok"] = value is not None and value <= entry["lost_limit_s"]
        entry["moved_limit"] = 1.2
        entry["moved_ok"] = 0 < entry["moved_worst_of_deficit"] <= entry["moved_limit"]
        entry["ok"] = (entry["makespan_ok"] and entry["lost_median_ok"] and entry["lost_mean_ok"] and
                       entry["moved_ok"])
        yield entry

    def exchange(self):
        """Card and arena are full but for a GiB: what leaves takes the place of what comes."""
        launches = LAUNCHES // 2
        arena = 20.5
        entry, shared = self.together("exchange", [79, 79], 5, 2, launches,
                                      {"NVSHARE_ARENA_LIMIT": f"{int(arena * 1024) // SCALE}Mi"})
        entry.update(lost_of(switches(shared.texts, self.alone(79)["launch_s"])))
        link = self.speed_of_link["plain_copy"]
        entry["arena_gib"] = arena / SCALE
        entry["arena_free_gib"] = round(arena / SCALE - entry["deficit_gib"], 3)
        entry["one_way_gib_s"] = round((link["out"] + link["in"]) / 2, 2)
        if entry.get("lost_median_s"):
            # Both ways together: the deficit leaves and the deficit comes.
            entry["rate_gib_s"] = round(2 * entry["deficit_gib"] / entry["lost_median_s"], 2)
            entry["rate_of_one_way"] = round(entry["rate_gib_s"] / entry["one_way_gib_s"], 3)
        entry["rate_limit"] = 0.8
        entry["ok"] = shared.good and entry.get("rate_of_one_way", 0) >= entry["rate_limit"]
        yield entry

    def shortage(self):
        """Two trainings of 86 GiB, whose shortage fits into host memory; the scheduler is killed in between."""
        if not is_installed("torch"):
            yield {"name": "shortage", "skipped": "torch is not installed"}
            return
        program = [sys.executable, str(HERE / "torch_swap.py"), "--ballast", str(max(82 // SCALE, 1))]
        codes, texts = self.bench.wait(
            [self.bench.start("reference", program + ["--seconds", str(25 / SPEED)], self.bench.environment())], 120)
        reference = result_of(texts["reference"])
        if "steps" not in reference:
            raise RuntimeError(f"reference has ended with {codes['reference']}: {last_line(texts['reference'])}")
        environment = self.bench.environment(fixed(4))
        scheduler = self.start_scheduler(environment)
        jobs = [self.bench.start(f"train{i}", program + ["--steps", str(reference["steps"])], environment, ())
                for i in range(2)]
        safe = {}
        moves = Moves(time.monotonic())

        def look():
            moves.look(time.monotonic(), self.bench.status(environment))
            nonlocal scheduler
            known = moves.gpu().get("memory_safe", 0)
            taking_turns = moves.total().get("out", 0) > 20 * GIB / SCALE
            if "before_gib" not in safe and taking_turns:
                safe["before_gib"] = round(known / GIB, 3)
                scheduler.process.kill()
                scheduler.process.wait()
                self.bench.forget([scheduler])
                scheduler = self.start_scheduler(environment)
                safe["killed_at"] = time.monotonic()
            elif "killed_at" in safe and "after_gib" not in safe and time.monotonic() - safe["killed_at"] > 33:
                safe["after_gib"] = round(known / GIB, 3)

        codes, texts = self.bench.wait(jobs, 200, look, LOOK)
        said = {name: result_of(text) for name, text in texts.items()}
        known = self.bench.status(environment).get("scheduler", {})
        arena = {key: known.get(key) for key in ("arena_used", "arena_limit")}
        scheduler.process.terminate()
        entry = {"name": "shortage", "steps": reference["steps"], "codes": codes, "arena": arena,
                 "before_gib": safe.get("before_gib"), "after_gib": safe.get("after_gib"), "moved": moves.total()}
        for key in ("losses", "ballast", "digest"):
            entry[f"{key}_equal"] = all(one.get(key) == reference[key] for one in said.values())
        if not entry["digest_equal"]:
            entry["said"] = said
        same = bool(safe.get("after_gib")) and abs(safe["after_gib"] - safe["before_gib"]) < 0.5
        entry["ok"] = (all(code == 0 for code in codes.values()) and entry["losses_equal"] and
                       entry["ballast_equal"] and entry["digest_equal"] and same)
        yield entry

    def start_scheduler(self, environment):
        """One that outlives the runs; returns when it answers."""
        one = self.bench.start("scheduler", [self.bench.program("nvshare-scheduler")], environment)
        end = time.monotonic() + 10
        while not self.bench.status(environment) and time.monotonic() < end:
            time.sleep(0.02)
        return one

    def four(self):
        yield self.together("four", [40, 40, 40, 30], 10, 1.02, LAUNCHES // 2)[0]

    def inference(self):
        """Two of 80 GiB that change half a percent of it: what is unchanged need not be copied out."""
        limit = 0.1
        known = self.alone(80, "infer")
        launches = int(32 / SPEED / known["launch_s"])
        jobs = {f"server{i}": job(self.bench, "infer", 80, launches) for i in range(2)}
        shared = Sharing(self.bench, jobs, fixed(5), 160)
        # What leaves before a job has begun is no switch.
        outs = {name: [one for one in shared.moves.outs(name) if one["until"] > begin]
                for name, begin in zip(jobs, shared.first_progress())}
        # The host has nothing yet when memory leaves for the first time.
        later = [one for all_of_it in outs.values() for one in all_of_it[1:]]
        entry = {"name": "inference", "sizes_gib": [80, 80], "quantum_s": 5 / SPEED, "launches": launches,
                 "together_s": shared.seconds, "first_outs": [one[0] for one in outs.values() if one],
                 "outs": later, "out_limit_s": limit, "moved": shared.moves.total(),
                 **lost_of(switches(shared.texts, known["launch_s"])), "failed": shared.last_words()}
        if later:
            entry["out_worst_s"] = max(one["took_s"] for one in later)
            entry["out_median_s"] = statistics.median(one["took_s"] for one in later)
            entry["copied_per_out"] = round(statistics.mean(one["copied"] for one in later))
        entry["ok"] = shared.good and bool(later) and entry["out_worst_s"] <= limit
        yield entry

    def torch(self):
        """A training that must not notice that it is swapped out and in."""
        if not is_installed("torch"):
            yield {"name": "torch", "skipped": "torch is not installed"}
            return
        program = [sys.executable, str(HERE / "torch_swap.py"), "--ballast", str(max(76 // SCALE, 1))]
        environment = self.bench.environment()
        alone = self.bench.start("reference", program + ["--seconds", str(32 / SPEED)], environment)
        codes, texts = self.bench.wait([alone], 120)
        reference = result_of(texts["reference"])
        if "steps" not in reference:
            raise RuntimeError(f"reference has ended with {codes['reference']}: "
                               f"{last_line(texts['reference'])}")
        jobs = {f"train{i}": program + ["--steps", str(reference["steps"])] for i in range(2)}
        for allocator in ("", "expandable_segments:True"):
            # The setting has a new name, and an old one that PyTorch warns of.
            names = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF") if allocator else ()
            shared = Sharing(self.bench, jobs, {**fixed(1), **{name: allocator for name in names}}, 200)
            said = {name: result_of(text) for name, text in shared.texts.items()}
            entry = {"name": "torch " + (allocator or "default allocator"), "steps": reference["steps"],
                     "seconds": shared.seconds, "reference": reference, "swaps_least": 20,
                     "swaps": [len(shared.moves.outs(name)) for name in jobs],
                     "expandable": [one.get("expandable") for one in said.values()],
                     "moved": shared.moves.total(), "failed": shared.last_words()}
            for key in ("losses", "ballast", "digest"):
                entry[f"{key}_equal"] = all(one.get(key) == reference[key] for one in said.values())
            if not entry["digest_equal"]:
                entry["said"] = said
            entry["ok"] = (shared.good and entry["losses_equal"] and entry["ballast_equal"] and
                           entry["digest_equal"] and min(entry["swaps"]) >= entry["swaps_least"])
            yield entry

    def overhead(self):
        """A card that is large enough for all: what the backend costs."""
        environment = self.bench.environment()
        options = ("--backend", "swap")
        for bytes_at_a_time in ("2Mi", "20Mi", "512"):
            yield self.allocations(bytes_at_a_time, environment, options)
        if is_installed("torch"):
            step = [sys.executable, str(HERE.parent / "compat" / "torch_eager.py"), "--time", "40"]
            yield training_overhead(self.bench, step, environment, options)

    def allocations(self, bytes_at_a_time, environment, options, rounds=3):
        """Through the library and straight to the driver, in turns in one process."""
        command = [self.bench.program("launch-cost"), "--allocations", "2000", "--size", bytes_at_a_time]
        results = []
        for _ in range(rounds):
            _, texts = self.bench.wait([self.bench.start("allocations", command, environment, options)], 30)
            result = result_of(texts["allocations"])
            if result.get("library") != "yes":
                raise RuntimeError(f"launch-cost: {result}")
            results.append({key: float(result[key]) for key in ("with_us", "without_us", "ratio")})
        ratio = statistics.median(one["ratio"] for one in results)
        return {"name": f"allocation and free of {bytes_at_a_time}", "runs": results,
                "ratio": round(ratio, 3), "limit": 1.2, "ok": ratio <= 1.2}


def touch_host_memory(bench):
    """A virtual machine gets each page of its memory from its host when it is first touched, at a tenth of the
    speed of later; whoever comes first after it was started would measure that."""
    available = int(next(line for line in open("/proc/meminfo") if line.startswith("MemAvailable")).split()[1]) << 10
    cores = os.cpu_count() or 1
    each = available // 2 // cores >> 21 << 21
    populate = f"import mmap; mmap.mmap(-1, {each}, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).madvise(23)"
    environment = bench.environment()
    bench.wait([bench.start(f"touch{number}", [sys.executable, "-c", populate], environment)
                for number in range(cores)], 60)


def main(words):
    build, out, *wanted = words
    memory = Memory(Bench("memory", build, out))  # first: what comes next is of its time, too
    if SCALE == 1:
        touch_host_memory(memory.bench)
    sections = {
        "link": (40, memory.link),
        "pair": (160, lambda: memory.two("pair", 10, 1.07, LAUNCHES)),
        "pair30": (270, lambda: memory.two("pair30", 30, 1.03, 2 * LAUNCHES)),
        "exchange": (110, memory.exchange),
        "shortage": (140, memory.shortage),
        "four": (200, memory.four),
        "inference": (110, memory.inference),
        "torch": (300, memory.torch),
        "overhead": (150, memory.overhead),
    }
    title = "tests/gpu/memory/run.sh build/dev out " + " ".join(wanted)
    return run_sections(memory.bench, title, sections, wanted)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
