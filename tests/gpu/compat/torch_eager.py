"""Training in plain PyTorch. `--time N` measures N steps instead of computing a result."""

import argparse

import torch_model
import torch

from result import Digest, finish, median_step


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--steps", type=int, default=60)
    arguments.add_argument("--time", type=int, default=0)
    options = arguments.parse_args()

    torch_model.deterministic()
    # What is timed keeps the GPU busy all the time: a step that waits for Python measures Python.
    shape = {"width": 1024, "heads": 16, "layers": 6} if options.time > 0 else {}
    model = torch_model.Model(**shape).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    digest = Digest()

    def step(data):
        optimizer.zero_grad(set_to_none=True)
        loss = torch_model.loss_of(model, *data)
        loss.backward()
        optimizer.step()
        return loss

    more = {}
    if options.time > 0:
        data = torch_model.batch(size=32, length=128)
        more["step_ms"] = median_step(lambda: step(data), torch.cuda.synchronize, 10, options.time)
    else:
        for _ in range(options.steps):
            digest.add(step(torch_model.batch()).detach().cpu().numpy())
        torch_model.add_parameters(digest, model)
    finish(digest, torch_model.versions(), **more)


main()
