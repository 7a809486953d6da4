"""Workload processes that are started once and told again and again what to do."""

import ctypes
import os
import pathlib
import shlex
import sys
import threading
import time

from shares import EVERY, progress_of, rate, ready_of

WORKLOAD = pathlib.Path(__file__).resolve().parent / "workload.py"
LOADING = 60  # seconds after which loading that gets nowhere is given up
# Seconds between runs. Longer than the scheduler's `burst_window`: after a shorter pause a program may
# use what it saved up in it, and has seconds later still more than its limit.
PAUSE = 0.7


class Worker:
    """NAME or NAME-NUMBER, where there are several of a kind."""

    def __init__(self, folder, name):
        self.name = name
        self.kind = name.split("-")[0]
        self.log = folder / f"{name}.log"
        self.commands = folder / f"{name}.commands"
        self.commands.write_text("")
        self.log.write_text("")
        self.runs = 0
        self.running = None  # its process, or that of its tenant

    def command(self, lock, unit_ms):
        known = ["--unit-ms", str(unit_ms)] if unit_ms else []
        return [sys.executable, str(WORKLOAD), self.kind, "--commands", str(self.commands),
                "--log", str(self.log), "--lock", str(lock), *known]

    def tell(self, *words):
        with open(self.commands, "a") as commands:
            commands.write(" ".join(str(word) for word in words) + "\n")

    def go(self, at, seconds, every, steady=False):
        self.runs += 1
        self.tell("go", at, seconds, every, int(steady))

    def text(self):
        return self.log.read_text()

    def is_done(self):
        return self.text().count("done\n") >= self.runs

    def is_loading(self):
        return "loading\n" in self.text() and not self.ready()

    def has_ended(self):
        return self.running.process.poll() is not None

    def ready(self):
        """What it says of itself when it is; {} before."""
        return ready_of(self.text())

    def samples(self):
        return progress_of(self.text())

    def rate(self, begin, end):
        return rate(self.samples(), begin, end)


class Crew:
    """Workers that have one scheduler, or none (`shared` false)."""

    def __init__(self, bench, shared, units=None):
        self.bench = bench
        self.units = units or (lambda kind: None)  # how long a kind's unit takes, where it is known
        self.shared = shared
        self.environment = bench.environment()
        self.folder = bench.logs / f"{bench.schedulers}-{'shared' if shared else 'native'}"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.lock = self.folder / "lock"
        self.workers = {}
        self.failures = {}  # name -> how often it failed at its work
        self.useless = {}  # names of those that do not even load, or fail again and again: why
        self.whose = "shared: " if shared else "without nvshare: "

    def command_of(self, worker):
        return worker.command(self.lock, self.units(worker.kind))

    def load(self, *names):
        """Starts those that do not run, all at once. Who does not get ready is ended, and is known as
        useless from then on."""
        for name in names:
            if name in self.workers and self.workers[name].has_ended():
                del self.workers[name]
            if name not in self.workers and name not in self.useless:
                worker = self.workers[name] = Worker(self.folder, name)
                worker.running = self.bench.start(name, self.command_of(worker), self.environment,
                                                  [] if self.shared else None)
        self.wait_until_loaded([self.workers[name] for name in names if name in self.workers])

    def get(self, *names):
        """The workers, ready."""
        self.load(*names)
        self.expect(names)
        return [self.workers[name] for name in names]

    def expect(self, names):
        for name in names:
            if name in self.useless:
                raise RuntimeError(self.useless[name])

    def get_in_one_tenant(self, tenant, cores, names):
        """Started by one shell, and so in one tenant. All of them or none."""
        some = [Worker(self.folder, name) for name in names]
        return self.start_tenant(tenant, cores, self.shell_of(some), some)

    def get_in_runs(self, tenant, cores, runs):
        """Started by runs inside the tenant's (name -> names of workers). All of them or none."""
        crews = {run: [Worker(self.folder, name) for name in names] for run, names in runs.items()}
        inner = [[str(self.bench.nvshare), "run", "--name", run, "--", *self.shell_of(crew)]
                 for run, crew in crews.items()]
        return self.start_tenant(tenant, cores, self.together(inner),
                                 [worker for crew in crews.values() for worker in crew])

    def shell_of(self, some):
        return self.together([self.command_of(one) for one in some])

    @staticmethod
    def together(commands):
        """All at once; one that fails ends the others."""
        lines = [f"({shlex.join(command)} || kill 0) &" for command in commands]
        return ["sh", "-c", "\n".join([*lines, "wait"])]

    def start_tenant(self, tenant, cores, command, some):
        names = [one.name for one in some]
        running = self.bench.start(tenant, command, self.environment, ["--cores", str(cores)])
        for one in some:
            one.running = running
            self.workers[one.name] = one
        self.wait_until_loaded(some)
        self.expect(names)
        return some

    def wait_until_loaded(self, some):
        """They load one at a time: one that hangs is in the way of all others until it is ended."""
        seen = None
        while True:
            waiting = []
            for worker in some:
                if worker.ready() or worker.name in self.useless:
                    continue
                if worker.has_ended():
                    self.give_up(worker, worker.running.last_words())
                else:
                    waiting.append(worker)
            if not waiting:
                return
            now = [(worker.name, worker.is_loading()) for worker in waiting]
            if now != seen:
                seen, since = now, time.monotonic()
            if time.monotonic() - since > min(LOADING, self.bench.left()):
                slow = next((worker for worker in waiting if worker.is_loading()), waiting[0])
                self.give_up(slow, f"{slow.name} was not ready after {slow.running.age():.0f} s")
            time.sleep(0.02)

    def give_up(self, worker, why):
        self.useless[worker.name] = self.whose + why
        self.bench.stop([worker.running])

    def finish(self, some, limit=15):
        """Waits until they have done what they were told. Who does not is started again when it is wanted
        again."""
        end = time.monotonic() + min(limit, max(self.bench.left(), 0))
        while True:
            busy = [worker for worker in some if not worker.is_done()]
            if not busy:
                return
            self.look_after(busy)
            if time.monotonic() > end:
                self.bench.stop([worker.running for worker in busy])
                names = ", ".join(worker.name for worker in busy)
                self.fail(busy, f"{names} did not end its work within {limit} s and was stopped")
            time.sleep(0.02)

    def look_after(self, some):
        for worker in some:
            if worker.has_ended():
                self.fail([worker], worker.running.last_words())

    def fail(self, some, why):
        """Who fails a second time is not started again: the others need the time."""
        for worker in some:
            self.failures[worker.name] = self.failures.get(worker.name, 0) + 1
            if self.failures[worker.name] > 1:
                self.useless[worker.name] = self.whose + why
        raise RuntimeError(self.whose + why)

    def limit(self, name, cores):
        if self.shared:
            answer = self.bench.ask(self.environment, op="limit", name=name, cores=cores)
            if not answer.get("ok"):
                why = answer.get("error", "the scheduler does not answer")
                raise RuntimeError(f"limit {name} {cores}: {why}")

    def used(self, name):
        """Seconds of GPU time that the scheduler has counted."""
        for tenant in self.bench.status(self.environment).get("tenants", []):
            if tenant["name"] == name:
                return tenant["used"] / 1e9
        return 0.0

    def run(self, limits, seconds, settle, steady=False):
        """Workers under limits (name -> percent), at the same time; `steady`: without their pauses."""
        return self.work(self.get(*limits), limits, seconds, settle, steady)

    def work(self, some, limits, seconds, settle, steady=False):
        """Workers at the same time, their tenants under limits. Their rates (units per second), beginning
        when all has settled, GPU time as the scheduler counts it, in percent, and from when to when."""
        for name, cores in limits.items():
            self.limit(name, cores)
        at = time.monotonic() + (PAUSE if self.shared else 0.2)
        for worker in some:
            worker.go(at, settle + seconds, EVERY, steady)
        begin, end = at + settle, at + settle + seconds
        time.sleep(max(begin - time.monotonic(), 0))
        used = {name: self.used(name) for name in limits}
        looked = time.monotonic()
        time.sleep(max(end - time.monotonic(), 0))
        counted = {name: 100 * (self.used(name) - used[name]) / (time.monotonic() - looked)
                   for name in limits}
        self.look_after(some)
        for name in limits:
            self.limit(name, 100)  # what is still on its way need not be waited for long
        self.finish(some)
        return {worker.name: worker.rate(begin, end) for worker in some}, counted, (begin, end)

    def run_changing(self, name, changes, seconds):
        """A worker whose limit changes: (seconds from the beginning, percent), the first one at 0. When each
        was asked for."""
        worker, = self.get(name)
        self.limit(name, changes[0][1])
        at = time.monotonic() + PAUSE
        worker.go(at, seconds, EVERY)
        times = [at]
        for after, cores in changes[1:]:
            time.sleep(max(at + after - time.monotonic(), 0))
            times.append(time.monotonic())
            self.limit(name, cores)
        time.sleep(max(at + seconds - time.monotonic(), 0))
        self.limit(name, 100)
        self.finish([worker])
        return times


class Clocks(threading.Thread):
    """What the card's clock and power were: a card that slows down measures itself."""

    SM = 1  # NVML_CLOCK_SM

    def __init__(self):
        super().__init__(daemon=True)
        self.samples = []
        self.device = ctypes.c_void_p()
        try:
            # Not nvidia-smi: what it writes to a pipe may arrive much later.
            self.nvml = ctypes.CDLL("libnvidia-ml.so.1")
            found = (self.nvml.nvmlInit_v2() == 0 and
                     self.nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(self.device)) == 0)
        except OSError:
            found = False
        if found:
            self.start()

    def run(self):
        clock, power = ctypes.c_uint(), ctypes.c_uint()
        while True:
            if self.nvml.nvmlDeviceGetClockInfo(self.device, self.SM, ctypes.byref(clock)) == 0:
                self.nvml.nvmlDeviceGetPowerUsage(self.device, ctypes.byref(power))  # 0 where it is not known
                self.samples.append((time.monotonic(), clock.value, power.value / 1000))
            time.sleep(0.25)

    def mean(self, begin, end):
        """MHz and watts; None where it is not known."""
        inside = [one for one in self.samples if begin <= one[0] <= end]
        if not inside:
            return None
        return [round(sum(one[i] for one in inside) / len(inside)) for i in (1, 2)]


def processor_time(text=None):
    """Of all processors together, since they were started: how much of it a host took for others, and all of
    it."""
    words = (text or pathlib.Path("/proc/stat").read_text()).split("\n")[0].split()
    times = [int(word) for word in words[1:9]]
    return times[7], sum(times)


def taken_away(before, after):
    """Percent of the time between two of these."""
    return round(100 * (after[0] - before[0]) / max(after[1] - before[1], 1), 3)


def size_of(pid):
    """Bytes in memory and open files of a process; {} when it is gone."""
    try:
        pages = int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1])
        return {"memory": pages * os.sysconf("SC_PAGE_SIZE"), "files": len(os.listdir(f"/proc/{pid}/fd"))}
    except OSError:
        return {}
