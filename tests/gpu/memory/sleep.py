"""sleep.py BUILD_DIR OUT [--gib 64]: how fast a program gives the card back, and returns.

One PyTorch program with random data under `nvshare run` is put to sleep and woken, and each is timed twice: by the
scheduler's counters (`moves` of its status) and by the clock. Both are compared with plain pinned copies that the same
program measures. Prints one line of JSON, and ends with 1 when the data differ or something failed. Takes at most
SLEEP_SECONDS (85)."""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "common"))

from bench import Bench, last_line  # noqa: E402

GIB = 1 << 30
NAME = "server"
LIMITS = {"ratio": 0.94, "second_sleep_s": 0.1}
LOOK = 0.002  # seconds between looks at a move


class Failed(Exception):
    pass


class Sleeper:
    """The program, and what is asked of it and of the scheduler about it."""

    def __init__(self, bench, command, environment):
        self.bench = bench
        self.environment = environment
        self.running = bench.start(NAME, command, environment, ("--backend", "swap"),
                                   stdin=subprocess.PIPE, text=True)
        self.read = 0

    def answer(self, word):
        """Waits for the line that begins with the word; what is behind it."""
        while True:
            lines = self.running.text().splitlines(keepends=True)[self.read:]
            for line in lines:
                if not line.endswith("\n"):
                    break
                self.read += 1
                if line.startswith(word + " "):
                    return json.loads(line[len(word) + 1:])
            if self.running.process.poll() is not None:
                raise Failed(self.running.last_words())
            self.check_time(f"no answer to '{word}'")
            time.sleep(LOOK)

    def tell(self, word):
        self.running.process.stdin.write(word + "\n")
        self.running.process.stdin.flush()
        return self.answer(word)

    def check_time(self, what):
        if self.bench.left() < 0:
            raise Failed(f"{what}; the program's last words: {last_line(self.running.text())}")

    def tenant(self):
        for one in self.bench.status(self.environment).get("tenants", []):
            if one["name"] == NAME:
                return one
        raise Failed("the scheduler does not know the program")

    def change_state(self, asleep):
        """Puts it to sleep or wakes it, and waits until nothing moves any more."""
        before = self.tenant()["moves"]
        begin = time.monotonic()
        while True:
            answer = self.bench.ask(self.environment, op="sleep" if asleep else "wake", name=NAME)
            if answer.get("tenant", {}).get("asleep") == asleep:
                break
            self.check_time(f"the scheduler says {answer}")
            time.sleep(LOOK)
        while not self.is_done(asleep):
            self.check_time("its memory does not move")
            time.sleep(LOOK)
        wall = time.monotonic() - begin
        return self.moved(before, "out" if asleep else "in", wall)

    def is_done(self, asleep):
        now = self.tenant()
        if now["asleep"] != asleep:
            raise Failed("it has not stayed so: was there work?")
        moving = sum(one["incoming"] + one["outgoing"] for one in now["processes"])
        return moving == 0 and now["to_leave"] == 0

    def moved(self, before, way, wall):
        now = self.tenant()
        moves = {key: now["moves"][key] - before[key] for key in before}
        took = moves["took"] / 1e9
        result = {"moved_gib": round(moves[way] / GIB, 3), "copied_gib": round(moves["copied"] / GIB, 3),
                  "took_s": round(took, 4), "wall_s": round(wall, 4), "resident_gib": round(now["resident"] / GIB, 3),
                  "pinned_gib": round(now["pinned"] / GIB, 3)}
        if moves["copied"] > 0 and took > 0:
            result["gib_s"] = round(moves["copied"] / GIB / took, 3)
            result["wall_gib_s"] = round(moves["copied"] / GIB / wall, 3)
        return result


def compared(result, rate):
    """A move beside the plain copy in the same direction."""
    if "gib_s" in result and rate:
        result["ratio"] = round(result["gib_s"] / rate, 4)
        result["wall_ratio"] = round(result["wall_gib_s"] / rate, 4)
    return result


def measure(sleeper, entry):
    entry["started"] = sleeper.answer("ready")
    entry["pinned_copy_gib_s"] = link = sleeper.tell("link")
    entry["digest"] = sleeper.tell("check")
    # Host memory is made for the first one; it is told, and not judged.
    entry["first_sleep"] = compared(sleeper.change_state(True), link["out"])
    entry["first_wake"] = compared(sleeper.change_state(False), link["in"])
    entry["second_sleep"] = sleeper.change_state(True)
    sleeper.change_state(False)
    same = [sleeper.tell("check") == entry["digest"]]
    # All of it has changed, and its place on the host is there. Not looked at before it sleeps: that takes time, and
    # host memory that nobody needs goes back after ten seconds.
    sleeper.tell("change")
    entry["sleep"] = compared(sleeper.change_state(True), link["out"])
    entry["wake"] = compared(sleeper.change_state(False), link["in"])
    changed = sleeper.tell("check")
    same.append(changed != entry["digest"])
    # Once more, and it wakes by itself.
    sleeper.change_state(True)
    begin = time.monotonic()
    same.append(sleeper.tell("check") == changed)
    entry["wakes_by_itself_s"] = round(time.monotonic() - begin, 3)
    sleeper.tell("change")  # twice is not at all
    same.append(sleeper.tell("check") == entry["digest"])
    entry["same"] = all(same)


def judge(entry):
    ratios = [entry.get(key, {}).get("ratio", 0) for key in ("sleep", "wake")]
    entry["ratio_ok"] = min(ratios) >= LIMITS["ratio"]
    entry["second_sleep_ok"] = entry.get("second_sleep", {}).get("wall_s", 1e9) <= LIMITS["second_sleep_s"]
    entry["ok"] = entry.get("same", False) and entry["ratio_ok"] and entry["second_sleep_ok"]


def main(words):
    arguments = argparse.ArgumentParser()
    arguments.add_argument("build")
    arguments.add_argument("out")
    arguments.add_argument("--gib", type=int, default=64)
    arguments.add_argument("--worker", default=str(HERE / "torch_sleeper.py"), help="another program that obeys")
    options = arguments.parse_args(words)
    os.environ["BENCH_SECONDS"] = os.environ.get("SLEEP_SECONDS", "85")
    bench = Bench("sleep", options.build, options.out)
    entry = {"name": "sleep", "gib": options.gib, "limits": LIMITS, "same": False}
    command = [sys.executable, options.worker, "--gib", str(options.gib)]
    try:
        sleeper = Sleeper(bench, command, bench.environment())
        measure(sleeper, entry)
        sleeper.running.process.stdin.write("end\n")
        sleeper.running.process.stdin.close()
        bench.wait([sleeper.running], 10)
    except (Failed, OSError, KeyError, ValueError) as error:
        entry["error"] = f"{type(error).__name__}: {error}"
    judge(entry)
    (bench.out / "sleep.json").write_text(json.dumps(entry, indent=1) + "\n")
    print(json.dumps(entry), flush=True)
    return 0 if entry["same"] and "error" not in entry else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
