"""Jobs that together have more memory than the card: how long they take, what moves, what is lost.

memory.py BUILD_DIR OUT [SECTION...]; see run.sh."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

GIB = 1 << 30
# Of each job, in launches; one takes about 3.5 ms.
LAUNCHES = int(os.environ.get("MEMORY_LAUNCHES", "13000"))
SECTIONS = ("pair", "pair30", "four")


class Bench:
    def __init__(self, build, out):
        self.build = pathlib.Path(build).resolve()
        self.out = pathlib.Path(out).resolve()
        self.out.mkdir(parents=True, exist_ok=True)
        self.nvshare = str(self.build / "bin" / "nvshare")
        self.running = []
        self.runs = 0

    def environment(self, settings):
        self.runs += 1
        # A scheduler of its own for each run; short, for there is a limit to paths of sockets.
        return {**os.environ, "NVSHARE_RUN_DIR": f"/tmp/nvshare-memory-{os.getpid()}-{self.runs}",
                "PYTHONDONTWRITEBYTECODE": "1", "CUBLAS_WORKSPACE_CONFIG": ":4096:8", **settings}

    def start(self, name, command, environment, shared):
        prefix = [self.nvshare, "run", "--name", name, "--"] if shared else []
        log = open(self.out / f"{self.runs:02}-{name}-{'shared' if shared else 'alone'}.log", "w+")
        process = subprocess.Popen(prefix + command, stdout=log, stderr=subprocess.STDOUT,
                                   env=environment, start_new_session=True)
        self.running.append(process)
        return process, log

    def stop(self):
        """Ends what runs: the GPU is not ours alone."""
        for process in self.running:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)

    def status(self, environment):
        try:
            answer = subprocess.run([self.nvshare, "status", "--json"], env=environment,
                                    capture_output=True, timeout=5, check=False).stdout
            return json.loads(answer)
        except (ValueError, subprocess.TimeoutExpired):
            return {}

    def run(self, jobs, settings=None, shared=True, limit=400):
        """Starts the jobs (name -> command) together and waits for all of them."""
        environment = self.environment(settings or {})
        begin = time.monotonic()
        started = {name: self.start(name, command, environment, shared)
                   for name, command in jobs.items()}
        last = {}
        while any(process.poll() is None for process, _ in started.values()):
            if time.monotonic() - begin > limit:
                self.stop()
            if shared:
                now = self.status(environment)
                # As long as there is something to be told about.
                if now.get("gpus") and now["gpus"][0].get("clients", 0) == len(jobs):
                    last = now
            time.sleep(0.5)
        seconds = time.monotonic() - begin
        texts = {}
        codes = {}
        for name, (process, log) in started.items():
            codes[name] = process.wait()
            log.seek(0)
            texts[name] = log.read()
            log.close()
        return {"seconds": round(seconds, 2), "codes": codes, "texts": texts, "status": last}


def job(bench, gib, launches, *more):
    return [str(bench.build / "bin" / "gpu-job"), "--pattern", "train", "--memory", f"{gib}Gi",
            "--piece", "1Gi", "--kernel", "3ms", "--queue", "4", "--launches", str(launches),
            "--progress", "20ms", *more]


def activity(text):
    """When a job got something done: (from, to) in nanoseconds, gaps of 150 ms apart."""
    samples = [(int(a), int(b)) for a, b in re.findall(r"progress at=(\d+) kernels=(\d+)", text)]
    spans = []
    for (_, before), (now, done) in zip(samples, samples[1:]):
        if done == before:
            continue
        if spans and now - spans[-1][1] < 150e6:
            spans[-1][1] = now
        else:
            spans.append([now, now])
    return spans


def switches(texts):
    """Seconds between the end of one job's turn and the beginning of the other's."""
    turns = sorted((span[0], span[1], name) for name, text in texts.items() for span in activity(text))
    lost = []
    for (_, end, name), (begin, _, following) in zip(turns, turns[1:]):
        if name != following:
            lost.append(round((begin - end) / 1e9, 3))
    return lost


def moves(result):
    gpus = result["status"].get("gpus") or [{}]
    return gpus[0].get("moves", {}), gpus[0]


def alone_seconds(bench, gib, launches, known={}):
    """One job by itself, without nvshare."""
    if (gib, launches) not in known:
        result = bench.run({"alone": job(bench, gib, launches)}, shared=False)
        known[(gib, launches)] = result["seconds"] if result["codes"]["alone"] == 0 else None
    return known[(gib, launches)]


def shared_jobs(bench, name, sizes, quantum, limit, launches):
    """Jobs of these sizes (GiB) together, against one after the other."""
    serial = sum(alone_seconds(bench, gib, launches) or 1e9 for gib in sizes)
    jobs = {f"job{i}": job(bench, gib, launches) for i, gib in enumerate(sizes)}
    settings = {"NVSHARE_QUANTUM_MODE": "fixed", "NVSHARE_QUANTUM_FIXED": quantum}
    result = bench.run(jobs, settings)
    moved, gpu = moves(result)
    lost = switches(result["texts"])
    deficit = sum(sizes) * GIB - gpu.get("memory_safe", 0)
    entry = {
        "name": name, "sizes_gib": sizes, "quantum": quantum, "one_after_the_other_s": round(serial, 2),
        "together_s": result["seconds"], "makespan_ratio": round(result["seconds"] / serial, 4),
        "makespan_limit": limit, "switches": len(lost), "lost_per_switch_s": sorted(lost),
        "deficit_gib": round(deficit / GIB, 2), "moved": moved,
        "codes": list(result["codes"].values()),
    }
    if lost:
        entry["out_per_switch_of_deficit"] = round(moved.get("out", 0) / len(lost) / max(deficit, 1), 3)
        entry["lost_median_s"] = sorted(lost)[len(lost) // 2]
    entry["ok"] = entry["makespan_ratio"] <= limit and all(code == 0 for code in entry["codes"])
    return entry


def main(words):
    build, out, *sections = words
    bench = Bench(build, out)
    signal.signal(signal.SIGTERM, lambda *_: (bench.stop(), sys.exit(1)))
    results = {"command": "tests/gpu/memory/run.sh build/dev out " + " ".join(sections), "results": []}
    for section in sections or SECTIONS:
        if section == "pair":
            entry = shared_jobs(bench, "pair", [80, 80], "10s", 1.07, LAUNCHES)
        elif section == "pair30":
            entry = shared_jobs(bench, "pair30", [80, 80], "30s", 1.03, 2 * LAUNCHES)
        elif section == "four":
            entry = shared_jobs(bench, "four", [40, 40, 40, 30], "10s", 1.02, LAUNCHES // 2)
        else:
            print(f"memory: no such section: {section}", file=sys.stderr)
            return 2
        results["results"].append(entry)
        print(json.dumps(entry), flush=True)
        with open(bench.out / "memory.json", "w") as file:
            json.dump(results, file, indent=1)
            file.write("\n")
    return 0 if all(entry["ok"] for entry in results["results"]) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
