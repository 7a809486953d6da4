"""PyTorch processes that share CUDA tensors (CUDA IPC) under `nvshare run`, at the default backend.

ipc_torch.py BUILD_DIR OUT; needs an NVIDIA GPU and PyTorch. Prints one line of JSON, and ends with 1 when
anything is wrong. Sections: processes of one run, processes of two runs, an owner that is killed, a consumer that
is killed."""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from multiprocessing.connection import Client, Listener
from multiprocessing.reduction import ForkingPickler

HERE = pathlib.Path(__file__).resolve()
sys.path.insert(0, str(HERE.parent.parent / "common"))

MIB = 1 << 20
# Words of four bytes: a part of a segment that others share, a segment of its own, and several chunks.
SIZES = (1000, 5 * MIB // 4, 600 * MIB // 4)
SLACK = 64 * MIB  # of what nvidia-smi says is used, which other things change, too


# --- programs under nvshare: each ends with 0 when all was right

def pattern(words, seed):
    import torch

    return torch.arange(words, dtype=torch.int32, device="cuda").mul_(2654435761 % (1 << 31)).add_(seed)


def expect(tensor, seed, what):
    import torch

    if not torch.equal(tensor, pattern(tensor.numel(), seed)):
        raise AssertionError(f"{what}: {tensor.numel()} words are not those of {seed}")


def send(connection, message):
    import torch.multiprocessing  # noqa: F401, teaches the pickler tensors

    connection.send_bytes(bytes(ForkingPickler.dumps(message)))


def receive(connection):
    import torch.multiprocessing  # noqa: F401, the same

    if not connection.poll(60):
        raise AssertionError("the other process says nothing")
    return ForkingPickler.loads(connection.recv_bytes())


def give(connection):
    """Hands out a tensor of each size; the other one changes it, and gives one of its own."""
    import torch

    for seed, words in enumerate(SIZES, start=1):
        tensor = pattern(words, seed)
        torch.cuda.synchronize()
        send(connection, tensor)
        theirs = receive(connection)
        expect(tensor, seed + 100, "changed by the other process")
        expect(theirs, seed + 200, "made by the other process")
        theirs.add_(1)
        torch.cuda.synchronize()
        del theirs
        send(connection, "done")
        if receive(connection) != "done":
            raise AssertionError("the other process is not done")


def take(connection):
    import torch

    for seed, words in enumerate(SIZES, start=1):
        theirs = receive(connection)
        expect(theirs, seed, "given by the other process")
        theirs.add_(100)
        own = pattern(words, seed + 200)
        torch.cuda.synchronize()
        send(connection, own)
        if receive(connection) != "done":
            raise AssertionError("the other process is not done")
        expect(own, seed + 201, "changed by the other process")
        del theirs
        send(connection, "done")


def child_of_family(from_parent, to_parent):
    """Over the queues of torch.multiprocessing, which know how to send tensors."""
    import torch

    for seed, words in enumerate(SIZES, start=1):
        theirs = from_parent.get(timeout=60)
        expect(theirs, seed, "given by the parent")
        theirs.add_(100)
        own = pattern(words, seed + 200)
        torch.cuda.synchronize()
        to_parent.put(own)
        if from_parent.get(timeout=60) != "done":
            raise AssertionError("the parent is not done")
        expect(own, seed + 201, "changed by the parent")
        del theirs, own
        to_parent.put("done")


def family(_):
    import torch
    import torch.multiprocessing as multiprocessing

    context = multiprocessing.get_context("spawn")
    to_child, from_child = context.Queue(), context.Queue()
    child = context.Process(target=child_of_family, args=(to_child, from_child))
    child.start()
    for seed, words in enumerate(SIZES, start=1):
        tensor = pattern(words, seed)
        torch.cuda.synchronize()
        to_child.put(tensor)
        theirs = from_child.get(timeout=60)
        expect(tensor, seed + 100, "changed by the child")
        expect(theirs, seed + 200, "made by the child")
        theirs.add_(1)
        torch.cuda.synchronize()
        del theirs
        to_child.put("done")
        if from_child.get(timeout=60) != "done":
            raise AssertionError("the child is not done")
    child.join(60)
    if child.exitcode != 0:
        raise AssertionError(f"the child has ended with {child.exitcode}")


def owner(path):
    with Listener(path) as listener, listener.accept() as connection:
        give(connection)


def consumer(path):
    with connect(path) as connection:
        take(connection)


def stays(path, is_owner):
    """Shares the largest tensor, and stays until it is killed."""
    with contextlib.ExitStack() as stack:
        if is_owner:
            connection = stack.enter_context(stack.enter_context(Listener(path)).accept())
            tensor = pattern(SIZES[-1], 7)
            import torch

            torch.cuda.synchronize()
            send(connection, tensor)
        else:
            connection = stack.enter_context(connect(path))
            tensor = receive(connection)
            expect(tensor, 7, "given by the owner")
        print("SHARED", flush=True)
        while True:
            time.sleep(0.2)
            expect(tensor, 7, "while the other process may be gone")


def connect(path):
    end = time.monotonic() + 60
    while True:
        try:
            return Client(path)
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)


ROLES = {"family": family, "owner": owner, "consumer": consumer,
         "stay-owner": lambda path: stays(path, True), "stay-consumer": lambda path: stays(path, False)}


# --- what is looked at from outside

def gpu_used():
    """Bytes, by nvidia-smi; None where there is none."""
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "--id=0"]
    try:
        return int(subprocess.run(query, capture_output=True, text=True, timeout=20, check=True).stdout) * MIB
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def eventually(condition, seconds=30):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.2)
    return True


class Check:
    def __init__(self, bench):
        self.bench = bench
        self.environment = bench.environment()
        self.wrong = []
        self.count = 0

    def expect(self, good, text):
        if not good:
            self.wrong.append(text)

    def start(self, name, role, path="-"):
        return self.bench.start(name, [sys.executable, str(HERE), "--role", role, path], self.environment, [])

    def socket(self):
        self.count += 1
        return f"/tmp/nvshare-ipc-socket-{os.getpid()}-{self.count}"  # run directories have the other names

    def all_end_well(self, started):
        codes, texts = self.bench.wait(started, 180)
        for name, code in codes.items():
            self.expect(code == 0, f"{name} has ended with {code}: {texts[name][-400:]}")
        return codes

    def two_runs(self):
        path = self.socket()
        return self.all_end_well([self.start("owner", "owner", path), self.start("consumer", "consumer", path)])

    def tenant(self, name):
        tenants = self.bench.status(self.environment).get("tenants", [])
        return next((one for one in tenants if one["name"] == name), None)

    def kill(self, one):
        """The program itself, and not `nvshare run`."""
        tenant = self.tenant(one.name)
        for process in tenant["processes"] if tenant else []:
            os.kill(process["pid"], signal.SIGKILL)
        self.expect(eventually(lambda: one.process.poll() is not None), f"{one.name} is still there")

    def kill_section(self, victim_is_owner):
        before = gpu_used()
        path = self.socket()
        started = [self.start("owner", "stay-owner", path), self.start("consumer", "stay-consumer", path)]
        shared = eventually(lambda: all("SHARED" in one.text() for one in started), 120)
        self.expect(shared, "they do not share: " + "; ".join(one.text()[-300:] for one in started))
        if shared:
            bytes_of_tensor = SIZES[-1] * 4
            pinned = (self.tenant("owner") or {}).get("pinned", 0)
            self.expect(pinned >= bytes_of_tensor, f"the owner has {pinned} bytes pinned")
            allocated = sum(one["allocated"] for one in (self.tenant("consumer") or {}).get("processes", []))
            # The pattern that it compares with is its own; the tensor is not.
            self.expect(allocated < 3 * bytes_of_tensor, f"the consumer counts {allocated} bytes")
            victim, other = started if victim_is_owner else reversed(started)
            self.kill(victim)
            self.expect(eventually(lambda: not (self.tenant(victim.name) or {}).get("resident", 0)),
                        f"{victim.name} still counts")
            time.sleep(1)
            self.expect(other.process.poll() is None, f"{other.name} has ended: {other.text()[-300:]}")
            self.kill(other)
        self.bench.stop(started)
        self.bench.forget(started)
        if before is not None:
            self.expect(eventually(lambda: gpu_used() <= before + SLACK),
                        f"{gpu_used()} bytes are used, and {before} were before")


def main(build, out):
    from bench import Bench, is_installed

    if not is_installed("torch"):
        print(json.dumps({"ok": False, "error": "torch is not installed"}))
        return 1
    bench = Bench("ipc", build, out)
    check = Check(bench)
    sections = {
        "one run": lambda: check.all_end_well([check.start("family", "family")]),
        "two runs": check.two_runs,
        "owner killed": lambda: check.kill_section(True),
        "consumer killed": lambda: check.kill_section(False),
    }
    results = {}
    for name, run in sections.items():
        check.wrong = []
        begin = time.monotonic()
        run()
        results[name] = {"ok": not check.wrong, "seconds": round(time.monotonic() - begin, 1), "wrong": check.wrong}
    good = all(one["ok"] for one in results.values())
    print(json.dumps({"ok": good, "sections": results}))
    return 0 if good else 1


if __name__ == "__main__":
    if len(sys.argv) == 4 and sys.argv[1] == "--role":
        ROLES[sys.argv[2]](sys.argv[3])
    elif len(sys.argv) == 3:
        sys.exit(main(*sys.argv[1:]))
    else:
        print("usage: ipc_torch.py BUILD_DIR OUT", file=sys.stderr)
        sys.exit(2)
