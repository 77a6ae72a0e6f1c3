"""Nothing of ours waits for the whole device: collectives end while a kernel runs on another stream that ends only later.

Such a kernel is NCCL's while another rank is late. Here a kernel of the check takes its place, which runs until the host writes a
word, or gives up: NCCL takes one rank a GPU. Meanwhile 40 tensors are reduced, all in flight at once and of sizes that were never
used, which makes memory and registers it. Who waits for the device then waits until the kernel gives up, and that is seen.
"""

from __future__ import annotations

import ctypes
import time
from typing import Any

import torch
import torch.distributed as dist

from . import device, gang
from .findings import Findings

_SIZES = 40
_GIVES_UP_SECONDS = 20
_FIRST_BYTES = 64 << 10

#: A kernel of one thread: runs until the word at `flag` is not 0 or `limit` nanoseconds are over, and then writes 2 to the next.
_KERNEL = """
.version 6.0
.target sm_50
.address_size 64
.visible .entry wait_for_host(.param .u64 flag, .param .u64 limit)
{
  .reg .pred %p<2>;
  .reg .b32 %r<4>;
  .reg .b64 %d<8>;
  ld.param.u64 %d1, [flag];
  ld.param.u64 %d2, [limit];
  cvta.to.global.u64 %d1, %d1;
  mov.u64 %d3, %globaltimer;
  add.u64 %d3, %d3, %d2;
AGAIN:
  ld.volatile.global.u32 %r1, [%d1];
  setp.ne.u32 %p1, %r1, 0;
  @%p1 bra DONE;
  mov.u64 %d4, %globaltimer;
  setp.lt.u64 %p1, %d4, %d3;
  @%p1 bra AGAIN;
  mov.u32 %r2, 2;
  st.volatile.global.u32 [%d1+4], %r2;
DONE:
  ret;
}
"""


def check(found: Findings) -> None:
    """Two ranks, each with such a kernel."""
    seen = gang.run(__name__, "reduce_beside_a_kernel", {})
    found.figure("seconds_by_rank", [round(one["seconds"], 3) for one in seen])
    found.holds(
        f"{_SIZES} new sizes are reduced while a kernel runs",
        not any(one["gave_up"] for one in seen),
        f"a kernel of a rank ran for {_GIVES_UP_SECONDS} s before the last was reduced: something waits for the device",
    )
    found.holds("the sums are right", not any(one["wrong"] for one in seen))


def reduce_beside_a_kernel() -> dict[str, Any]:
    """In each rank: how long it took, whether the kernel gave up first, and how many sums are wrong."""
    from .cuda import Cuda

    cuda = Cuda()
    kernel = cuda.kernel(cuda.module(_KERNEL), "wait_for_host")
    assert kernel is not None
    word = torch.zeros(2, dtype=torch.int32).pin_memory()
    side = torch.cuda.Stream()
    tensors = [
        torch.full(
            (_FIRST_BYTES * (2 * at + 3) // 4,), float(dist.get_rank() + 1), device=device.DEVICE
        )
        for at in range(_SIZES)
    ]
    # What PyTorch loads when it is first used, and what a first collective makes, is not the question.
    dist.all_reduce(torch.ones(4, device=device.DEVICE))
    torch.cuda.synchronize()
    dist.barrier()
    parameters = (ctypes.c_uint64(word.data_ptr()), ctypes.c_uint64(_GIVES_UP_SECONDS * 10**9))
    started = time.monotonic()
    cuda.launch(kernel, 1, 1, side.cuda_stream, *parameters)
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work in works:
        work.wait()
    ended = torch.cuda.Event()
    ended.record()
    while not ended.query():
        time.sleep(0.001)
    seconds = time.monotonic() - started
    gave_up = int(word[1]) == 2
    # Both ranks: a kernel of one that ends early must not help the other.
    dist.all_reduce(torch.ones(1))
    word[0] = 1
    torch.cuda.synchronize()
    size = dist.get_world_size()
    expected = size * (size + 1) / 2
    wrong = sum(int(not tensor.eq(expected).all()) for tensor in tensors)
    return {"seconds": seconds, "gave_up": gave_up, "wrong": wrong}
