"""A training job: training.py PLAN --memory GIB. It prints a line of JSON for each phase: how many steps
it did in how many seconds."""

import argparse
import json
import pathlib
import time

import torch

SIDE = 8192


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("plan", type=pathlib.Path)
    parser.add_argument("--memory", type=int, required=True)
    arguments = parser.parse_args()
    # Weights and gradients of half a GiB each a layer, and the rest of the memory as a data set on the GPU.
    layers = [torch.nn.Linear(SIDE, SIDE, bias=False, device="cuda") for _ in range(4)]
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    batches = [torch.randn(SIDE, SIDE, device="cuda") for _ in range(max(1, arguments.memory * 4 - 8))]

    def step(number):
        optimizer.zero_grad()
        model(batches[number % len(batches)][:2048]).square().mean().backward()
        optimizer.step()
        torch.cuda.synchronize()

    for number in range(3):
        step(number)
    print("ready", flush=True)
    while not arguments.plan.exists():
        time.sleep(0.05)
    for phase in json.loads(arguments.plan.read_text())["phases"]:
        time.sleep(max(0, phase["begin"] - time.monotonic()))
        steps = 0
        while "training" in phase["who"] and time.monotonic() < phase["end"]:
            step(steps)
            steps += 1
        print(json.dumps({"phase": phase["name"], "class": "training", "steps": steps,
                          "seconds": phase["end"] - phase["begin"]}), flush=True)


main()
