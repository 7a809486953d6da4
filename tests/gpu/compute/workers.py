"""Workload processes that are started once and told again and again what to do."""

import os
import pathlib
import shlex
import subprocess
import sys
import threading
import time

from shares import progress_of, rate

HERE = pathlib.Path(__file__).resolve().parent
LOADING = 120  # seconds that loading and warming up may take


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

    def command(self, lock, unit_ms):
        known = ["--unit-ms", str(unit_ms)] if unit_ms else []
        return [sys.executable, str(HERE / "workload.py"), self.kind, "--commands", str(self.commands),
                "--log", str(self.log), "--lock", str(lock), *known]

    def tell(self, *words):
        with open(self.commands, "a") as commands:
            commands.write(" ".join(str(word) for word in words) + "\n")

    def go(self, at, seconds, every):
        self.runs += 1
        self.tell("go", at, seconds, every)

    def text(self):
        return self.log.read_text()

    def is_done(self):
        return self.text().count("done\n") >= self.runs

    def unit_ms(self):
        """None before it is ready."""
        for line in self.text().splitlines():
            if line.startswith("ready unit_ms="):
                return float(line.split("=")[1])
        return None

    def rate(self, begin, end):
        return rate(progress_of(self.text()), begin, end)


class Crew:
    """Workers that have one scheduler, or none (`shared` false)."""

    def __init__(self, bench, shared, units=None):
        self.bench = bench
        self.units = units or (lambda kind: None)  # how long a kind's unit takes, where it is known
        self.shared = shared
        self.environment = bench.environment()
        self.folder = bench.out / f"{bench.schedulers}-{'shared' if shared else 'native'}"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.lock = self.folder / "lock"
        self.workers = {}
        self.running = []

    def command_of(self, worker):
        return worker.command(self.lock, self.units(worker.kind))

    def get(self, *names):
        """The workers, started and ready."""
        for name in names:
            if name not in self.workers:
                worker = self.workers[name] = Worker(self.folder, name)
                self.running.append(self.bench.start(name, self.command_of(worker), self.environment,
                                                     [] if self.shared else None))
        self.wait(lambda: all(self.workers[name].unit_ms() for name in names), LOADING, "not ready")
        return [self.workers[name] for name in names]

    def get_in_one_tenant(self, tenant, cores, names):
        """Started by one shell, and so in one tenant."""
        some = [Worker(self.folder, name) for name in names]
        lines = [shlex.join(self.command_of(one)) + " &" for one in some]
        self.running.append(self.bench.start(tenant, ["sh", "-c", "\n".join([*lines, "wait"])],
                                             self.environment, ["--cores", str(cores)]))
        self.workers.update((one.name, one) for one in some)
        self.wait(lambda: all(one.unit_ms() for one in some), LOADING, "not ready")
        return some

    def wait(self, condition, limit, otherwise):
        end = time.monotonic() + min(limit, self.bench.left())
        while not condition():
            if self.is_broken():
                ended = next(one for one in self.running if one.process.poll() is not None)
                raise RuntimeError(f"{ended.name} has ended: {ended.text()[-300:]}")
            if time.monotonic() > end:
                raise RuntimeError(otherwise)
            time.sleep(0.02)

    def is_broken(self):
        return any(one.process.poll() is not None for one in self.running)

    def limit(self, name, cores):
        if self.shared:
            answer = self.bench.ask(self.environment, op="limit", name=name, cores=cores)
            if not answer.get("ok"):
                raise RuntimeError(f"limit {name} {cores}: {answer}")

    def used(self, name):
        """Seconds of GPU time that the scheduler has counted."""
        for tenant in self.bench.status(self.environment).get("tenants", []):
            if tenant["name"] == name:
                return tenant["used"] / 1e9
        return 0.0

    def run(self, limits, seconds, settle, every=0.1):
        """Workers under limits (name -> percent), at the same time. Their rates (units per second),
        beginning when all has settled, and GPU time as the scheduler counts it, in percent."""
        names = list(limits)
        for name, cores in limits.items():
            self.limit(name, cores)
        at = time.monotonic() + 0.3
        for name in names:
            self.workers[name].go(at, settle + seconds, every)
        begin, end = at + settle, at + settle + seconds
        time.sleep(max(begin - time.monotonic(), 0))
        used = {name: self.used(name) for name in names}
        looked = time.monotonic()
        time.sleep(max(end - time.monotonic(), 0))
        counted = {name: 100 * (self.used(name) - used[name]) / (time.monotonic() - looked)
                   for name in names}
        for name in names:
            self.limit(name, 100)  # what is still on its way need not be waited for long
        self.wait(lambda: all(self.workers[name].is_done() for name in names), 30, "does not end")
        return {name: self.workers[name].rate(begin, end) for name in names}, counted, (begin, end)

    def end(self):
        for worker in self.workers.values():
            worker.tell("quit")
        self.bench.wait(self.running, 10)
        self.running = []
        self.workers = {}


class Clocks(threading.Thread):
    """What the card's clock and power were: a card that slows down measures itself."""

    def __init__(self):
        super().__init__(daemon=True)
        self.samples = []
        query = ["nvidia-smi", "--query-gpu=clocks.sm,power.draw", "--format=csv,noheader,nounits",
                 "-lms", "250"]
        try:
            self.process = subprocess.Popen(query, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                            text=True)
            self.start()
        except OSError:
            self.process = None

    def run(self):
        for line in self.process.stdout:
            try:
                clock, power = (float(part) for part in line.split(","))
            except ValueError:
                continue
            self.samples.append((time.monotonic(), clock, power))

    def mean(self, begin, end):
        """MHz and watts; None where it is not known."""
        inside = [one for one in self.samples if begin <= one[0] <= end]
        if not inside:
            return None
        return [round(sum(one[i] for one in inside) / len(inside)) for i in (1, 2)]

    def stop(self):
        if self.process is not None:
            self.process.terminate()
            self.process.wait()


def size_of(pid):
    """Bytes in memory and open files of a process."""
    pages = int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE"), len(os.listdir(f"/proc/{pid}/fd"))
