"""The ranks that share a batch, and the tensors that they send each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor
from torch import distributed as dist

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

Result = TypeVar("Result")


class LostRankError(RuntimeError):
    """Another rank did not come to where this one waited for it."""


class Group:
    """The ranks of a process group, or of all processes.

    A process group cannot be pickled. A copy within the process has the same one; what has been unpickled has
    lost it, and raises an error where it is needed until it is given another.

    Args:
        process_group: it, or a one-dimensional mesh; None: all ranks, whenever they are asked for.
    """

    call = "this call"  # whose ranks wait for each other, for messages

    def __init__(self, process_group: dist.ProcessGroup | DeviceMesh | None = None) -> None:
        self._log: _Log | None = None
        self.assign(process_group)

    def assign(self, given: dist.ProcessGroup | DeviceMesh | None) -> None:
        """Takes these ranks from here on."""
        self.process_group, self.is_lost = None if given is None else _process_group_of(given), False
        self._mesh: Any = None if given is self.process_group else given

    def mesh(self, device_type: str) -> DeviceMesh:
        """Returns the mesh that was given, or one of these ranks if that is of other devices or was none."""
        from torch.distributed.device_mesh import DeviceMesh

        if self._mesh is not None and self._mesh.device_type == device_type:
            return self._mesh  # type: ignore[no-any-return]
        return DeviceMesh.from_group(self.resolved, device_type)

    def __deepcopy__(self, memo: dict[int, Any]) -> Group:
        copied = Group(self.process_group if self._mesh is None else self._mesh)
        copied.is_lost = self.is_lost
        return copied

    def __reduce__(self) -> tuple[Any, ...]:
        is_lost = self.is_lost or self.process_group is not None
        return _unpickled_group, (is_lost,)

    def __repr__(self) -> str:
        if self.is_lost:
            return "lost"
        if self.process_group is None:
            return "None"
        return f"ranks {dist.get_process_group_ranks(self.process_group)}"

    @property
    def has_others(self) -> bool:
        """Whether there are other ranks than this one."""
        if not (dist.is_available() and dist.is_initialized()):
            return False
        return self.size > 1

    @property
    def resolved(self) -> dist.ProcessGroup:
        """The process group, that of all ranks where none was given."""
        if self.is_lost:
            raise RuntimeError(
                "this memory was unpickled, and a process group cannot be pickled: set its process_group to "
                "that of its ranks, or to None if these are all"
            )
        found = self.process_group or dist.group.WORLD
        if found is None:
            raise RuntimeError("the rows are spread over ranks, and there are none: call init_process_group")
        return found

    @property
    def rank(self) -> int:
        """The number of this rank in the group."""
        return dist.get_rank(self.resolved)

    @property
    def size(self) -> int:
        """The number of ranks."""
        return dist.get_world_size(self.resolved)

    def sending_device(self, device: torch.device) -> torch.device:
        """Returns the device from which tensors of another are sent: that one, if NCCL sends from it."""
        backends = str(dist.get_backend_config(self.resolved))  # such as cpu:gloo,cuda:nccl
        if "nccl" not in backends:
            return torch.device("cpu")
        if device.type == "cuda" or "cpu:" in backends:
            return device
        bound = getattr(self.resolved, "bound_device_id", None)  # since torch 2.2
        return bound or torch.device("cuda", torch.cuda.current_device())

    def gather(self, values: Tensor) -> list[Tensor]:
        """Returns the values of every rank, which all have one shape, where they are sent from."""
        values = values.to(self.sending_device(values.device))
        by_rank = [torch.empty_like(values) for _ in range(self.size)]
        self._send(dist.all_gather, by_rank, values)
        return by_rank

    def gather_objects(self, value: object) -> list[Any]:
        """Returns what every rank passes."""
        by_rank: list[Any] = [None] * self.size
        self._send(dist.all_gather_object, by_rank, value)
        return by_rank

    def gather_rows(self, rows: Tensor, sizes: list[int]) -> Tensor:
        """Returns the rows of all ranks in rank order, given how many each has, ``(sum(sizes), ...)``."""
        padded = rows.new_zeros(max(sizes), *rows.shape[1:], device=self.sending_device(rows.device))
        padded[: len(rows)] = rows
        by_rank = self.gather(padded)
        return torch.cat([x[:size] for x, size in zip(by_rank, sizes, strict=True)]).to(rows.device)

    def sum(self, values: Tensor) -> Tensor:
        """Returns the sum over ranks, without gradient."""
        return self._reduce(values, dist.ReduceOp.SUM)

    def max(self, values: Tensor) -> Tensor:
        """Returns the largest of the ranks' values, without gradient."""
        return self._reduce(values, dist.ReduceOp.MAX)

    def _reduce(self, values: Tensor, op: Any) -> Tensor:
        log = self._log
        if log is not None and log.position < len(log.results):
            log.position += 1
            return log.results[log.position - 1].clone()
        result = values.detach().to(self.sending_device(values.device), copy=True).contiguous()
        self._send(dist.all_reduce, result, op)
        result = result.to(values.device)
        if log is not None:
            log.results.append(result)
            log.position += 1
        return result

    def sum_and_scatter(self, rows: Tensor, sizes: list[int], flag: bool) -> tuple[Tensor, list[bool]]:
        """Returns this rank's part of the sum over ranks of rows in rank order, and every rank's flag.

        Args:
            rows: ``(sum(sizes), d)``.
            sizes: how many of the rows are each rank's.
            flag: this rank's, which travels along.
        """
        device = self.sending_device(rows.device)
        padded = rows.new_zeros(len(sizes), max(sizes) + 1, *rows.shape[1:], device=device)
        padded[:, -1, 0] = flag
        for rank, part in enumerate(rows.split(sizes)):
            padded[rank, : len(part)] = part
        by_rank = torch.empty_like(padded)  # not reduce_scatter, which gloo lacks in some releases
        self._send(dist.all_to_all_single, by_rank, padded)
        own = by_rank[:, : sizes[self.rank]].sum(dim=0).to(rows.device)
        return own, [number > 0 for number in by_rank[:, -1, 0].tolist()]

    def _send(self, collective: Callable[..., Any], first: Any, *others: Any) -> None:
        """Calls a function of torch.distributed, and says who waited if another rank does not."""
        try:
            collective(first, *others, group=self.resolved)
        except RuntimeError as error:
            raise LostRankError(
                f"{self.call} waited in {collective.__name__} for the other ranks of its group, and one of "
                "them is gone, has run out of batches (as within join(), which needs "
                "throw_on_early_termination=True then), did something else, or did not come within the "
                f"group's time-out: {error}"
            ) from error

    def attempt(self, compute: Callable[[bool], Result]) -> tuple[Result, Exception | None]:
        """Returns what a function computes together with the other ranks, and its error, if any.

        The function is called with False. If it fails, other ranks may wait for numbers of this one, and how
        many more they will wait for depends on the function alone. So it is called once more, with True,
        which tells it to go on as a rank without rows. Numbers that had been reduced before it failed are not
        sent again. Its result is then of the right shape, and nothing else.
        """
        self._log = _Log()
        try:
            return compute(False), None
        except LostRankError:
            raise
        except Exception as error:
            self._log.position = 0
            try:
                return compute(True), error
            except LostRankError:
                raise
            except Exception as second:
                raise error from second
        finally:
            self._log = None


class _Log:
    """What has been reduced in an attempt."""

    def __init__(self) -> None:
        self.results: list[Tensor] = []
        self.position = 0  # how many of them the attempt has come to


def _process_group_of(given: dist.ProcessGroup | DeviceMesh) -> dist.ProcessGroup:
    """Returns the process group, or that of a mesh, and refuses what is none that this rank is in."""
    if dist.is_available() and isinstance(given, dist.ProcessGroup):
        found: Any = given
    elif isinstance(given, int) and given == dist.GroupMember.NON_GROUP_MEMBER:
        raise _not_a_member()  # what new_group returns on other ranks
    elif type(given).__name__ == "DeviceMesh":  # whose module moved between releases
        mesh: Any = given
        if mesh.mesh.ndim != 1:
            names = getattr(mesh, "mesh_dim_names", None) or ("dp",)
            raise ValueError(
                f"process_group is a mesh of shape {tuple(mesh.mesh.shape)}: pass the dimension along which "
                f"ranks share a batch, such as mesh[{names[0]!r}]"
            )
        found = mesh.get_group(0) if hasattr(mesh, "get_group") else mesh.get_dim_groups()[0]
    else:
        raise TypeError(
            f"process_group is a {type(given).__name__}: pass a torch.distributed.ProcessGroup, such as "
            "distributed.new_group returns, or a one-dimensional DeviceMesh, such as mesh['dp']"
        )
    if dist.get_rank(found) < 0:
        raise _not_a_member()
    return found  # type: ignore[no-any-return]


def _not_a_member() -> ValueError:
    return ValueError(
        f"process_group does not hold rank {dist.get_rank()}: pass the group that this rank is in, and build "
        "the memory on the ranks of its group alone"
    )


def _unpickled_group(is_lost: bool) -> Group:
    group = Group()
    group.is_lost = is_lost
    return group
