"""Runs the programs of this folder unshared, under `nvshare run` and two at a time, and compares.

compat.py BUILD_DIR OUT [SECTION...]; see run.sh."""

import dataclasses
import json
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import sys
import time

import report

HERE = pathlib.Path(__file__).resolve().parent
SECTIONS = ("view", "cuda", "cupy", "jax", "torch", "overhead")
ROUNDS = 5  # of the training step


@dataclasses.dataclass
class Program:
    name: str
    command: list
    limit: int  # seconds
    needs: str = ""  # a Python module


class Bench:
    """The programs of nvshare, and a folder for what is written."""

    def __init__(self, build, out):
        self.build = pathlib.Path(build).resolve()
        self.out = pathlib.Path(out).resolve()
        self.out.mkdir(parents=True, exist_ok=True)
        self.nvshare = str(self.build / "bin" / "nvshare")
        self.environment = {
            **os.environ,
            # A scheduler of its own; short, for there is a limit to paths of sockets.
            "NVSHARE_RUN_DIR": f"/tmp/nvshare-compat-{os.getpid()}",
            "TORCHINDUCTOR_CACHE_DIR": str(self.out / "cache" / "inductor"),
            "TRITON_CACHE_DIR": str(self.out / "cache" / "triton"),
            "CUPY_CACHE_DIR": str(self.out / "cache" / "cupy"),
            "PYTHONHASHSEED": "0",
            "PYTHONDONTWRITEBYTECODE": "1",
            "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        }
        self.runs = 0
        self.running = []

    def stop(self):
        """Ends what runs: the GPU is not ours alone."""
        for process, _, _ in self.running:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)

    def start(self, program, shared):
        """A process, the tenant's name (or none), and the file that it writes to."""
        self.runs += 1
        tenant = f"{program.name}-{self.runs}" if shared else None
        prefix = [self.nvshare, "run", "--name", tenant, "--"] if shared else []
        log = open(self.out / f"{self.runs:03}-{program.name}-{'shared' if shared else 'alone'}.log",
                   "w+")
        process = subprocess.Popen(prefix + program.command, stdout=log, stderr=subprocess.STDOUT,
                                   env=self.environment, cwd=HERE, start_new_session=True)
        return process, tenant, log

    def used(self, tenant):
        """Nanoseconds of GPU time that the scheduler has seen of a tenant; 0 when it is not there."""
        try:
            answer = subprocess.run([self.nvshare, "status", "--json"], env=self.environment,
                                    capture_output=True, timeout=5, check=False).stdout
            for one in json.loads(answer)["tenants"]:
                if one["name"] == tenant and one["processes"]:
                    return max(one["used"], 1)
        except (ValueError, KeyError, subprocess.TimeoutExpired):
            pass
        return 0

    def run(self, program, shared, times=1):
        """Runs it so many times at once. One record for each."""
        begin = time.monotonic()
        self.running = started = [self.start(program, shared) for _ in range(times)]
        seen = {tenant: 0 for _, tenant, _ in started if tenant}
        while any(process.poll() is None for process, _, _ in started):
            if time.monotonic() - begin > program.limit:
                for process, _, _ in started:
                    if process.poll() is None:
                        os.killpg(process.pid, signal.SIGKILL)
                break
            for tenant in seen:
                seen[tenant] = max(seen[tenant], self.used(tenant))
            time.sleep(0.05)
        records = []
        for process, tenant, log in started:
            record = {"code": process.wait(), "seconds": round(time.monotonic() - begin, 2)}
            record.update(result_of(log))
            if tenant:
                record["managed"] = seen[tenant] > 0
            records.append(record)
            log.close()
        return records


def result_of(log):
    """What the program said in its RESULT line (or gpu-job in its own), or its last words."""
    log.seek(0)
    text = log.read()
    for line in reversed(text.splitlines()):
        if line.startswith("RESULT "):
            return json.loads(line[len("RESULT "):])
        if line.startswith("launches="):
            values = dict(word.split("=") for word in line.split())
            return {key: float(values[key]) for key in ("with_ns", "without_ns")}
        if line.startswith("kernels="):
            values = dict(word.split("=") for word in line.split())
            return {"digest": values["kernels"] + "/" + values["checksum"], "versions": {}}
    return {"error": text[-400:]}


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


def nvcc():
    return shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"


def python(name, limit, needs, *arguments):
    return Program(name.replace("_", "-"), [sys.executable, str(HERE / f"{name}.py"), *arguments], limit,
                   needs)


def programs_of(section, bench):
    job = str(bench.build / "bin" / "gpu-job")
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


def is_installed(module):
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec('{module}') is None)"
    return subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def compare(program, bench):
    """The three ways, and whether they agree."""
    if program.needs and not is_installed(program.needs):
        return {"name": program.name, "skipped": f"{program.needs} is not installed"}
    alone = bench.run(program, shared=False)[0]
    shared = bench.run(program, shared=True)[0]
    pair = bench.run(program, shared=True, times=2)
    runs = [shared, *pair]
    wanted = alone.get("digest")
    entry = {"name": program.name, "versions": alone.get("versions", {}), "alone": alone,
             "shared": shared, "pair": pair}
    entry["equal"] = wanted is not None and all(one.get("digest") == wanted for one in runs)
    entry["managed"] = all(one.get("managed") for one in runs)
    entry["ok"] = (entry["equal"] and entry["managed"] and
                   all(one["code"] == 0 for one in [alone, *runs]))
    return entry


def interleaved(bench, program, rounds, key):
    """The medians of a number, unshared and shared, one after the other so many times."""
    values = {False: [], True: []}
    for _ in range(rounds):
        for shared in (False, True):
            record = bench.run(program, shared)[0]
            if key in record:
                values[shared].append(record[key])
    return values


def overhead_of(name, limit, values):
    entry = {"name": name, "limit_percent": limit, "alone": values[False], "shared": values[True]}
    if values[False] and values[True]:
        alone = statistics.median(values[False])
        shared = statistics.median(values[True])
        entry["percent"] = round(100 * (shared / alone - 1), 3)
    entry["ok"] = "percent" in entry and entry["percent"] <= limit
    return entry


def measure_overheads(bench):
    # Both ways in one process: between processes the same launches differ by more than a tenth.
    cost = Program("launches", [str(bench.build / "bin" / "launch-cost")], 20)
    runs = [bench.run(cost, shared=True)[0] for _ in range(ROUNDS)]
    values = {shared: [run[key] for run in runs if key in run]
              for shared, key in ((False, "without_ns"), (True, "with_ns"))}
    entries = [overhead_of("20,000 empty launches", 2.0, values)]
    if is_installed("torch"):
        step = python("torch_eager", 60, "torch", "--time", "40")
        entries.append(overhead_of("PyTorch training step", 0.5,
                                   interleaved(bench, step, ROUNDS, "step_ms")))
    return entries


def views(bench):
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
        said = subprocess.run([bench.nvshare, "run", "--mem", f"{limit}Mi", "--", *command],
                              env=bench.environment, stdout=subprocess.PIPE, text=True, timeout=60,
                              check=False).stdout.strip()
        entries.append({"name": name, "said": said, "limit": limit, "ok": said == str(limit)})
    return entries


def main(words):
    build, out, *sections = words
    unknown = set(sections) - set(SECTIONS)
    if unknown:
        print(f"compat: no such section: {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    bench = Bench(build, out)
    # run.sh's limit: nothing is left behind on the GPU.
    signal.signal(signal.SIGTERM, lambda *_: (bench.stop(), sys.exit(1)))
    results = {"machine": report.machine(), "views": [], "programs": [], "overheads": []}
    for section in sections or SECTIONS:
        if section == "view":
            results["views"] = views(bench)
        elif section == "overhead":
            results["overheads"] = measure_overheads(bench)
        else:
            for program in programs_of(section, bench):
                results["programs"].append(compare(program, bench))
                print(report.line_of(results["programs"][-1]), flush=True)
        report.write(results, bench.out)  # so that something is there if time runs out
    print(report.table(results))
    judged = results["views"] + results["programs"] + results["overheads"]
    return 0 if all(entry.get("ok", True) for entry in judged) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
