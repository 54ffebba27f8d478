"""Two memories, one per tower: values, gradients, state, failures and ranks."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from across_ranks import from_first_rank, mean_of_ranks
from every_memory import EVERY, M, are_equal, state
from kinds import KINDS
from pytorch_metric_learning.losses import ContrastiveLoss, CrossBatchMemory, NTXentLoss, SupConLoss
from pytorch_metric_learning.miners import PairMarginMiner
from pytorch_metric_learning.reducers import MeanReducer
from pytorch_metric_learning.utils import common_functions as c_f
from ranks import on_ranks
from torch import Tensor, distributed, nn
from torch.nn.functional import normalize
from troubled import TroubledHook, TroubledLoss

from pml_xbn import AXBNWrapper, TwoTowerMemory, XBNWrapper
from pml_xbn.losses import AdaptiveCrossBatchMemory

D, BATCH_SIZE, TEMPERATURE = 4, 5, 0.2


def two_towers(kind: str = "xbn", *, is_one_sided: bool = False, **options: Any) -> TwoTowerMemory:
    """Memories of one kind, of a loss each."""
    memories = [EVERY[kind](**options) for _ in range(1 if is_one_sided else 2)]
    return TwoTowerMemory(**dict(zip(("document_memory", "query_memory"), memories, strict=False)))


def pairs(number: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, documents and labels of a step; the towers drift apart."""
    generator = torch.Generator().manual_seed(number)
    queries, documents = torch.randn(2, BATCH_SIZE, D, generator=generator, dtype=dtype)
    labels = torch.randint(0, 8, (BATCH_SIZE,), generator=generator)
    return (queries + 0.3 * number).requires_grad_(), (2 * documents - 1).requires_grad_(), labels


def step(loss_fn: TwoTowerMemory, number: int) -> list[Tensor]:
    """Loss and gradients."""
    queries, documents, labels = pairs(number)
    loss = loss_fn(queries, documents, labels)
    loss.backward()
    assert queries.grad is not None
    assert documents.grad is not None
    return [loss.detach(), queries.grad, documents.grad]


def test_a_pair_that_comes_again_is_averaged_with_its_row() -> None:
    loss_fn = two_towers("xbn", update="average", update_momentum=0.5)
    for number in range(3):
        queries, documents, labels = pairs(number)
        loss_fn(queries, documents, labels, torch.arange(BATCH_SIZE))
    for memory in (loss_fn.document_memory, loss_fn.query_memory):
        assert memory.num_rows == BATCH_SIZE
        assert memory.id_memory[:BATCH_SIZE].tolist() == list(range(BATCH_SIZE))


# -- values and gradients, computed again ------------------------------------------------------------------


def info_nce(anchors: Tensor, labels: Tensor, rows: Tensor, row_labels: Tensor) -> Tensor:
    """Anchor by anchor: the mean over positives of -log softmax, and the mean of these over anchors."""
    of_anchors = []
    for anchor, label in zip(normalize(anchors), labels, strict=True):
        logits = (normalize(rows) * anchor).sum(dim=1) / TEMPERATURE
        of_anchors.append((logits.exp().sum().log() - logits)[row_labels == label].mean())
    return torch.stack(of_anchors).mean()


class Rows:
    """What a memory of M rows holds, in float64, its oldest first."""

    def __init__(self, adapt: Callable[..., np.ndarray]) -> None:
        self.adapt, self.rows, self.labels = adapt, np.zeros((0, D)), np.zeros(0, dtype=int)

    def store(self, batch: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        rows, new = self.rows, batch.detach().numpy()
        if len(rows):
            rows = self.adapt(rows, self.labels, new, labels.numpy())
        else:
            self.adapt(rows, [], new, [])
        self.rows, self.labels = np.concatenate([rows, new])[-M:], np.concatenate([self.labels, labels])[-M:]
        return torch.from_numpy(self.rows), torch.from_numpy(self.labels)


@pytest.mark.parametrize("weight", [0.0, 0.7])
@pytest.mark.parametrize("is_one_sided", [False, True])
@pytest.mark.parametrize("kind", ["plain", "xbn", "axbn"])
def test_loss_and_gradients_are_those_of_the_formula(kind: str, is_one_sided: bool, weight: float) -> None:
    options: dict[str, Any] = {"loss": SupConLoss(TEMPERATURE), "memory_dtype": torch.float64}
    loss_fn = two_towers(kind, is_one_sided=is_one_sided, batch_loss_weight=weight, **options)
    of_documents, of_queries = (Rows(KINDS[kind].equation()) for _ in range(2))
    for number in range(7):  # the memories wrap round in the third step
        queries, documents, labels = pairs(number, torch.float64)
        if is_one_sided and not weight:
            documents = documents.detach()
        towers = [x for x in (queries, documents) if x.requires_grad]
        sides = [(queries, documents, of_documents), (documents, queries, of_queries)]
        expected = torch.zeros((), dtype=torch.float64)
        for anchors, others, stored in sides[: 1 if is_one_sided else 2]:
            expected = expected + info_nce(anchors, labels, *stored.store(others, labels))
            expected = expected + weight * info_nce(anchors, labels, others, labels)
        expected = expected / (1 if is_one_sided else 2)
        loss = loss_fn(queries, documents, labels)
        torch.testing.assert_close(loss, expected, rtol=1e-9, atol=1e-12)
        found, wanted = torch.autograd.grad(loss, towers), torch.autograd.grad(expected, towers)
        torch.testing.assert_close(found, wanted, rtol=1e-8, atol=1e-11)


def test_while_warming_up_it_is_the_loss_within_the_batch() -> None:
    loss_fn = two_towers(loss=SupConLoss(TEMPERATURE), warmup=2)
    for number in range(2):
        queries, documents, labels = pairs(number)
        loss = loss_fn(queries, documents, labels)
        sides = (queries, documents), (documents, queries)
        expected = sum(info_nce(a, labels, b, labels) for a, b in sides) / 2
        torch.testing.assert_close(loss, expected)
        towers = queries, documents
        torch.testing.assert_close(torch.autograd.grad(loss, towers), torch.autograd.grad(expected, towers))
        assert loss_fn.query_memory.num_rows == loss_fn.document_memory.num_rows == 0
    step(loss_fn, 2)
    assert loss_fn.query_memory.num_rows == loss_fn.document_memory.num_rows == BATCH_SIZE


@pytest.mark.parametrize("loss", [ContrastiveLoss(neg_margin=1.5), NTXentLoss(), SupConLoss()], ids=repr)
def test_a_stored_copy_of_ones_own_positive_is_no_negative(loss: nn.Module) -> None:
    loss_fn = TwoTowerMemory(
        document_memory=AdaptiveCrossBatchMemory(loss, D, 20),
        query_memory=AdaptiveCrossBatchMemory(loss, D, 20),
    )
    seen: list[tuple[Tensor, ...]] = []
    handle = loss.register_forward_pre_hook(lambda module, args: seen.append(args))
    queries, documents, _ = pairs(0)
    ids = torch.arange(BATCH_SIZE) * 1000
    for _ in range(3):
        loss_fn(queries, documents, ids)
    handle.remove()
    for _, anchor_ids, indices, _, row_ids in seen:
        if len(indices) == 4:
            assert (anchor_ids[indices[2]] != row_ids[indices[3]]).all()
            assert (anchor_ids[indices[0]] == row_ids[indices[1]]).all()
    assert len(seen) == 6
    # Every copy of the two last steps and of this one is a positive.
    assert len(seen[-1][2][0]) == 3 * BATCH_SIZE


def test_miners_and_losses_are_those_of_the_memories() -> None:
    miner = PairMarginMiner(pos_margin=0.2, neg_margin=0.8)
    memories = [XBNWrapper(SupConLoss(t), D, M, m) for t, m in ((0.1, miner), (0.5, None))]
    loss_fn = TwoTowerMemory(document_memory=memories[0], query_memory=memories[1])
    alone = copy.deepcopy(memories)
    for number in range(5):
        queries, documents, labels = pairs(number)
        masks = torch.arange(2 * BATCH_SIZE) >= BATCH_SIZE
        expected = [
            memory(torch.cat(towers), labels.repeat(2), None, masks)
            for memory, towers in zip(alone, ((queries, documents), (documents, queries)), strict=True)
        ]
        torch.testing.assert_close(loss_fn(queries, documents, labels), sum(expected) / 2)


def test_autocast_changes_nothing_but_the_dtype_of_gradients() -> None:
    inside, outside = two_towers(), two_towers()
    layers = nn.ModuleList([nn.Linear(D, D), nn.Linear(D, D)])
    for number in range(5):
        queries, documents, labels = pairs(number)
        with torch.autocast("cpu", torch.bfloat16):
            halves = layers[0](queries), documents  # of one tower in half precision, of the other in full
            assert halves[0].dtype == torch.bfloat16
            loss = inside(*halves, labels)
        full = halves[0].detach().float().requires_grad_(), documents.detach().requires_grad_()
        expected = outside(*full, labels)
        torch.testing.assert_close(loss, expected)
        assert loss.dtype == torch.float32
        of_queries, of_documents = torch.autograd.grad(loss, halves)
        wanted = torch.autograd.grad(expected, full)
        torch.testing.assert_close(of_queries, wanted[0].bfloat16())
        torch.testing.assert_close(of_documents, wanted[1])
        for one, other in zip(inside.children(), outside.children(), strict=True):
            assert one.embedding_memory.dtype == torch.float32
            torch.testing.assert_close(one.embedding_memory, other.embedding_memory)


# -- state -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_one_sided", [False, True])
@pytest.mark.parametrize("kind", EVERY)
def test_a_resumed_run_goes_on_bit_for_bit(kind: str, is_one_sided: bool) -> None:
    def built() -> TwoTowerMemory:
        return two_towers(kind, is_one_sided=is_one_sided, warmup=1, delay=2, batch_loss_weight=1.0)

    whole, resumed = built(), built()
    for number in range(6):
        step_of(kind, whole, number)
    file = io.BytesIO()
    torch.save(whole.state_dict(), file)
    file.seek(0)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    for number in range(6, 10):
        for one, other in zip(step_of(kind, whole, number), step_of(kind, resumed, number), strict=True):
            assert torch.equal(one, other)
        assert are_equal(state(whole), state(resumed))


def step_of(kind: str, loss_fn: TwoTowerMemory, number: int) -> list[Tensor]:
    """A step with labels that have a superclass each."""
    queries, documents, labels = pairs(number)
    loss = loss_fn(queries, documents, labels % 3)
    return [loss.detach(), *torch.autograd.grad(loss, (queries, documents))]


@pytest.mark.parametrize("how", ["eval", "no_grad"])
def test_evaluation_reads_only(how: str) -> None:
    loss_fn = two_towers("axbn")
    for number in range(4):
        step(loss_fn, number)
    before = state(loss_fn)
    loss_fn.train(how != "eval")
    queries, documents, labels = pairs(9)
    with torch.set_grad_enabled(how != "no_grad"):
        loss = loss_fn(queries, documents, labels)
    assert are_equal(state(loss_fn), before)
    expected = 0.0
    for memory, anchors in ((loss_fn.document_memory, queries), (loss_fn.query_memory, documents)):
        expected = expected + SupConLoss()(
            anchors, labels, ref_emb=memory.embedding_memory, ref_labels=memory.label_memory
        )
    torch.testing.assert_close(loss, expected / 2)


def test_record_keeper_finds_both_memories() -> None:
    record_keeper = pytest.importorskip("record_keeper")
    loss_fn = two_towers()
    step(loss_fn, 0)
    names = c_f.list_of_recordable_attributes_list_names()
    keeper = record_keeper.RecordKeeper(None, None, names)
    seen: dict[str, Any] = {}
    keeper.append_data = lambda group, series, value, _: seen.update({f"{group}.{series}": value})
    keeper.update_records({"metric_loss": loss_fn}, 0, recursive_types=[nn.Module, dict])
    numbers = {name: value for name, value in seen.items() if name.endswith("num_rows")}
    assert sorted(numbers.values()) == [BATCH_SIZE, BATCH_SIZE]


# -- failures ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("error", "has_hook"), [(ValueError("no"), False), (KeyboardInterrupt(), True)])
@pytest.mark.parametrize("kind", EVERY)
def test_a_second_direction_that_fails_leaves_everything_as_it_was(
    kind: str, error: BaseException, has_hook: bool
) -> None:
    documents, queries = EVERY[kind](), EVERY[kind](TroubledLoss())
    if has_hook:  # which gives all rows, where an adapter leaves them in place
        documents.register_memory_hook(TroubledHook(shift=0.01))
    loss_fn = TwoTowerMemory(document_memory=documents, query_memory=queries)
    queries.loss.is_late = True
    twin = copy.deepcopy(loss_fn)
    for number in range(7):
        step_of(kind, twin, number)
        pending = loss_fn(*pairs(number)[:2], pairs(number)[2] % 3)
        documents.embedding_memory[1] = twin.document_memory.embedding_memory[1] = 0.5  # is kept as well
        queries.loss.error = error
        with pytest.raises(type(error)):
            loss_fn(*pairs(number + 20)[:2], pairs(number + 20)[2] % 3)
        queries.loss.error = None
        assert are_equal(state(loss_fn), state(twin))
        pending.backward()


def test_nan_in_one_tower_is_stored_in_neither() -> None:
    loss_fn, skipping = two_towers(), two_towers(nonfinite="skip")
    for number in range(3):
        step(loss_fn, number)
        step(skipping, number)
    for tower in range(2):
        queries, documents, labels = pairs(5)
        bad = [queries.detach().clone(), documents.detach().clone()]
        bad[tower][2, 1] = float("nan")
        for memory in (loss_fn, skipping):
            before = state(memory)
            if memory is loss_fn:
                with pytest.raises(ValueError, match="NaN or inf"):
                    memory(*bad, labels)
            else:
                memory(*bad, labels)
            assert are_equal(state(memory), before)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda q, d, y: (q[:3], d, y), "3 queries and 5 documents"),
        (lambda q, d, y: (q, d[:, :2], y), rf"shape \(5, 2\): pass \(n, {D}\)"),
        (lambda q, d, y: (q, d.long(), y), "dtype torch.int64: pass a floating dtype"),
        (lambda q, d, y: (q, d, y.repeat(2)), r"labels has shape \(10,\)"),
        (lambda q, d, y: (q, d, y.float()), "labels has dtype torch.float32"),
    ],
)
def test_input_that_does_not_fit_is_refused(change: Callable[..., Any], message: str) -> None:
    loss_fn = two_towers()
    step(loss_fn, 0)
    before = state(loss_fn)
    with pytest.raises(ValueError, match=message):
        loss_fn(*change(*pairs(1)))
    with pytest.raises(TypeError, match="a NoneType: pass a tensor"):
        loss_fn(None, *pairs(1)[1:])
    assert are_equal(state(loss_fn), before)


def test_one_sided_documents_get_a_gradient_from_the_batch_loss_or_an_error() -> None:
    without, with_weight = (two_towers(is_one_sided=True, batch_loss_weight=w) for w in (0.0, 1.0))
    queries, documents, labels = pairs(0)
    with pytest.raises(ValueError, match=r"batch_loss_weight=1\.0, or pass a query_memory"):
        without(queries, documents, labels)
    assert without.document_memory.num_rows == 0
    without(queries, documents.detach(), labels).backward()
    with_weight(queries, documents, labels).backward()
    assert documents.grad.abs().sum() > 0
    without.eval()(queries, documents, labels)


@pytest.mark.parametrize("frozen", ["queries", "documents"])
def test_two_memories_refuse_a_tower_without_a_gradient_that_would_train_nothing(frozen: str) -> None:
    """Keys of momentum encoders, passed to both memories, trained one tower, and nothing said so."""

    def towers(number: int) -> tuple[Tensor, Tensor, Tensor]:
        queries, documents, labels = pairs(number)
        if frozen == "queries":
            return queries.detach(), documents, labels
        return queries, documents.detach(), labels

    loss_fn = two_towers()
    step(loss_fn, 0)
    before = state(loss_fn)
    trained = "documents" if frozen == "queries" else "queries"
    with pytest.raises(ValueError, match=rf"{frozen} require no .* as \({trained}, {frozen}, labels\)"):
        loss_fn(*towers(1))
    assert are_equal(state(loss_fn), before)
    loss_fn.eval()(*towers(1))
    with torch.no_grad():
        loss_fn.train()(*towers(1))
    loss_fn(*(x.detach() for x in pairs(1)))  # neither is trained here, which backward() would say

    # What the error says to do gives the gradient of the direction that trained, which was halved.
    one_sided, both = two_towers(is_one_sided=True), two_towers(batch_loss_weight=0.0)
    for number in range(4):
        queries, documents, labels = pairs(number)
        anchors, keys = (documents, queries) if frozen == "queries" else (queries, documents)
        (found,) = torch.autograd.grad(one_sided(anchors, keys.detach(), labels), anchors)
        (halved,) = torch.autograd.grad(both(queries, documents, labels), anchors)
        torch.testing.assert_close(found, 2 * halved)


@pytest.mark.parametrize("frozen", ["queries", "documents"])
def test_the_batchs_own_loss_trains_one_tower_by_both_directions(frozen: str) -> None:
    """As in LiT, where images are embedded by a tower that is locked."""
    loss_fn = two_towers(batch_loss_weight=1.0)
    queries, documents, labels = pairs(0)
    towers = {"queries": queries, "documents": documents}
    towers[frozen] = towers[frozen].detach()
    loss_fn(**towers, labels=labels).backward()
    (trained,) = (x for x in towers.values() if x.requires_grad)
    assert trained.grad.abs().sum() > 0

    warming_up = two_towers(warmup=1)
    warming_up(**towers, labels=labels).backward()
    with pytest.raises(ValueError, match=f"{frozen} require no gradient"):
        warming_up(**towers, labels=labels)

    # The weight counts of the memory alone whose anchors have no gradient.
    weights = (0.0, 1.0) if frozen == "queries" else (1.0, 0.0)
    memories = [XBNWrapper(SupConLoss(), D, M, batch_loss_weight=weight) for weight in weights]
    with pytest.raises(ValueError, match=f"{frozen} require no gradient"):
        TwoTowerMemory(document_memory=memories[0], query_memory=memories[1])(**towers, labels=labels)


@pytest.mark.parametrize("is_one_sided", [False, True])
def test_a_subclass_may_have_modules_of_its_own(is_one_sided: bool) -> None:
    loss_fn, plain = (two_towers(is_one_sided=is_one_sided) for _ in range(2))
    loss_fn.head = nn.Linear(D, D)
    queries, documents, labels = pairs(0)
    if is_one_sided:
        documents = documents.detach()
    assert torch.equal(*(f(queries, documents, labels) for f in (loss_fn, plain)))


def test_memories_that_do_not_fit_are_refused() -> None:
    one, other = XBNWrapper(SupConLoss(), D, M), XBNWrapper(SupConLoss(), D + 1, M)
    for memories, error, message in [
        ((CrossBatchMemory(SupConLoss(), D, M), None), TypeError, "document_memory is a CrossBatchMemory"),
        ((None, one), TypeError, "document_memory is a NoneType"),
        ((one, SupConLoss()), TypeError, "query_memory is a SupConLoss: pass a memory such as XBNWrapper"),
        ((one, one), ValueError, "build one for each tower"),
        ((one, other), ValueError, f"embedding_size={D} and query_memory {D + 1}"),
    ]:
        with pytest.raises(error, match=message):
            TwoTowerMemory(document_memory=memories[0], query_memory=memories[1])
    gathering = XBNWrapper(SupConLoss(), D, M, gather_distributed=True)
    with pytest.raises(ValueError, match="gather_distributed=True and query_memory False"):
        TwoTowerMemory(document_memory=gathering, query_memory=one)


# -- ranks -------------------------------------------------------------------------------------------------


SIZES, STEPS = [3, 4], 6  # of the ranks' batches


def train(is_one_sided: bool, weight: float, way: str | None) -> tuple[list[Any], list[Tensor]]:
    """Trains as one rank, or as one process with the batches of all, if there is no way to share them.

    Returns:
        losses and mean gradients of all steps, and the rows of all steps and memories.
    """
    names = ("document_memory", "query_memory")[: 1 if is_one_sided else 2]
    options = {"batch_loss_weight": weight, "memory_dtype": torch.float64, "measurement_noise": 9.0}
    options |= {} if way is None else {way: True}
    loss_fn = TwoTowerMemory(
        **{n: AXBNWrapper(SupConLoss(reducer=MeanReducer()), D, 17, **options) for n in names}
    )
    torch.manual_seed(0)
    towers = nn.ModuleList([nn.Linear(D, D).double(), nn.Linear(D, D).double()])
    values, rows = [], []
    for number in range(STEPS):
        generator = torch.Generator().manual_seed(number)
        inputs = torch.randn(2, sum(SIZES), D, generator=generator, dtype=torch.float64) + number
        labels = torch.randint(9, (sum(SIZES),), generator=generator)
        batch = *inputs, labels
        if way is not None:
            batch = tuple(x.split(SIZES)[distributed.get_rank()] for x in batch)
        queries, documents, labels = batch
        towers.zero_grad()
        loss = loss_fn(towers[0](queries), towers[1](documents), labels)
        loss.backward()
        gradients = [p.grad.clone() for p in towers.parameters() if p.grad is not None]
        values.append([loss.detach(), *(gradients if way is None else map(mean_of_ranks, gradients))])
        rows += [memory.embedding_memory.clone() for memory in loss_fn.children()]
    return values, rows


@pytest.mark.parametrize("way", ["gather_distributed", "shard_distributed"])
@pytest.mark.parametrize(("is_one_sided", "weight"), [(False, 0.0), (False, 1.0), (True, 1.0)])
@on_ranks(2)
def test_two_ranks_are_one_process(is_one_sided: bool, weight: float, way: str) -> None:
    found, rows = train(is_one_sided, weight, way)
    expected, expected_rows = from_first_rank(lambda: train(is_one_sided, weight, None))
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-9)
    if way == "gather_distributed":
        torch.testing.assert_close(rows, expected_rows, rtol=1e-8, atol=1e-9)
