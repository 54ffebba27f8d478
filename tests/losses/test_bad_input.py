"""Every mistake is a ValueError or TypeError that names the value, and changes nothing."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable

import pytest
import torch
from kinds import KINDS, WRAPPERS
from pytorch_metric_learning import losses, miners, reducers
from torch import Tensor, nn

from pml_xbn import SuperClassXBN, TwoTowerMemory, XBNWrapper
from pml_xbn.adapters import MomentMatching
from pml_xbn.losses import AdaptiveCrossBatchMemory, BatchLoss

D, M = 4, 10


@pytest.fixture(params=WRAPPERS)
def make(request: pytest.FixtureRequest) -> Callable[..., AdaptiveCrossBatchMemory]:
    return KINDS[request.param].memory


def rows(n: int = 6, d: int = D) -> Tensor:
    return torch.randn(n, d)


def labels(n: int = 6) -> Tensor:
    return torch.arange(n) % 3


def nested(*parts: Tensor) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that they are a prototype
        return torch.nested.nested_tensor(list(parts))


NAN = torch.full((6, D), float("nan"))
INF_IN_ROW_2 = torch.zeros(6, D).index_fill(0, torch.tensor(2), float("inf"))
MASK = torch.ones(6, dtype=torch.bool)
PAIRS = (torch.tensor([0]), torch.tensor([3]), torch.tensor([0]), torch.tensor([2]))

BAD_CALLS = {
    "wrong embedding size": ((rows(d=7), labels()), r"shape \(6, 7\): pass \(n, 4\)"),
    "1-D embeddings": ((torch.randn(D), labels(D)), r"shape \(4,\)"),
    "integer embeddings": ((torch.ones(6, D, dtype=torch.int64), labels()), "dtype torch.int64"),
    "too few labels": ((rows(), labels(5)), r"labels has shape \(5,\).*\(6,\)"),
    "2-D labels": ((rows(), labels().unsqueeze(1)), r"labels has shape \(6, 1\)"),
    "float labels": ((rows(), labels().float()), "labels has dtype torch.float32"),
    "bool labels": ((rows(), labels().bool()), "labels has dtype torch.bool"),
    "batch larger than memory": ((rows(11), labels(11)), "11 rows to enqueue do not fit memory_size=10"),
    "mask of ints": ((rows(), labels(), None, MASK.long()), "enqueue_mask has dtype torch.int64"),
    "mask of bytes": ((rows(), labels(), None, MASK.byte()), "enqueue_mask has dtype torch.uint8"),
    "short mask": ((rows(), labels(), None, MASK[:5]), r"enqueue_mask has shape \(5,\)"),
    "mask enqueues too many": (
        (rows(12), labels(12), None, torch.arange(12) > 0),
        "11 rows to enqueue do not fit memory_size=10",
    ),
    "mask and indices": ((rows(), labels(), PAIRS, MASK), "mutually exclusive"),
    "more anchors than positives": (
        (rows(), labels(), (torch.tensor([0, 3]), *PAIRS[1:])),
        r"indices_tuple has shape \(1,\): pass as many positives and negatives as anchors, shape \(2,\)",
    ),
    "a pair beyond the batch": (
        (rows(), labels(), (*PAIRS[:3], torch.tensor([6]))),
        r"indices_tuple has numbers \[6\] for a batch of 6: pass numbers from 0 to 5",
    ),
    "a negative number": (
        (rows(), labels(), (torch.tensor([-1]), *PAIRS[1:3])),
        r"indices_tuple has numbers \[-1\]",
    ),
    "a mask of pairs": (
        (rows(), labels(), (MASK,) * 4),
        "indices_tuple has dtype torch.bool: pass integers",
    ),
    "pairs in a column": (
        (rows(), labels(), tuple(x.unsqueeze(1) for x in PAIRS)),
        r"indices_tuple has shape \(1, 1\)",
    ),
    "a mask of pairs in two dimensions": (
        (rows(), labels(), torch.ones(6, 6, dtype=torch.bool)),
        "indices_tuple has 6 tensors: pass 3",
    ),
    "two index tensors": ((rows(), labels(), PAIRS[:2]), "indices_tuple has 2 tensors"),
    "numbers of no dimension": (
        (rows(), labels(), (torch.tensor(0),) * 3),
        r"indices_tuple has shape \(\): pass one number per pair",
    ),
    "sparse embeddings": (
        (rows().to_sparse(), labels()),
        "embeddings has layout torch.sparse_coo: pass a dense",
    ),
    "sparse labels": ((rows(), labels().to_sparse()), "labels has layout torch.sparse_coo"),
    "a sparse mask": ((rows(), labels(), None, MASK.to_sparse()), "enqueue_mask has layout torch.sparse_coo"),
    "sparse pairs": (
        (rows(), labels(), tuple(x.to_sparse() for x in PAIRS)),
        "indices_tuple has layout torch.sparse_coo",
    ),
    "nested embeddings": (
        (nested(rows(2), rows(4)), labels()),
        "embeddings is a nested tensor: pass a dense one",
    ),
    "nested labels": ((rows(), nested(labels(2), labels(4))), "labels is a nested tensor"),
    "NaN": ((NAN, labels()), r"NaN or inf in rows \[0, 1, 2, 3, 4, 5\]"),
    "inf": ((INF_IN_ROW_2, labels()), r"NaN or inf in rows \[2\]"),
}


def contents(loss_fn: AdaptiveCrossBatchMemory) -> str:
    state = loss_fn.state_dict().items()
    return str([(key, value.tolist() if isinstance(value, Tensor) else value) for key, value in state])


@pytest.mark.parametrize("name", BAD_CALLS)
def test_bad_call_names_the_value_and_changes_nothing(make: Callable, name: str) -> None:
    args, message = BAD_CALLS[name]
    loss_fn = make(losses.ContrastiveLoss(), D, M)
    for filled in range(3):
        before = contents(loss_fn)
        with pytest.raises(ValueError, match=message):
            loss_fn(*args)
        assert contents(loss_fn) == before, f"after {filled} good calls"
        loss_fn(rows(), labels())


@pytest.mark.parametrize(
    "name", ["wrong embedding size", "too few labels", "batch larger than memory", "NaN"]
)
def test_fill_memory_checks_its_input_too(make: Callable, name: str) -> None:
    args, message = BAD_CALLS[name]
    loss_fn = make(losses.ContrastiveLoss(), D, M)
    loss_fn(rows(), labels())
    before = contents(loss_fn)
    with pytest.raises(ValueError, match=message):
        loss_fn.fill_memory(*args)
    assert contents(loss_fn) == before


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (([[0.0] * D], labels(1)), "embeddings is a list"),
        ((rows(1), [0]), "labels is a list"),
        ((rows(1), labels(1), None, [True]), "enqueue_mask is a list"),
        ((rows(1), labels(1), 5), r"indices_tuple is a int: pass a tuple of tensors, 3 \(anchors, positives"),
        ((rows(1), labels(1), {}), "indices_tuple is a dict"),
        ((rows(1), labels(1), torch.tensor(5)), "indices_tuple is a Tensor"),
        ((rows(1), labels(1), (0, 0, 0)), "indices_tuple is a int"),
        ((rows(1), labels(1), ([0], [0], [0])), "indices_tuple is a list"),
    ],
)
def test_what_is_no_tensor_is_a_type_error(make: Callable, args: tuple, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        make(losses.ContrastiveLoss(), D, M)(*args)


BAD_SETTINGS: list[tuple[str, object, str]] = [
    ("embedding_size", 0, "embedding_size=0"),
    ("embedding_size", 4.0, "embedding_size=4.0"),
    ("memory_size", 0, "memory_size=0"),
    ("memory_size", True, "memory_size=True"),
    ("delay", -1, "delay=-1"),
    ("warmup", 1.5, "warmup=1.5"),
    ("batch_loss_weight", -1.0, "batch_loss_weight=-1.0"),
    ("batch_loss_weight", float("nan"), "batch_loss_weight=nan"),
    ("nonfinite", "rais", "nonfinite='rais': pass one of raise, raise_at_once, skip, ignore"),
    ("memory_dtype", torch.int32, "memory_dtype=torch.int32"),
    ("update", "mean", "update='mean'"),
    ("update_momentum", 1.0, "update_momentum=1.0"),
    ("update_momentum", 0.5, "update_momentum=0.5 has no effect with update='queue'"),
    ("loss", losses.ProxyAnchorLoss(3, D), "ProxyAnchorLoss cannot be used"),
]


@pytest.mark.parametrize(("name", "value", "message"), BAD_SETTINGS)
def test_bad_settings_are_refused_when_a_memory_is_built(
    make: Callable, name: str, value: object, message: str
) -> None:
    settings = {"loss": losses.ContrastiveLoss(), "embedding_size": D, "memory_size": M}
    with pytest.raises(ValueError, match=message):
        make(**{**settings, name: value})


@pytest.mark.parametrize(("name", "value", "message"), BAD_SETTINGS)
def test_bad_settings_are_refused_afterwards_and_change_nothing(
    make: Callable, name: str, value: object, message: str
) -> None:
    loss_fn = make(losses.ContrastiveLoss(), D, M)
    loss_fn(rows(), labels())
    before, contents_before = getattr(loss_fn, name), contents(loss_fn)
    with pytest.raises(ValueError, match=message):
        setattr(loss_fn, name, value)
    assert getattr(loss_fn, name) is before
    assert contents(loss_fn) == contents_before
    loss_fn(rows(), labels())


@pytest.mark.parametrize(("name", "value"), [("embedding_size", 5), ("shard_distributed", True)])
def test_settings_of_a_memory_for_good_are_refused_afterwards(
    make: Callable, name: str, value: object
) -> None:
    loss_fn = make(losses.ContrastiveLoss(), D, M)
    before = getattr(loss_fn, name)
    with pytest.raises(
        ValueError, match=f"{name}={value} for a .* that was built with {before}: build another"
    ):
        setattr(loss_fn, name, value)
    setattr(loss_fn, name, before)
    loss_fn(rows(), labels())


@pytest.mark.parametrize(("name", "value"), [("memory_size", 20), ("memory_dtype", torch.float16)])
def test_a_step_with_a_size_or_dtype_that_the_rows_do_not_have_is_refused(
    make: Callable, name: str, value: object
) -> None:
    loss_fn = make(losses.ContrastiveLoss(), D, M)
    loss_fn(rows(), labels())
    setattr(loss_fn, name, value)
    before = contents(loss_fn)
    for call in (loss_fn, loss_fn.eval(), loss_fn.fill_memory):
        with pytest.raises(
            ValueError, match=rf"{name} was set to {value}, and .* with .*: call reset_queue\(\)"
        ):
            call(rows(), labels())
        assert contents(loss_fn) == before
    loss_fn.train().reset_queue()
    loss_fn(rows(), labels())
    assert loss_fn.num_rows == 6


def test_a_reducer_without_what_it_divides_by_is_named_with_the_loss(make: Callable) -> None:
    reducer = reducers.DivisorReducer()
    message = "Loss with DivisorReducer, which divides by a number that this loss does not give"
    for name in losses.CrossBatchMemory.supported_losses():
        loss = getattr(losses, name)(reducer=reducer)
        if name == "MarginLoss":
            make(loss, D, M)(rows(), labels())
            continue
        for build in (lambda loss: make(loss, D, M), BatchLoss):
            with pytest.raises(ValueError, match=name + message.removeprefix("Loss")):
                build(loss)
    loss_fn = make(losses.SupConLoss(), D, M)
    loss_fn.loss.reducer = reducer
    before = contents(loss_fn)
    with pytest.raises(ValueError, match=f"SupCon{message}"):
        loss_fn(rows(), labels())
    assert contents(loss_fn) == before


def test_a_class_in_place_of_an_object_and_what_is_no_miner_are_named(make: Callable) -> None:
    with pytest.raises(TypeError, match=r"pass an object of it, SupConLoss\(\)"):
        make(losses.SupConLoss, 3, 8)
    with pytest.raises(TypeError, match=r"pass an object of it, PairMarginMiner\(\)"):
        make(losses.SupConLoss(), 3, 8, miners.PairMarginMiner)
    with pytest.raises(TypeError, match="miner=3: pass one of PML's miners"):
        make(losses.SupConLoss(), 3, 8, 3)


def test_another_adapter_is_refused_where_no_step_would_call_it() -> None:
    memory = XBNWrapper(losses.SupConLoss(), 3, 8)
    memory.adapter = memory.adapter
    with pytest.raises(ValueError, match="register it on an AdaptiveCrossBatchMemory"):
        memory.adapter = MomentMatching(match_std=False)


def test_an_unsupported_loss_is_named_with_what_is_supported(make: Callable) -> None:
    with pytest.raises(ValueError, match=r"ProxyAnchorLoss cannot be used.*ContrastiveLoss.*SupConLoss"):
        make(losses.ProxyAnchorLoss(num_classes=3, embedding_size=D), D, M)

    class MyLoss(losses.FastAPLoss):
        pass

    with pytest.raises(ValueError, match="MyLoss cannot be used"):
        make(MyLoss(), D, M)


@pytest.mark.parametrize("mapping", [[0, 1], {0: 0, 1: 1}, torch.tensor([0, 1])])
def test_a_label_without_a_superclass_is_named_and_nothing_changes(mapping: object) -> None:
    loss_fn = SuperClassXBN(losses.ContrastiveLoss(), D, M, superclasses=mapping)
    loss_fn(rows(), labels() % 2)
    for bad in (torch.tensor([0, 1, 5, 7, 5, 0]), torch.tensor([0, 1, 5, 7, -1, 0])):
        before = contents(loss_fn)
        named = sorted({5, 7} | ({-1} & set(bad.tolist())))
        message = rf"labels \[{', '.join(map(str, named))}\] have no superclass"
        for call in (loss_fn, loss_fn.fill_memory):
            with pytest.raises(ValueError, match=message):
                call(rows(), bad)
            assert contents(loss_fn) == before


def test_nonfinite_ignore_turns_the_check_of_numbers_off_and_no_other() -> None:
    loss_fn = SuperClassXBN(losses.ContrastiveLoss(), D, M, superclasses=[0, 1], nonfinite="ignore")
    for _ in range(3):
        loss_fn(rows(), torch.tensor([0, 1, 0, 1, 1, 0]))
    assert torch.isfinite(loss_fn.embedding_memory).all()
    loss_fn(NAN, torch.tensor([0, 1, 0, 1, 1, 0]))
    assert loss_fn.num_calls == 4
    with pytest.raises(ValueError, match=r"labels \[-1, 5, 7\] have no superclass"):
        loss_fn(rows(), torch.tensor([0, 1, 5, 7, -1, 0]))


def test_nonfinite_skip_computes_the_loss_and_stores_nothing(make: Callable) -> None:
    loss_fn = make(losses.SupConLoss(), D, M, nonfinite="skip")
    twin = copy.deepcopy(loss_fn)
    for _ in range(3):
        embeddings = rows()
        assert torch.equal(loss_fn(embeddings, labels()), twin(embeddings, labels()))
        before = contents(loss_fn)
        loss_fn(INF_IN_ROW_2, labels())
        loss_fn(NAN, labels(), PAIRS)
        loss_fn.fill_memory(NAN, labels())
        assert contents(loss_fn) == before


def test_finite_rows_beyond_the_range_of_the_memory_are_refused() -> None:
    memory = AdaptiveCrossBatchMemory(losses.ContrastiveLoss(), D, M)
    memory(rows(), labels())
    before = contents(memory)
    huge = torch.full((4, D), 1e300, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"in rows \[0, 1, 2, 3\], or numbers beyond 5\.2e\+33"):
        memory(huge, torch.arange(4))
    assert contents(memory) == before


# What is on the device "meta", where there are no numbers.
ON_META: dict[str, Callable[[nn.Module], object]] = {
    "embeddings": lambda f: f(rows().to("meta"), labels().to("meta")),
    "labels": lambda f: f(rows(), labels().to("meta")),
    "enqueue_mask": lambda f: f(rows(), labels(), None, (labels() == 0).to("meta")),
    "indices_tuple": lambda f: f(rows(), labels(), tuple(x.to("meta") for x in PAIRS)),
    "sample_ids": lambda f: f(rows(), labels(), sample_ids=labels().to("meta")),
}


# In each mode, what is passed so.
META_CALLS = [(mode, name) for mode in ("train", "ignore", "eval", "no_grad") for name in ON_META] + [
    ("fill_memory", name) for name in ("embeddings", "labels", "sample_ids")
]


@pytest.mark.parametrize(("mode", "name"), META_CALLS)
def test_a_batch_without_numbers_is_refused_and_takes_no_row_away(
    make: Callable, mode: str, name: str
) -> None:
    """As where shapes are inferred, or operations counted."""
    memory = make(losses.SupConLoss(), D, M, nonfinite="ignore" if mode == "ignore" else "raise")
    twin = copy.deepcopy(memory)
    batches = [(rows(), labels()) for _ in range(3)]
    for batch in batches[:2]:
        memory(*batch)
        twin(*batch)
    memory.train(mode != "eval")
    with (
        torch.set_grad_enabled(mode != "no_grad"),
        pytest.raises(ValueError, match=f'{name} is on the device "meta"'),
    ):
        ON_META[name](memory.fill_memory if mode == "fill_memory" else memory)
    memory.train()
    assert contents(memory) == contents(twin)
    assert torch.equal(memory(*batches[2]), twin(*batches[2]))


def test_two_towers_refuse_a_batch_without_numbers() -> None:
    memories = [XBNWrapper(losses.SupConLoss(), D, M) for _ in range(2)]
    towers = TwoTowerMemory(document_memory=memories[0], query_memory=memories[1])
    towers(rows(), rows(), labels())
    before = [contents(memory) for memory in memories]
    with pytest.raises(ValueError, match='documents is on the device "meta"'):
        towers(rows(), rows().to("meta"), labels())
    assert [contents(memory) for memory in memories] == before


def filled(memory: XBNWrapper) -> XBNWrapper:
    generator = torch.Generator("cpu").manual_seed(0)
    size = memory.memory_size
    embeddings = torch.randn(size, D, generator=generator, device="cpu")
    memory.fill_memory(embeddings, torch.arange(size, device="cpu") % 2)
    return memory


@pytest.mark.parametrize(
    "make_loss_fn",
    [
        lambda: XBNWrapper(losses.TupletMarginLoss(), D, M),
        lambda: XBNWrapper(losses.SupConLoss(), D, M, miner=miners.PairMarginMiner()),
        lambda: SuperClassXBN(losses.SupConLoss(), D, M, superclasses=[0, 0, 1, 1, 1]),
        lambda: filled(XBNWrapper(losses.SupConLoss(), D, 3_000)),
    ],
    ids=["tuplet", "miner", "superclasses", "many rows"],
)
def test_a_step_does_not_depend_on_the_default_device(make_loss_fn: Callable) -> None:
    loss_fn, step = make_loss_fn(), (rows(), labels())
    expected = make_loss_fn()(*step)
    with torch.device("meta"):
        make_loss_fn()
        torch.testing.assert_close(loss_fn(*step), expected)


def test_a_state_is_saved_whole_whatever_the_default_device() -> None:
    memory, loaded = (XBNWrapper(losses.SupConLoss(), D, M) for _ in range(2))
    memory(rows(), labels())
    with torch.device("meta"):
        state = memory.state_dict()
    loaded.load_state_dict(state)
    assert contents(loaded) == contents(memory)
