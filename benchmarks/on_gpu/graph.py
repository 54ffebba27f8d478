"""A call as one graph that is replayed: a CUDA graph, or what stands for it on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

Call = Callable[..., tuple[Tensor, ...]]
_WARM_UP = 3  # calls, of which a memory needs two before a graph can hold it


def captured(call: Call, *example: Tensor) -> Call:
    """Returns a graph of the call, which takes tensors of the shapes of the example.

    What it returns is overwritten by the next replay.
    """
    if example[0].device.type != "cuda":
        for _ in range(_WARM_UP):
            call(*example)
        graph: Any = torch.no_grad()(make_fx(call)(*example))
        return graph
    inputs = [x.clone() for x in example]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(_WARM_UP):
            call(*inputs)
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    cuda_graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(cuda_graph):
        results = call(*inputs)

    def replay(*given: Tensor) -> tuple[Tensor, ...]:
        for own, new in zip(inputs, given, strict=True):
            own.copy_(new)
        cuda_graph.replay()
        return results

    return replay
