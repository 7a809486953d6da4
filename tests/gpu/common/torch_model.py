"""The network that the PyTorch programs train, and how PyTorch is made to repeat itself exactly."""

import os

# Before CUDA is used: the only workspace with which cuBLAS is deterministic.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch
from torch import nn

VOCABULARY = 2048


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.before_attention = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.before_mlp = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        batch, length, width = x.shape
        shape = (batch, length, self.heads, width // self.heads)
        q, k, v = (part.reshape(shape).transpose(1, 2) for part in
                   self.qkv(self.before_attention(x)).chunk(3, dim=-1))
        weights = (q @ k.transpose(-2, -1) / (width // self.heads) ** 0.5).softmax(dim=-1)
        x = x + self.out((weights @ v).transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.before_mlp(x))


class Model(nn.Module):
    """A transformer over token numbers. One-hot times a matrix stands for the usual table of
    embeddings, whose gradient is summed in no fixed order."""

    def __init__(self, width=512, heads=8, layers=6):
        super().__init__()
        self.embed = nn.Linear(VOCABULARY, width, bias=False)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, one_hot):
        x = self.embed(one_hot)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def deterministic():
    torch.manual_seed(1234)
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    torch.backends.cuda.matmul.allow_tf32 = False


def loss_of(model, one_hot, wanted):
    scores = model(one_hot)
    return -(scores.log_softmax(dim=-1) * wanted).sum(dim=-1).mean()


def batch(size=8, length=128, device="cuda"):
    tokens = torch.randint(0, VOCABULARY, (size, length + 1), device=device)
    one_hot = nn.functional.one_hot(tokens, VOCABULARY).float()
    return one_hot[:, :-1].contiguous(), one_hot[:, 1:].contiguous()


def add_parameters(digest, model):
    for parameter in model.parameters():
        digest.add(parameter.detach().cpu().numpy())


def versions():
    return {"torch": torch.__version__, "cuda": torch.version.cuda,
            "device": torch.cuda.get_device_name()}
