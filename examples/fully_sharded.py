"""A transformer under fully_shard on a 2 x 2 mesh, with a memory that is spread over its data-parallel ranks.

Along the dimension "dp" of the mesh, ranks embed different images. Along "tp" they hold parts of the same
layers, and embed the same images together. So the memory is given the ranks of mesh["dp"]: each of these
groups holds all rows once, spread over its ranks. The images are Glyphs, which matplotlib draws. Needs torch
2.6 or newer.

    torchrun --nproc_per_node=4 examples/fully_sharded.py
    torchrun --nproc_per_node=4 examples/fully_sharded.py --tensor-parallel 1 --resume
"""

from __future__ import annotations

import argparse
import os
from importlib.util import find_spec
from typing import Any

import torch
from pytorch_metric_learning.losses import SupConLoss
from torch import Tensor, distributed, nn
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.nn.functional import gelu, scaled_dot_product_attention

from pml_xbn import XBNWrapper
from pml_xbn.datasets import Glyphs

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--batch-size", type=int, default=32, help="of a data-parallel rank (default: 32)")
parser.add_argument("--memory-size", type=int, default=10_000, help="of all together (default: 10,000)")
parser.add_argument("--tensor-parallel", type=int, default=2, help="ranks that divide layers (default: 2)")
parser.add_argument("--folder", default="runs/fully_sharded", help="of the checkpoint")
parser.add_argument("--resume", action="store_true")
args = parser.parse_args()
if find_spec("matplotlib") is None:  # behind the flags, so that --help does not need it
    raise SystemExit('matplotlib is missing: pip install ".[examples]"')
if "RANK" not in os.environ:
    raise SystemExit("torchrun starts it: torchrun --nproc_per_node=4 examples/fully_sharded.py")
WIDTH, HEAD, PATCH = 64, 16, 8


class Block(nn.Module):
    """Attention and two linear layers; on a rank, the heads and units that it holds."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, tokens: Tensor) -> Tensor:
        normed = self.norms[0](tokens)
        heads = [part(normed).unflatten(2, (-1, HEAD)) for part in (self.query, self.key, self.value)]
        seen = scaled_dot_product_attention(*(x.transpose(1, 2) for x in heads))
        tokens = tokens + self.out(seen.transpose(1, 2).flatten(2))
        change: Tensor = self.down(gelu(self.up(self.norms[1](tokens))))
        return tokens + change


class Transformer(nn.Module):
    """Embeds images ``(b, 32, 32)`` by their patches."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.places = nn.Linear(PATCH**2, WIDTH), nn.Parameter(torch.zeros(16, WIDTH))
        self.blocks, self.head = nn.Sequential(Block(), Block()), nn.Linear(WIDTH, 64)

    def forward(self, images: Tensor) -> Tensor:
        patches = images.unfold(1, PATCH, PATCH).unfold(2, PATCH, PATCH).flatten(1, 2).flatten(2)
        tokens = self.blocks(self.patches(patches) + self.places)
        embeddings: Tensor = self.head(tokens.mean(dim=1))
        return embeddings


def spread(model: Transformer, mesh: Any) -> None:
    """Divides the layers of blocks along "tp", and the parameters of all along "dp"."""
    from torch.distributed.fsdp import fully_shard  # behind the flags, as it is new in torch 2.6
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    for block in model.blocks:
        plan = {name: ColwiseParallel() for name in ("query", "key", "value", "up")}
        parallelize_module(block, mesh["tp"], plan | {name: RowwiseParallel() for name in ("out", "down")})
        fully_shard(block, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])


def main() -> None:
    on_gpu = torch.cuda.is_available()
    device = torch.device(f"cuda:{os.environ['LOCAL_RANK']}" if on_gpu else "cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    distributed.init_process_group("nccl" if on_gpu else "gloo")
    train(device)
    distributed.barrier()  # nobody leaves while another still listens
    distributed.destroy_process_group()


def train(device: torch.device) -> None:
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from torch.distributed.device_mesh import init_device_mesh

    shape = distributed.get_world_size() // args.tensor_parallel, args.tensor_parallel
    mesh = init_device_mesh(device.type, shape, mesh_dim_names=("dp", "tp"))
    torch.manual_seed(0)  # the same weights on all ranks
    model = Transformer().to(device)
    spread(model, mesh)
    loss_fn = XBNWrapper(
        SupConLoss(temperature=0.1),
        embedding_size=64,
        memory_size=args.memory_size,
        shard_distributed=True,
        process_group=mesh["dp"],
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def state() -> dict[str, Any]:
        parts = get_state_dict(model, optimizer)
        return {"model": parts[0], "optimizer": parts[1], "loss": loss_fn.state_dict()}

    if args.resume:
        loaded = state()
        load(loaded, checkpoint_id=args.folder)  # into the tensors of the state
        states = {"model_state_dict": loaded["model"], "optim_state_dict": loaded["optimizer"]}
        set_state_dict(model, optimizer, **states)
        loss_fn.load_state_dict(loaded["loss"])

    torch.manual_seed(mesh["dp"].get_local_rank())  # other images along "dp", the same along "tp"
    dataset, total = Glyphs("train"), torch.zeros((), device=device)
    for _ in range(args.steps):
        batch = torch.randint(len(dataset.labels), (args.batch_size,))
        images, labels = dataset.images[batch].to(device) / 255, dataset.labels[batch].to(device)
        optimizer.zero_grad()
        loss = loss_fn(model(images.view(-1, 32, 32)), labels)
        loss.backward()
        optimizer.step()
        total += loss.detach()
    save(state(), checkpoint_id=args.folder)
    own = len(loss_fn.label_memory)
    print(f"loss {total / args.steps:.3f}; {loss_fn.num_rows} rows, room for {own} of them here", flush=True)


if __name__ == "__main__":
    main()
