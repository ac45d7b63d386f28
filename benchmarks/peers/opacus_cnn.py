"""DP-SGD on images with Opacus: `make_private` with hooks, batches sliced from the data, no loader.

`--mode ghost` uses its ghost clipping, `--mode plain` trains without privacy.
"""

import argparse
import warnings

import images
import torch
from opacus import PrivacyEngine
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset


class Network(nn.Module):
    """The network of Opacus' MNIST example."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 8, 2, padding=3)
        self.conv2 = nn.Conv2d(16, 32, 4, 2)
        self.fc1 = nn.Linear(32 * 4 * 4, 32)
        self.fc2 = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits of a batch (examples, 1, 28, 28)."""
        x = functional.max_pool2d(functional.relu(self.conv1(x)), 2, 1)
        x = functional.max_pool2d(functional.relu(self.conv2(x)), 2, 1)
        return self.fc2(functional.relu(self.fc1(x.flatten(1))))


def train(x: torch.Tensor, y: torch.Tensor, mode: str) -> nn.Module:
    """One epoch on a fresh network."""
    torch.manual_seed(0)
    model: nn.Module = Network()
    optimizer = torch.optim.SGD(model.parameters(), lr=images.LEARNING_RATE)
    criterion = nn.CrossEntropyLoss()
    if mode != "plain":
        parts = {
            "module": model,
            "optimizer": optimizer,
            "data_loader": DataLoader(TensorDataset(x, y), batch_size=images.BATCH),
            "noise_multiplier": images.NOISE_MULTIPLIER,
            "max_grad_norm": images.CLIP,
            "poisson_sampling": False,
            "grad_sample_mode": mode,
        }
        if mode == "ghost":
            model, optimizer, criterion, _ = PrivacyEngine().make_private(
                criterion=criterion, **parts
            )
        else:
            model, optimizer, _ = PrivacyEngine().make_private(**parts)
    for first in range(0, images.N, images.BATCH):
        now = slice(first, first + images.BATCH)
        optimizer.zero_grad()
        loss = criterion(model(x[now]), y[now])
        loss.backward()
        optimizer.step()
    return model


def main() -> None:
    """Time the task and print one JSON line."""
    parser = argparse.ArgumentParser(description="DP-SGD with Opacus on images")
    parser.add_argument("--mode", choices=("hooks", "ghost", "plain"), default="hooks")
    mode = parser.parse_args().mode
    warnings.filterwarnings("ignore")  # every run warns that the generator is not cryptographic
    pixels, labels = images.load()
    x, y = torch.from_numpy(pixels)[:, None], torch.from_numpy(labels)

    def accuracy(model: nn.Module) -> float:
        model.eval()
        with torch.no_grad():
            return float((model(x).argmax(1) == y).float().mean())

    name = "torch, no privacy" if mode == "plain" else f"opacus ({mode})"
    images.report(name, lambda: train(x, y, mode), accuracy)


if __name__ == "__main__":
    main()
