"""Learns to read handwritten digits (scikit-learn's 1,797 images of 8 x 8) with DistributedDataParallel.

An ordinary PyTorch script; the five steps that make it restartable are marked (1) to (5). It runs alone
too: `python3 digits.py`. Rank 0 prints lines of `name=value` words:

    step=120 loss=0.1234 allreduce=1.23GB/s
    checkpoint=attempt-1/step-140
    accuracy=0.975
"""

import argparse
import os
import time

import fireflyer
import numpy
import torch
import torch.distributed as dist
from sklearn.datasets import load_digits

BATCH = 32  # Images a rank and step.
HELD_OUT = 360  # Images that the model is tested on and never sees.


def main() -> None:
    options = parse_options()
    torch.set_num_threads(1)
    for name, alone in {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
    }.items():
        os.environ.setdefault(name, alone)
    # (1) "hfreduce" instead of "gloo".
    dist.init_process_group(options.backend)
    torch.manual_seed(options.seed)
    images, labels, test_images, test_labels = load_data(options.data)
    model = torch.nn.parallel.DistributedDataParallel(build_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9)

    # (2) Everything that a restart needs.
    checkpoint = fireflyer.Checkpoint({"model": model, "optimizer": optimizer})
    # (3) 0, or where the last attempt left off.
    start = checkpoint.resume()
    shown = checkpoint.last
    if shown:
        say(f"resumed={shown.name}")
    if start >= options.steps:
        say(f"nothing to train: {start} of {options.steps} steps are done")
    trace = Trace(options.trace)
    # (4) Saves when it is time, when the job has to make room, and at the end.
    for step in checkpoint.steps(options.steps):
        shown = say_if_new(checkpoint.last, shown)
        began = time.monotonic()
        batch = batch_of(step, len(images), options.seed)
        loss = torch.nn.functional.cross_entropy(model(images[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        loss = mean_over_ranks(loss.detach())
        trace.add(loss)
        if step % options.print_every == 0:
            say(f"step={step} loss={loss:.4f} allreduce={allreduce_rate(model):.2f}GB/s")
        checkpoint.report(loss)
        time.sleep(max(0.0, began + options.pace - time.monotonic()))
    say_if_new(checkpoint.last, shown)
    if checkpoint.stopped:
        # (5) The rest is the next attempt's.
        say(f"stopped=step-{step}")
    else:
        say(f"accuracy={accuracy(model.module, test_images, test_labels):.4f}")
    dist.destroy_process_group()


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", choices=["hfreduce", "gloo"], default="hfreduce")
    parser.add_argument(
        "--data",
        metavar="FOLDER",
        help="where all ranks read the images; rank 0 puts them there once",
    )
    parser.add_argument("--steps", type=int, default=1000, help="steps to train")
    parser.add_argument("--seed", type=int, default=1, help="makes a run repeatable")
    parser.add_argument("--print-every", type=int, default=20, help="steps between two lines")
    parser.add_argument(
        "--pace", type=float, default=0.0, help="seconds that a step takes at least, for watching"
    )
    parser.add_argument(
        "--trace", metavar="FILE", help="rank 0 writes the loss of each step into it"
    )
    return parser.parse_args()


def load_data(
    folder: "str | None",
) -> "tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]":
    """Images and labels to train on, then those to test on: the same split for every rank and seed."""
    data, target = load_digits(return_X_y=True) if folder is None else read_data(folder)
    order = torch.randperm(len(target), generator=torch.Generator().manual_seed(0))
    images = (torch.tensor(data, dtype=torch.float32) / 16 - 0.3)[order]
    labels = torch.tensor(target)[order]
    return images[HELD_OUT:], labels[HELD_OUT:], images[:HELD_OUT], labels[:HELD_OUT]


def read_data(folder: str) -> "tuple[numpy.ndarray, numpy.ndarray]":
    """The images as they lie in a folder that all ranks see."""
    path = os.path.join(folder, "digits.npz")
    if dist.get_rank() == 0 and not os.path.exists(path):
        os.makedirs(folder, exist_ok=True)
        data, target = load_digits(return_X_y=True)
        with open(path + ".part", "wb") as file:
            numpy.savez(file, data=data, target=target)
        os.rename(path + ".part", path)  # Who sees the name sees all of it.
    dist.barrier()
    say(f"data={path}")
    with numpy.load(path) as file:
        return file["data"], file["target"]


def build_model() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(64, 512),
        torch.nn.GELU(),
        torch.nn.Linear(512, 512),
        torch.nn.GELU(),
        torch.nn.Linear(512, 10),
    )


def batch_of(step: int, images: int, seed: int) -> torch.Tensor:
    """This rank's images of a step. They depend on the step alone: a resumed run sees the same."""
    per_step = BATCH * dist.get_world_size()
    epoch, index = divmod(step, images // per_step)
    order = torch.randperm(
        images, generator=torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    )
    return order[index * per_step : (index + 1) * per_step][
        dist.get_rank() :: dist.get_world_size()
    ]


def mean_over_ranks(loss: torch.Tensor) -> float:
    """The mean of those who take part: a job may go on without ranks that were lost."""
    total = torch.stack([loss, torch.ones_like(loss)])
    dist.all_reduce(total)
    return (total[0] / total[1]).item()


def allreduce_rate(model: torch.nn.Module) -> float:
    """GB/s at which a tensor as large as all gradients is summed over the ranks."""
    tensor = torch.zeros(sum(parameter.numel() for parameter in model.parameters()))
    dist.barrier()
    start = time.perf_counter()
    dist.all_reduce(tensor)
    return tensor.numel() * tensor.element_size() / (time.perf_counter() - start) / 1e9


@torch.no_grad()
def accuracy(model: torch.nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    """The share of images that is read right; each rank reads a part of them."""
    mine = slice(dist.get_rank(), None, dist.get_world_size())
    right = model(images[mine]).argmax(1) == labels[mine]
    total = torch.tensor([right.sum(), right.numel()])
    dist.all_reduce(total)
    return (total[0] / total[1]).item()


class Trace:
    """The losses of all steps, one on each line, for comparing two runs."""

    def __init__(self, path: "str | None") -> None:
        self._file = open(path, "w", buffering=1) if path and dist.get_rank() == 0 else None

    def add(self, loss: float) -> None:
        if self._file is not None:
            self._file.write(f"{loss!r}\n")


def say_if_new(last: object, shown: object) -> object:
    """Prints the newest checkpoint, if it is another than was shown last."""
    if last is not None and last != shown:
        say(f"checkpoint={last.name}")
    return last


def say(line: str) -> None:
    if dist.get_rank() == 0:
        print(line, flush=True)


if __name__ == "__main__":
    main()
