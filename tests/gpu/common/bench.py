"""Starts programs on a real card, unshared and under `nvshare run`, and writes down what comes of it."""

import atexit
import contextlib
import dataclasses
import importlib.util
import json
import os
import pathlib
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import time
import traceback

TRAINING_STEP = "PyTorch training step"


@dataclasses.dataclass
class Running:
    name: str
    process: subprocess.Popen
    log: object
    begin: float  # time.monotonic(), which is the clock of gpu-job's progress, too

    def text(self):
        self.log.seek(0)
        return self.log.read()

    def age(self):
        return time.monotonic() - self.begin

    def last_words(self):
        """How it ended, and the last thing it said."""
        return f"{self.name} has ended with {self.process.poll()}: {last_line(self.text())}"


def end_once(*_):
    # timeout(1) sends its signal twice, and the second must not end the cleaning up.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(1)


class Bench:
    """The programs of nvshare, a folder for what is written, and the time that there is."""

    def __init__(self, name, build, out, settings=None):
        self.name = name
        self.build = pathlib.Path(build).resolve()
        self.out = pathlib.Path(out).resolve()
        # What programs and schedulers say is many files; BENCH_LOGS has them elsewhere.
        self.logs = pathlib.Path(os.environ.get("BENCH_LOGS", self.out / "logs")).resolve()
        for folder in (self.out, self.logs):
            folder.mkdir(parents=True, exist_ok=True)
        self.raw = self.out / f"{name}-raw.jsonl"
        self.raw.unlink(missing_ok=True)
        self.nvshare = self.program("nvshare")
        self.settings = settings or {}
        self.end = time.monotonic() + float(os.environ.get("BENCH_SECONDS", "580"))
        self.schedulers = 0
        self.runs = 0
        self.running = []
        # However it ends, also at run.sh's limit: nothing is left behind on the GPU.
        signal.signal(signal.SIGTERM, end_once)
        atexit.register(self.finish)

    def program(self, name):
        return str(self.build / "bin" / name)

    def note(self, what):
        """Keeps what was seen at once, before anything is made of it: it is there whatever comes later."""
        with open(self.raw, "a") as raw:
            raw.write(json.dumps(what) + "\n")

    def left(self):
        """Seconds until there is no more time."""
        return self.end - time.monotonic()

    def run_directory(self, number):
        # Short, for there is a limit to paths of sockets.
        return f"/tmp/nvshare-{self.name}-{os.getpid()}-{number}"

    def environment(self, settings=None):
        """For programs that are to share one scheduler: each call is another one."""
        self.schedulers += 1
        return {
            **os.environ,
            "NVSHARE_RUN_DIR": self.run_directory(self.schedulers),
            "NVSHARE_HTTP_LISTEN": "off",
            "PYTHONHASHSEED": "0",
            "PYTHONDONTWRITEBYTECODE": "1",
            "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
            **self.settings,
            **(settings or {}),
        }

    def start(self, name, command, environment, shared=None, **more):
        """`shared`: the options of `nvshare run`; None: without nvshare."""
        self.runs += 1
        prefix = [] if shared is None else [self.nvshare, "run", "--name", name, *shared, "--"]
        kind = "alone" if shared is None else "shared"
        path = self.logs / f"{self.runs:03}-{name}-{kind}.log"
        path.unlink(missing_ok=True)
        log = open(path, "a+", errors="replace")  # it may be read while it is written
        process = subprocess.Popen(prefix + command, stdout=log, stderr=subprocess.STDOUT,
                                   env=environment, start_new_session=True, **more)
        one = Running(name, process, log, time.monotonic())
        self.running.append(one)
        return one

    def wait(self, started, limit, watch=lambda: None, every=0.05):
        """Until all have ended, at most so many seconds. Their exit codes and what they said."""
        end = min(time.monotonic() + limit, self.end)
        stopped = []
        while any(one.process.poll() is None for one in started):
            if time.monotonic() > end:
                stopped = [one for one in started if one.process.poll() is None]
                self.stop(started)
                break
            watch()
            time.sleep(every)
        codes = {one.name: one.process.returncode for one in started}
        texts = {one.name: one.text() for one in started}
        for one in stopped:
            texts[one.name] += f"\n{one.name} did not end and was stopped after {one.age():.0f} s\n"
        self.forget(started)
        return codes, texts

    def stop(self, some=None):
        """Ends what runs: the GPU is not ours alone."""
        running = [one for one in (self.running if some is None else some) if one.process.poll() is None]
        for one in running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(one.process.pid, signal.SIGKILL)
        end = time.monotonic() + 5
        for one in running:
            try:
                one.process.wait(max(end - time.monotonic(), 0))
            except subprocess.TimeoutExpired:  # in the driver, where no signal reaches it
                print(f"{self.name}: {one.name} (pid {one.process.pid}) does not end", file=sys.stderr)

    def forget(self, started):
        for one in started:
            one.log.close()
            self.running.remove(one)

    def finish(self):
        """Ends everything, and keeps what the schedulers said."""
        self.stop()
        for number in range(1, self.schedulers + 1):
            with contextlib.suppress(OSError):  # without nvshare there is none
                shutil.copy(f"{self.run_directory(number)}/scheduler.log",
                            self.logs / f"scheduler-{number}.log")

    def ask(self, environment, **request):
        """The scheduler's answer to a request (docs/protocol.md); {} when there is none."""
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(5)
                connection.connect(environment["NVSHARE_RUN_DIR"] + "/control.sock")
                connection.sendall(json.dumps(request).encode() + b"\n")
                answer = b""
                while not answer.endswith(b"\n"):
                    part = connection.recv(1 << 16)
                    if not part:
                        return {}
                    answer += part
            return json.loads(answer)
        except (OSError, ValueError):
            return {}

    def status(self, environment):
        return self.ask(environment, op="status")


class Report:
    """Entries with a name and `ok`, in one file that is whole after each of them."""

    def __init__(self, bench, title, after):
        self.bench = bench
        self.after = after  # what else is made of it each time
        self.path = bench.out / f"{bench.name}.json"
        self.content = {"command": title, "machine": machine(), "sections_s": {}, "results": []}
        self.write()

    def add(self, entry):
        self.content["results"].append(entry)
        self.write()
        print(json.dumps(entry), flush=True)

    def write(self):
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps(self.content, indent=1) + "\n")
        new.replace(self.path)
        self.after(self.content, self.bench.out)

    def section(self, name, needs, measure):
        """Runs `measure`, which yields entries. What goes wrong is an entry, too."""
        if self.bench.left() < needs:
            self.add({"name": name, "ok": False,
                      "error": f"needs {needs:.0f} s, and there are {self.bench.left():.0f} left"})
            return
        begin = time.monotonic()
        try:
            for entry in measure():
                self.add({"section": name, **entry, "section_s": round(time.monotonic() - begin, 1)})
        except Exception as error:  # whatever it is: the others are still to be measured
            traceback.print_exc()
            self.add({"name": name, "ok": False, "error": f"{type(error).__name__}: {error}"})
            self.bench.stop()
        took = round(time.monotonic() - begin, 1)
        self.content["sections_s"][name] = took
        self.write()
        print(f"{name}: took {took} s, {self.bench.left():.0f} s are left", flush=True)

    def code(self):
        return 0 if all(entry.get("ok", True) for entry in self.content["results"]) else 1


def run_sections(bench, title, sections, wanted, after=lambda content, out: None, last_words=lambda content: ""):
    """`sections`: name -> (seconds that it needs, function that yields entries). The exit code."""
    unknown = [name for name in wanted if name not in sections]
    if unknown:
        print(f"{bench.name}: no such section: {', '.join(unknown)}", file=sys.stderr)
        return 2
    report = Report(bench, title, after)
    for name in wanted or sections:
        report.section(name, *sections[name])
    print(last_words(report.content), flush=True)
    return report.code()


def machine():
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=20, check=False).stdout
    except (OSError, subprocess.SubprocessError):
        answer = ""
    parts = [part.strip() for part in answer.split("\n")[0].split(",")]
    return {"gpu": parts[0], "driver": parts[1] if len(parts) > 1 else ""}


def is_installed(module):
    return importlib.util.find_spec(module) is not None


def nvcc():
    return shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"


def last_line(text):
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it said nothing"


def result_of(text):
    """What a program said in its RESULT line, or a program of ours in its own; or its last words."""
    for line in reversed(text.splitlines()):
        if line.startswith("RESULT "):
            return json.loads(line[len("RESULT "):])
        if line.startswith(("launches=", "allocations=", "kernels=")):
            return dict(word.split("=", 1) for word in line.split())
    return {"error": text[-400:]}


def overhead_of(name, limit, alone, shared):
    """How much more the median of `shared` is, in percent."""
    entry = {"name": name, "limit_percent": limit, "alone": alone, "shared": shared}
    if alone and shared:
        more = statistics.median(shared) / statistics.median(alone) - 1
        entry["percent"] = round(100 * more, 3)
    entry["ok"] = "percent" in entry and entry["percent"] <= limit
    return entry


def training_overhead(bench, command, environment, options=(), rounds=5):
    """A training step in PyTorch, unshared and shared in turns, against its limit."""
    values = {"alone": [], "shared": []}
    for kind in ("alone", "shared") * rounds:
        shared = list(options) if kind == "shared" else None
        codes, texts = bench.wait([bench.start("step", command, environment, shared)], 60)
        result = result_of(texts["step"])
        if "step_ms" not in result:
            return {"name": TRAINING_STEP, "limit_percent": 0.5, **values, "ok": False,
                    "error": f"{kind}: step has ended with {codes['step']}: {last_line(texts['step'])}"}
        values[kind].append(result["step_ms"])
    return overhead_of(TRAINING_STEP, 0.5, values["alone"], values["shared"])
