"""Training with a whole step in a CUDA graph, and with torch.cuda.make_graphed_callables."""

import torch_model
import torch

from result import Digest, finish


def train_whole_step(digest):
    model = torch_model.Model(layers=3).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, capturable=True)
    one_hot, wanted = torch_model.batch()

    def step():
        optimizer.zero_grad(set_to_none=False)
        loss = torch_model.loss_of(model, one_hot, wanted)
        loss.backward()
        optimizer.step()
        return loss

    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(aside)

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()
    for _ in range(60):
        new_one_hot, new_wanted = torch_model.batch()
        one_hot.copy_(new_one_hot)
        wanted.copy_(new_wanted)
        graph.replay()
        digest.add(loss.detach().cpu().numpy())
    torch_model.add_parameters(digest, model)


def train_graphed_block(digest):
    block = torch_model.Block(256, 8).cuda()
    example = torch.randn(16, 64, 256, device="cuda", requires_grad=True)
    graphed = torch.cuda.make_graphed_callables(block, (example,))
    optimizer = torch.optim.SGD(block.parameters(), lr=1e-2)
    for _ in range(40):
        optimizer.zero_grad(set_to_none=False)
        loss = graphed(torch.randn(16, 64, 256, device="cuda", requires_grad=True)).square().mean()
        loss.backward()
        optimizer.step()
        digest.add(loss.detach().cpu().numpy())
    torch_model.add_parameters(digest, block)


def main():
    torch_model.deterministic()
    digest = Digest()
    train_whole_step(digest)
    train_graphed_block(digest)
    finish(digest, torch_model.versions())


main()
