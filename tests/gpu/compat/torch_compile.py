"""Training with torch.compile (Inductor and Triton), and inference with its CUDA graphs."""

import torch_model
import torch

from result import Digest, finish


def main():
    torch_model.deterministic()
    digest = Digest()
    model = torch_model.Model(width=256, layers=2).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    compiled = torch.compile(torch_model.loss_of)
    for _ in range(40):
        optimizer.zero_grad(set_to_none=True)
        loss = compiled(model, *torch_model.batch())
        loss.backward()
        optimizer.step()
        digest.add(loss.detach().cpu().numpy())
    torch_model.add_parameters(digest, model)

    infer = torch.compile(model, mode="reduce-overhead")
    with torch.no_grad():
        for _ in range(10):
            torch.compiler.cudagraph_mark_step_begin()
            digest.add(infer(torch_model.batch()[0]).cpu().numpy())
    import triton

    finish(digest, {**torch_model.versions(), "triton": triton.__version__})


main()
