"""A service like ASR, NMT or TTS: it asks for a lease, works on the GPU, and gives the lease back.

service.py NAME CLASS PLAN --memory GIB --work MS. It begins when the file PLAN is there: phases with
begin and end (time.monotonic()), and for each name the seconds between two requests. It prints a line
of JSON for each request.
"""

import argparse
import http.client
import json
import os
import pathlib
import socket
import time

import torch

SIDE = 8192  # of a matrix of 128 MiB
ROWS = 4096


class Scheduler(http.client.HTTPConnection):
    """The scheduler's API, over its Unix socket."""

    def __init__(self):
        super().__init__("localhost", timeout=30)

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(30)
        self.sock.connect(os.environ["NVSHARE_RUN_DIR"] + "/api.sock")

    def call(self, method, path, body=None):
        self.request(method, path, None if body is None else json.dumps(body))
        text = self.getresponse().read()
        return json.loads(text) if text else {}


class Model:
    """Weights of so many GiB. A unit of work reads all of them."""

    def __init__(self, gib):
        self.weights = [torch.randn(SIDE, SIDE, device="cuda", dtype=torch.float16) / SIDE ** 0.5
                        for _ in range(gib * 8)]
        self.input = torch.randn(ROWS, SIDE, device="cuda", dtype=torch.float16)
        self.rounds = 1

    def work(self):
        value = self.input
        for _ in range(self.rounds):
            for weight in self.weights:
                value = value @ weight
        torch.cuda.synchronize()

    def calibrate(self, milliseconds):
        self.work()
        begin = time.monotonic()
        self.work()
        took = 1000 * (time.monotonic() - begin)
        self.rounds = max(1, round(milliseconds / took))


def plan_of(path):
    while not path.exists():
        time.sleep(0.05)
    return json.loads(path.read_text())["phases"]


def serve(scheduler, model, arguments, phase):
    asked = time.monotonic()
    answer = scheduler.call("POST", "/v1/leases", {
        "taskType": arguments.task_class, "hint": {"estimatedGpuHoldMs": int(arguments.work)}})
    answered = time.monotonic()
    said = {"phase": phase, "class": arguments.task_class, "at": asked,
            "result": answer.get("result", str(answer)), "reason": answer.get("reason", ""),
            "waited_ms": 1000 * (answered - asked)}
    if said["result"] == "ACQUIRED":
        model.work()
        said["worked_ms"] = 1000 * (time.monotonic() - answered)
        scheduler.call("DELETE", "/v1/leases/" + answer["leaseId"])
    print(json.dumps(said), flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("task_class")
    parser.add_argument("plan", type=pathlib.Path)
    parser.add_argument("--memory", type=int, required=True)
    parser.add_argument("--work", type=float, required=True)
    arguments = parser.parse_args()
    model = Model(arguments.memory)
    model.calibrate(arguments.work)
    print("ready", flush=True)
    scheduler = Scheduler()
    for phase in plan_of(arguments.plan):
        period = phase["who"].get(arguments.name)
        time.sleep(max(0, phase["begin"] - time.monotonic()))
        while period is not None and time.monotonic() < phase["end"]:
            begin = time.monotonic()
            serve(scheduler, model, arguments, phase["name"])
            time.sleep(max(0, begin + period - time.monotonic()))


main()
