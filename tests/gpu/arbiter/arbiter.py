"""Services with leases beside a training job, on a real card (run.sh, README.md)."""

import json
import pathlib
import statistics
import sys
import time

from bench import Bench, Report

HERE = pathlib.Path(__file__).resolve().parent
WORK = {"ASR": 150, "NMT": 80, "TTS": 60, "SEMANTIC_REPAIR": 60}  # ms of GPU time a request
GAP = 2  # seconds between phases
ORDER = ["ASR", "NMT", "TTS"]


def percentile(values, part):
    return sorted(values)[min(len(values) - 1, int(part * len(values)))] if values else None


class Day:
    """Programs under one scheduler that play phases, and what they said."""

    def __init__(self, bench, services, memory, training_memory):
        self.bench = bench
        self.environment = bench.environment()
        self.plan = bench.logs / f"plan-{bench.schedulers}.json"
        self.plan.unlink(missing_ok=True)
        self.running = []
        for name, kind in services.items():
            command = [sys.executable, str(HERE / "service.py"), name, kind, str(self.plan),
                       "--memory", str(memory), "--work", str(WORK[kind])]
            self.running.append(bench.start(name, command, self.environment, []))
        command = [sys.executable, str(HERE / "training.py"), str(self.plan), "--memory", str(training_memory)]
        self.running.append(bench.start("training", command, self.environment, ["--priority", "-5"]))

    def wait_until_ready(self, limit):
        end = time.monotonic() + limit
        while not all("ready" in one.text() for one in self.running):
            for one in self.running:
                if one.process.poll() is not None:
                    raise RuntimeError(one.last_words())
            if time.monotonic() > end:
                raise RuntimeError(f"not all programs were ready after {limit} s")
            time.sleep(0.2)

    def play(self, phases):
        """`phases`: name, seconds, and who asks how often. All lines of all programs."""
        begin = time.monotonic() + 1
        plan = []
        for name, seconds, who in phases:
            plan.append({"name": name, "begin": begin, "end": begin + seconds, "who": who})
            begin += seconds + GAP
        new = self.plan.with_suffix(".new")
        new.write_text(json.dumps({"phases": plan}))
        new.replace(self.plan)
        codes, texts = self.bench.wait(self.running, begin - time.monotonic() + 30)
        for name, code in codes.items():
            if code != 0:
                raise RuntimeError(f"{name} ended with {code}: {texts[name][-400:]}")
        return [json.loads(line) for text in texts.values() for line in text.splitlines()
                if line.startswith("{")]


def of_class(lines, phase, kind):
    found = [one for one in lines if one["phase"] == phase and one["class"] == kind]
    if kind == "training":
        return {"steps_per_s": round(sum(one["steps"] / one["seconds"] for one in found), 2)}
    acquired = [one for one in found if one["result"] == "ACQUIRED"]
    waits = [one["waited_ms"] for one in acquired]
    refused = {}
    for one in found:
        if one["result"] != "ACQUIRED":
            why = f"{one['result']} {one['reason']}".strip()
            refused[why] = refused.get(why, 0) + 1
    rounded = lambda value: None if value is None else round(value, 1)
    return {"requests": len(found), "acquired": len(acquired), "refused": refused,
            "wait_ms": {"p50": rounded(percentile(waits, 0.5)), "p95": rounded(percentile(waits, 0.95)),
                        "max": rounded(max(waits, default=None))},
            "worked_ms": rounded(statistics.median([one["worked_ms"] for one in acquired]) if acquired else None)}


def entry(lines, phase, kinds):
    return {"name": phase, "classes": {kind: of_class(lines, phase, kind) for kind in kinds}}


def beside_training(bench):
    services = {f"{kind.lower().replace('_', '-')}-{i}": kind for kind in ORDER for i in range(2)}
    services["repair"] = "SEMANTIC_REPAIR"
    day = Day(bench, services, memory=2, training_memory=8)
    day.wait_until_ready(120)
    few = {"asr-0": 1, "nmt-0": 1, "tts-0": 1, "repair": 1}
    many = {name: 0 for name in services} | {"repair": 0.3, "training": 0}
    phases = [("services alone", 15, few), ("training alone", 10, {"training": 0}),
              ("beside training", 25, few | {"training": 0}), ("too many services", 30, many)]
    lines = day.play(phases)
    kinds = [*ORDER, "SEMANTIC_REPAIR", "training"]
    alone, training, beside, crowd = (entry(lines, name, kinds) for name, _, _ in phases)

    def gets(one, kind):
        got = one["classes"][kind]
        return got["acquired"] / max(1, got["requests"])

    def wait(one, kind, what="p50"):
        return one["classes"][kind]["wait_ms"][what]

    # The usage meter sees the last second: loading and calibrating count at first.
    alone["ok"] = all(gets(alone, kind) == 1 for kind in ORDER) and gets(alone, "SEMANTIC_REPAIR") > 0.5
    training["ok"] = training["classes"]["training"]["steps_per_s"] > 0
    full = training["classes"]["training"]["steps_per_s"]
    beside["training_part"] = round(beside["classes"]["training"]["steps_per_s"] / full, 3)
    beside["ok"] = (all(gets(beside, kind) == 1 and wait(beside, kind) < 50 for kind in ORDER)
                    and gets(beside, "SEMANTIC_REPAIR") < 0.1 and beside["training_part"] > 0.25)
    crowd["training_part"] = round(crowd["classes"]["training"]["steps_per_s"] / full, 3)
    leases = [crowd["classes"][kind]["acquired"] for kind in ORDER]
    crowd["ok"] = (leases == sorted(leases, reverse=True)
                   and wait(crowd, "ASR", "p95") <= wait(crowd, "NMT", "p95") <= wait(crowd, "TTS", "p95")
                   and gets(crowd, "ASR") >= gets(crowd, "NMT") >= gets(crowd, "TTS")
                   and gets(crowd, "SEMANTIC_REPAIR") < 0.1 and crowd["training_part"] > 0)
    yield from (alone, training, beside, crowd)


def more_memory_than_the_card_has(bench):
    services = {kind.lower(): kind for kind in ORDER}
    day = Day(bench, services, memory=20, training_memory=100)
    day.wait_until_ready(150)
    turns = {name: 3 for name in services} | {"training": 0}
    lines = day.play([("beside too much memory", 40, turns)])
    one = entry(lines, "beside too much memory", [*ORDER, "training"])
    # Work under a lease takes about as long as it does where memory is never away: it is there already.
    one["ok"] = all(one["classes"][kind]["acquired"] > 0 and
                    one["classes"][kind]["worked_ms"] < 2 * max(WORK[kind], 150) for kind in ORDER)
    yield one


def table(content, out):
    lines = [f"{content['machine']['gpu']}, driver {content['machine']['driver']}", "",
             "| phase | class | requests | leases | refused | wait p50, p95, max (ms) | work (ms) |",
             "|---|---|---|---|---|---|---|"]
    for one in content["results"]:
        for kind, got in one.get("classes", {}).items():
            if kind == "training":
                part = f", {one['training_part']} of alone" if "training_part" in one else ""
                lines.append(f"| {one['name']} | training | {got['steps_per_s']} steps/s{part} | | | | |")
            elif got["requests"]:
                refused = ", ".join(f"{count} {why}" for why, count in got["refused"].items()) or "-"
                wait = got["wait_ms"]
                lines.append(f"| {one['name']} | {kind} | {got['requests']} | {got['acquired']} | {refused} | "
                             f"{wait['p50']}, {wait['p95']}, {wait['max']} | {got['worked_ms']} |")
    (out / "arbiter.md").write_text("\n".join(lines) + "\n")


def main():
    bench = Bench("arbiter", sys.argv[1], sys.argv[2])
    report = Report(bench, "tests/gpu/arbiter/run.sh build/dev out", table)
    report.section("beside training", 150, lambda: beside_training(bench))
    bench.stop()
    report.section("memory", 120, lambda: more_memory_than_the_card_has(bench))
    bench.stop()
    print((bench.out / "arbiter.md").read_text())
    return report.code()


sys.exit(main())
