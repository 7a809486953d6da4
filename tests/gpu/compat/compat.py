"""Runs the programs of this folder unshared, under `nvshare run` and two at a time, and compares.

compat.py BUILD_DIR OUT [SECTION...]; see run.sh."""

import dataclasses
import pathlib
import subprocess
import sys
import time

import report
from bench import Bench, is_installed, machine, nvcc, overhead_of, result_of, training_overhead

HERE = pathlib.Path(__file__).resolve().parent
SECTIONS = ("view", "cuda", "cupy", "jax", "torch", "overhead")
ROUNDS = 5  # of launches


@dataclasses.dataclass
class Program:
    name: str
    command: list
    limit: int  # seconds
    needs: str = ""  # a Python module


class Runs:
    """Runs programs, all with one scheduler, and looks whether it has seen them."""

    def __init__(self, bench):
        self.bench = bench
        self.environment = bench.environment({
            "TORCHINDUCTOR_CACHE_DIR": str(bench.out / "cache" / "inductor"),
            "TRITON_CACHE_DIR": str(bench.out / "cache" / "triton"),
            "CUPY_CACHE_DIR": str(bench.out / "cache" / "cupy"),
        })
        self.count = 0

    def used(self, tenant):
        """Nanoseconds of GPU time that the scheduler has seen of a tenant; 0 when it is not there."""
        for one in self.bench.status(self.environment).get("tenants", []):
            if one["name"] == tenant and one["processes"]:
                return max(one["used"], 1)
        return 0

    def run(self, program, shared, times=1):
        """Runs it so many times at once. One record for each."""
        begin = time.monotonic()
        started = []
        for _ in range(times):
            self.count += 1
            started.append(self.bench.start(f"{program.name}-{self.count}", program.command,
                                            self.environment, [] if shared else None, cwd=HERE))
        seen = {one.name: 0 for one in started}

        def watch():
            for name in seen if shared else []:
                seen[name] = max(seen[name], self.used(name))

        codes, texts = self.bench.wait(started, program.limit, watch)
        records = []
        for name, code in codes.items():
            record = {"code": code, "seconds": round(time.monotonic() - begin, 2), **record_of(texts[name])}
            if shared:
                record["managed"] = seen[name] > 0
            records.append(record)
        return records


def record_of(text):
    """What the program said; of gpu-job, what must be the same each time."""
    result = result_of(text)
    if "kernels" in result:
        return {"digest": f"{result['kernels']}/{result['checksum']}", "versions": {}}
    return result


def compile_runtime_programs(bench):
    """The .cu with the CUDA runtime linked in, and with it as a library."""
    programs = []
    for linkage in ("static", "shared"):
        binary = bench.out / f"runtime_api_{linkage}"
        command = [nvcc(), "-O2", "-arch=native", "-cudart", linkage, "-o", str(binary),
                   str(HERE / "runtime_api.cu")]
        try:
            subprocess.run(command, capture_output=True, text=True, timeout=90, check=True)
        except (OSError, subprocess.SubprocessError) as error:
            print(f"compat: nvcc: {getattr(error, 'stderr', None) or error}", file=sys.stderr)
            continue
        programs.append(Program(f"cuda-runtime-{linkage}", [str(binary)], 30))
    return programs


def python(name, limit, needs, *arguments):
    return Program(name.replace("_", "-"), [sys.executable, str(HERE / f"{name}.py"), *arguments], limit,
                   needs)


def programs_of(section, bench):
    job = bench.program("gpu-job")
    if section == "cuda":
        work = [job, "--launches", "1000", "--kernel", "500us", "--memory", "1Gi", "--check"]
        return [Program("cuda-driver", work, 40),
                Program("cuda-driver-graph", work + ["--pattern", "graph"], 40),
                Program("cuda-driver-threads", work + ["--per-thread-stream", "--threads", "4"], 40),
                *compile_runtime_programs(bench)]
    if section == "cupy":
        return [python("cupy_ops", 60, "cupy")]
    if section == "jax":
        return [python("jax_train", 80, "jax")]
    return [python("torch_eager", 60, "torch"), python("torch_graphs", 60, "torch"),
            python("torch_compile", 150, "torch")]


def compare(program, runs):
    """The three ways, and whether they agree."""
    if program.needs and not is_installed(program.needs):
        return {"name": program.name, "skipped": f"{program.needs} is not installed"}
    alone = runs.run(program, shared=False)[0]
    shared = runs.run(program, shared=True)[0]
    pair = runs.run(program, shared=True, times=2)
    together = [shared, *pair]
    wanted = alone.get("digest")
    entry = {"name": program.name, "versions": alone.get("versions", {}), "alone": alone,
             "shared": shared, "pair": pair}
    entry["equal"] = wanted is not None and all(one.get("digest") == wanted for one in together)
    entry["managed"] = all(one.get("managed") for one in together)
    entry["ok"] = (entry["equal"] and entry["managed"] and
                   all(one["code"] == 0 for one in [alone, *together]))
    return entry


def measure_overheads(runs):
    # Both ways in one process: between processes the same launches differ by more than a tenth.
    cost = Program("launches", [runs.bench.program("launch-cost")], 20)
    said = [runs.run(cost, shared=True)[0] for _ in range(ROUNDS)]
    alone, shared = ([float(one[key]) for one in said if key in one] for key in ("without_ns", "with_ns"))
    entries = [overhead_of("20,000 empty launches", 2.0, alone, shared)]
    if is_installed("torch"):
        step = python("torch_eager", 60, "torch", "--time", "40")
        entries.append(training_overhead(runs.bench, step.command, runs.environment))
    return entries


def views(runs):
    """How much memory programs see under a limit, each in its own way: MiB, one number."""
    limit = 8192
    ways = [("nvidia-smi", "", ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"])]
    for module, code in (
            ("torch", "import torch; print(torch.cuda.get_device_properties(0).total_memory >> 20)"),
            ("pynvml", "import pynvml; pynvml.nvmlInit(); print("
                       "pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).total >> 20)")):
        ways.append((module, module, [sys.executable, "-W", "ignore", "-c", code]))
    entries = []
    for name, needs, command in ways:
        if needs and not is_installed(needs):
            entries.append({"name": name, "skipped": f"{needs} is not installed"})
            continue
        said = subprocess.run([runs.bench.nvshare, "run", "--mem", f"{limit}Mi", "--", *command],
                              env=runs.environment, stdout=subprocess.PIPE, text=True, timeout=60,
                              check=False).stdout.strip()
        entries.append({"name": name, "said": said, "limit": limit, "ok": said == str(limit)})
    return entries


def main(words):
    build, out, *sections = words
    unknown = set(sections) - set(SECTIONS)
    if unknown:
        print(f"compat: no such section: {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    bench = Bench("compat", build, out)
    runs = Runs(bench)
    results = {"machine": machine(), "views": [], "programs": [], "overheads": []}
    for section in sections or SECTIONS:
        if section == "view":
            results["views"] = views(runs)
        elif section == "overhead":
            results["overheads"] = measure_overheads(runs)
        else:
            for program in programs_of(section, bench):
                results["programs"].append(compare(program, runs))
                print(report.line_of(results["programs"][-1]), flush=True)
        report.write(results, bench.out)  # so that something is there if time runs out
    print(report.table(results))
    judged = results["views"] + results["programs"] + results["overheads"]
    return 0 if all(entry.get("ok", True) for entry in judged) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
