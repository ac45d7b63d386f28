"""DP-SGD with Opacus on prepared rows: a linear model, Poisson batches, momentum, its PRV accountant.

Batches are taken from the tensors by index with the draws of its Poisson sampler, and its ghost clipping
spares the gradients of single examples; both save time and change no model. See `accuracy.py` for the
jobs; settings are `learning_rate`, `clip`, `epochs`, `batches` (per epoch) and `momentum`.
"""

import logging
import warnings
from functools import cache

import torch
from accuracy import Job, Model, Rows, answer
from opacus import PrivacyEngine
from opacus.accountants.utils import get_noise_multiplier
from torch.utils.data import DataLoader, TensorDataset

# Of epsilon: how far below its target the noise may leave it, and the accountant's own error.
TOLERANCE = 0.01


@cache
def noise_multiplier(epsilon: float, delta: float, batches: int, steps: int) -> float:
    """The least noise that Opacus finds for the budget."""
    return float(
        get_noise_multiplier(
            target_epsilon=epsilon,
            target_delta=delta,
            sample_rate=1 / batches,
            steps=steps,
            accountant="prv",
            epsilon_tolerance=TOLERANCE * epsilon,
            eps_error=TOLERANCE * epsilon,
        )
    )


def train(rows: Rows, job: Job, seed: int) -> Model:
    """One run from zero."""
    settings = job.settings
    batches, steps = settings["batches"], settings["epochs"] * settings["batches"]
    noise = noise_multiplier(job.epsilon, job.delta, batches, steps)
    X, y = torch.from_numpy(rows.X), torch.from_numpy(rows.y)
    torch.manual_seed(seed)
    outputs = 1 if rows.classes == 2 else rows.classes
    model = torch.nn.Linear(X.shape[1], outputs)
    torch.nn.init.zeros_(model.weight)
    torch.nn.init.zeros_(model.bias)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=settings["learning_rate"], momentum=settings["momentum"]
    )
    criterion = torch.nn.CrossEntropyLoss()
    if outputs == 1:
        # One logit a row, without an axis of length 1: ghost clipping would broadcast the losses.
        model = torch.nn.Sequential(model, torch.nn.Flatten(0))
        y, criterion = y.float(), torch.nn.BCEWithLogitsLoss()
    model, optimizer, criterion, _ = PrivacyEngine(accountant="prv").make_private(
        module=model,
        optimizer=optimizer,
        criterion=criterion,
        data_loader=DataLoader(TensorDataset(X, y), batch_size=-(-len(y) // batches)),
        noise_multiplier=noise * len(y) / job.examples,
        max_grad_norm=settings["clip"],
        grad_sample_mode="ghost",
    )
    for _ in range(steps):
        chosen = torch.rand(len(y)) < 1 / batches
        optimizer.zero_grad()
        criterion(model(X[chosen]), y[chosen]).backward()
        optimizer.step()
    weights, bias = (p.detach().numpy().copy() for p in model.parameters())
    return weights, bias, {"noise_multiplier": round(noise, 4), "steps": steps}


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")  # every run warns that the generator is not cryptographic
    logging.disable(logging.WARNING)
    answer(train, ("opacus", "torch"))
