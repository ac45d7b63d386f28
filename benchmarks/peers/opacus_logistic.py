"""DP-SGD with Opacus as its users write it: `make_private`, its Poisson loader, hooks on the model.

`--loader index` replaces the loader by indexing the data with Poisson draws of the same rate: what
Opacus costs without collating its batches row by row.
"""

import argparse
import warnings
from collections.abc import Iterable, Iterator

import data
import numpy as np
import torch
from opacus import PrivacyEngine
from timing import Fit, report
from torch.utils.data import DataLoader, TensorDataset

Batch = tuple[torch.Tensor, torch.Tensor]


def poisson_batches(dataset: TensorDataset) -> Iterator[Batch]:
    """One epoch of Poisson batches, drawn as Opacus draws them and taken by index."""
    features, labels = dataset.tensors
    for _ in range(data.STEPS_PER_EPOCH):
        chosen = torch.rand(len(features)) < data.RATE
        yield features[chosen], labels[chosen]


def train(dataset: TensorDataset, by_index: bool) -> Fit:
    """Five epochs of Poisson-sampled, clipped and noised SGD on a fresh linear model."""
    torch.manual_seed(0)
    model = torch.nn.Linear(data.D, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=data.LEARNING_RATE)
    criterion = torch.nn.BCEWithLogitsLoss()
    model, optimizer, loader = PrivacyEngine().make_private(
        module=model,
        optimizer=optimizer,
        data_loader=DataLoader(dataset, batch_size=data.BATCH, shuffle=True),
        noise_multiplier=data.NOISE_MULTIPLIER,
        max_grad_norm=data.CLIP,
    )
    model.train()
    steps = 0
    for _ in range(data.EPOCHS):
        batches: Iterable[Batch] = poisson_batches(dataset) if by_index else loader
        for features, labels in batches:
            optimizer.zero_grad()
            loss = criterion(model(features).squeeze(1), labels)
            loss.backward()
            optimizer.step()
            steps += 1
    weight, bias = (p.detach().numpy() for p in model.parameters())
    return Fit(np.array(weight[0]), float(bias[0]), steps)


def main() -> None:
    """Time the task and print one JSON line."""
    parser = argparse.ArgumentParser(description="DP-SGD with Opacus on a9a")
    parser.add_argument("--loader", choices=("opacus", "index"), default="opacus")
    by_index = parser.parse_args().loader == "index"
    warnings.filterwarnings("ignore")  # every run warns that the generator is not cryptographic
    x, y, source = data.load()
    dataset = TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
    name = "opacus (by index)" if by_index else "opacus"
    report(name, lambda: train(dataset, by_index), x, y, source)


if __name__ == "__main__":
    main()
