#!/usr/bin/env python3
"""compare_core.py BEFORE AFTER [--out FILE]: two builds of core_bench, in turn on one machine.

Times of different machines, or of different hours on one, do not compare. So both programs run one
after the other, several times, and the medians of their times are compared.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROUNDS = 5
EVENTS = "hand_over|work_requested|limits_changed|memory_changed|stop_and_go"


def times(program):
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        subprocess.run(
            [program, f"--benchmark_filter={EVENTS}", f"--benchmark_out={out.name}",
             "--benchmark_out_format=json", "--benchmark_repetitions=1", "--benchmark_min_time=0.15"],
            check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        found = json.loads(pathlib.Path(out.name).read_text())
    return {one["name"]: one["cpu_time"] for one in found["benchmarks"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("before")
    parser.add_argument("after")
    parser.add_argument("--out", help="a file for the results")
    arguments = parser.parse_args()
    rounds = []
    for i in range(ROUNDS):
        rounds.append((times(arguments.before), times(arguments.after)))
        print(f"round {i + 1} of {ROUNDS}", file=sys.stderr)
    results = {}
    for name in rounds[0][1]:
        after = statistics.median(one[1][name] for one in rounds)
        if name not in rounds[0][0]:
            continue
        before = statistics.median(one[0][name] for one in rounds)
        results[name] = {"before_ns": round(before, 1), "after_ns": round(after, 1),
                         "ratio": round(after / before, 3)}
        print(f"{name:36} {before:8.0f} ns before, {after:8.0f} after: {after / before:.3f} times")
    if arguments.out:
        about = {"command": "bench/compare_core.py BEFORE AFTER", "rounds": ROUNDS, "results": results}
        pathlib.Path(arguments.out).write_text(json.dumps(about, indent=1) + "\n")


if __name__ == "__main__":
    main()
