"""A PyTorch program with much random data that does what it is told, a line at a time: sleep.py's other half.

Answers each line with one: `link` measures plain pinned copies both ways, `change` changes every word, `check` says
what the data are. Before the first it says that it is ready."""

import argparse
import hashlib
import json
import sys
import time

import torch

CHUNK = 1 << 28  # words: 1 GiB
SLICE = 1 << 24


def checksum(chunk):
    """Of whole numbers, so that it is the same in whatever order they are added."""
    places = torch.arange(1, SLICE + 1, dtype=torch.int64, device="cuda")
    total = torch.zeros((), dtype=torch.int64, device="cuda")
    for number, part in enumerate(chunk.split(SLICE), start=1):
        total += (part.long() * places[:part.numel()]).sum() * number
    return total.item()


def digest(chunks):
    text = repr([checksum(chunk) for chunk in chunks])
    torch.cuda.empty_cache()  # what it took is not to be moved with the data
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def best_rate(copy, gib, rounds=3):
    """GiB/s of the fastest round; the first one has to warm up."""
    fastest = float("inf")
    for _ in range(rounds):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        copy()
        torch.cuda.synchronize()
        fastest = min(fastest, time.perf_counter() - begin)
    return round(gib / fastest, 3)


def link(chunks, gib):
    chunks = chunks[:gib]
    host = [torch.empty(CHUNK, dtype=torch.int32, pin_memory=True) for _ in chunks]
    out = best_rate(lambda: [there.copy_(here, non_blocking=True) for there, here in zip(host, chunks)], len(chunks))
    back = best_rate(lambda: [here.copy_(there, non_blocking=True) for there, here in zip(host, chunks)], len(chunks))
    return {"out": out, "in": back}


def say(what, value):
    print(f"{what} {json.dumps(value)}", flush=True)


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--gib", type=int, default=64)
    arguments.add_argument("--pinned", type=int, default=8, help="GiB of the plain copies")
    options = arguments.parse_args()
    torch.manual_seed(1)
    chunks = [torch.empty(CHUNK, dtype=torch.int32, device="cuda").random_() for _ in range(options.gib)]
    torch.cuda.synchronize()
    say("ready", {"torch": torch.__version__, "gib": len(chunks)})
    for line in sys.stdin:
        word = line.strip()
        if word == "link":
            say(word, link(chunks, options.pinned))
        elif word == "change":
            for chunk in chunks:
                chunk.bitwise_xor_(0x5A5A5A5A)
            torch.cuda.synchronize()
            say(word, True)
        elif word == "check":
            say(word, digest(chunks))
        elif word == "end":
            return


main()
