"""A training in PyTorch with much memory beside it, of which a part changes with each step.

--seconds S trains for about so long and says how many steps that were; --steps N does so many. What
it prints is the same whenever the number of steps is: every loss, bit for bit, and a checksum of
every chunk of the memory."""

import argparse
import hashlib
import time

import torch_model
import torch

from result import Digest, finish

CHUNK = 1 << 28  # words: 1 GiB
SLICE = 1 << 24


def take(gib):
    """Words that tell where they are."""
    chunks = []
    for i in range(gib):
        chunk = torch.arange(CHUNK, dtype=torch.int32, device="cuda")
        chunks.append(chunk.mul_(2654435761 % (1 << 31)).add_(i))
    return chunks


def checksum(chunk):
    """Of whole numbers, so that it is the same in whatever order they are added."""
    places = torch.arange(1, SLICE + 1, dtype=torch.int64, device="cuda")
    total = torch.zeros((), dtype=torch.int64, device="cuda")
    for number, part in enumerate(chunk.split(SLICE), start=1):
        total += (part.long() * places[:part.numel()]).sum() * number
    return total.item()


def is_expandable():
    """Whether the allocator has expandable segments; None where PyTorch does not tell."""
    try:
        return any(one["is_expandable"] for one in torch.cuda.memory._snapshot()["segments"])
    except Exception:  # whatever it is: this is only to be known, and the rest is not lost for it
        return None


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--ballast", type=int, default=1, help="GiB")
    arguments.add_argument("--seconds", type=float, default=0)
    arguments.add_argument("--steps", type=int, default=0)
    options = arguments.parse_args()

    torch_model.deterministic()
    ballast = take(options.ballast)
    model = torch_model.Model().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = hashlib.sha256()
    # Waited for once in a while only, as programs do.
    waiting = []

    def note():
        for loss in torch.stack(waiting).cpu().tolist():
            losses.update(loss.hex().encode())
        waiting.clear()

    torch.cuda.synchronize()
    begin = time.monotonic()
    steps = 0
    while steps < options.steps or (options.steps == 0 and time.monotonic() - begin < options.seconds):
        optimizer.zero_grad(set_to_none=True)
        loss = torch_model.loss_of(model, *torch_model.batch())
        loss.backward()
        optimizer.step()
        # The ballast belongs to the training: a chunk of it takes up each loss.
        ballast[steps % len(ballast)].add_(loss.detach().view(torch.int32))
        waiting.append(loss.detach())
        steps += 1
        if steps % 10 == 0:
            note()
    if waiting:
        note()
    seconds = time.monotonic() - begin
    sums = [checksum(chunk) for chunk in ballast]
    digest = Digest()
    torch_model.add_parameters(digest, model)
    finish(digest, torch_model.versions(), steps=steps, seconds=round(seconds, 2),
           losses=losses.hexdigest()[:32], last_loss=loss.item(), expandable=is_expandable(),
           ballast=hashlib.sha256(repr(sums).encode()).hexdigest()[:32])


main()
