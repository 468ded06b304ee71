"""A cut model computes what the whole computes, and what can't be cut is refused by name."""

import pytest
import torch
from torch import nn

from algorun_train.common.errors import UserError
from algorun_train.parallel.cut.any_module import cut
from algorun_train.parallel.cut.found_cut import packed
from tests.train import split_runs
from tests.train.parallel import model_zoo
from tests.train.parallel.cut_checks import Sums, check, elsewhere, linears, names
from tests.train.training_runs import by_itself


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.mark.slow(but=["digits-*", "llama-*"])
@pytest.mark.parametrize(
    ("make", "stages", "cuts"),
    [
        (model_zoo.digits, 2, 5),
        (model_zoo.linformer, 2, 13),
        (model_zoo.torchvision_vit, 2, 7),
        (model_zoo.timm_vit, 2, 11),
        (model_zoo.resnet18, 4, 10),
        (model_zoo.gpt2, 2, 6),
        (model_zoo.llama, 2, 6),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_known_models_are_cut_at_least_at_so_many_places_and_stay_exact(make, stages, cuts):
    model, example = make()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    cutting = cut(model, example, stages=stages)
    assert b"_NotSent" not in packed(cutting.found)  # other ranks need no pass of these
    cutting = elsewhere(cutting, model, example)
    assert len(cutting.segments) - 1 >= cuts
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    expected = split_runs.whole(model, example)
    model.load_state_dict(before)
    count = len(cutting.segments)
    alone = split_runs.cut_at(cutting, list(range(count)))
    split_runs.assert_equal(expected, split_runs.split(alone, model, cutting.example))
    model.load_state_dict(before)
    three = split_runs.cut_at(cutting, [0, count // 3, 2 * count // 3])
    split_runs.assert_equal(expected, split_runs.split(three, model, cutting.example))


def test_a_finer_cut_has_all_the_places_of_a_coarse_one_and_none_within_a_residual_branch():
    model, example = model_zoo.Glued(), torch.randn(2, 8, 6)
    coarse, fine = cut(model, example, stages=2), check(model, example, finest=True)
    assert names(coarse) == ["embed", "blocks.0", "blocks.1", "blocks.2", "blocks.3", "head"]
    assert names(fine) == ["embed", *(f"blocks.{i}.norm" for i in range(4)), "head"]
    assert set(fine.refused) == {f"blocks.{i}.{part}" for i in range(4) for part in ("up", "act", "drop", "down")}
    assert "made before it is needed after it" in fine.refused["blocks.1.up"]


def test_stages_hold_exactly_their_own_parameters_as_the_models_objects():
    model, example = model_zoo.Glued(), torch.randn(2, 8, 6)
    cutting = cut(model, example, stages=2)
    stages = split_runs.cut_at(cutting, [0, 2, 4])
    theirs = [set(stage.state_dict()) for stage in stages]
    assert set.union(*theirs) == set(model.state_dict())
    assert sum(len(keys) for keys in theirs) == len(model.state_dict())
    assert {"token", "positions", "embed.weight", "unused"} <= theirs[0]
    assert {"scale", "head.weight"} <= theirs[2]
    own = dict(model.named_parameters())
    for stage, segments in zip(
        stages, (cutting.segments[:2], cutting.segments[2:4], cutting.segments[4:]), strict=True
    ):
        assert all(own[name] is parameter for name, parameter in stage.named_parameters())
        assert sorted(stage.state_dict()) == sorted(name for segment in segments for name in segment.parameters)
        real = [
            t
            for module in stage.modules()
            for t in vars(module).values()
            if isinstance(t, torch.Tensor) and not t.is_meta
        ]
        assert real == []  # what is foreign has no memory


def test_the_model_itself_is_left_as_it_was():
    model, example = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)), torch.randn(3, 4)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    cut(model, example, stages=2)
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all("forward" not in vars(module) for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_training_evaluation_dropout_and_batch_norm_follow_the_whole():
    def build():
        torch.manual_seed(1)
        return nn.Sequential(
            nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(True)
        )

    model, same, example = build(), build(), torch.randn(6, 4)
    cutting = cut(model, example, stages=3)
    stages = split_runs.cut_at(cutting, [0, 2, 4])
    for _ in range(3):
        split_runs.assert_equal(split_runs.whole(same, example), split_runs.split(stages, model, [example]))
    assert all(torch.equal(one, other) for one, other in zip(model.buffers(), same.buffers(), strict=True))
    assert int(model[1].num_batches_tracked) == 3
    for stage in [*stages, same]:
        stage.eval()
    with torch.no_grad():
        assert torch.equal(stages[2](stages[1](stages[0](example))), same(example))
    for stage in [*stages, same]:
        stage.train()
    split_runs.assert_equal(split_runs.whole(same, example), split_runs.split(stages, model, [example]))


class Passing(nn.Module):
    """Hands tuples, lists, dictionaries, whole numbers, booleans and complex numbers from unit to unit."""

    class Unit(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, pair, *, extra):
            x, (kind, turn) = pair
            y = self.linear(x) * extra["mask"] + kind.unsqueeze(-1) * 0.1 + torch.view_as_real(turn).sum(-1)
            return {"x": y, "list": [kind + 1, turn * 1j]}

    def __init__(self) -> None:
        super().__init__()
        self.units = nn.ModuleList(self.Unit() for _ in range(3))
        self.turn = nn.Linear(4, 8)

    def forward(self, x, kind, *, mask):
        turn = torch.view_as_complex(self.turn(x).view(*x.shape, 2))
        for unit in self.units:
            result = unit((x, (kind, turn)), extra={"mask": mask > 0})
            x, (kind, turn) = result["x"], result["list"]
        return x, kind


class Named(nn.Module):
    """Called with keywords only."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Passing()

    def forward(self, x, kind, mask):
        return self.inner(x, kind, mask=mask)


def test_any_structure_and_type_of_tensors_may_cross():
    example = {"x": torch.randn(2, 4), "kind": torch.tensor([2**40, 3]), "mask": torch.randn(2, 4)}
    cutting = check(Named(), example, stages=3)
    assert names(cutting) == ["inner.turn", *(f"inner.units.{i}.linear" for i in range(3))]
    assert all(spec.dtype.is_floating_point for segment in cutting.segments[1:] for spec in segment.entry)
    assert [spec.dtype for spec in cutting.output] == [torch.float32, torch.int64]


def test_a_boundary_whose_shape_depends_on_the_data_is_refused():
    class Pick(nn.Module):
        def forward(self, x):
            return x[x.sum(-1) > 0]

    class Total(nn.Module):
        def forward(self, x):
            return x.sum(0)

    model = Sums(lambda s, x: s.c(s.total(s.b(s.a(s.pick(x))))), pick=Pick(), total=Total(), **linears("a", "b", "c"))
    cutting = check(model, torch.cat([torch.ones(3, 4), -torch.ones(30, 4)]))
    assert names(cutting) == ["pick", "c"]
    assert set(cutting.refused) == {"a", "b", "total"}
    assert all("shape" in reason for reason in cutting.refused.values())


def test_a_forward_that_looks_at_values_is_refused_where_it_does():
    def order(s, x):
        x = s.a(x)
        return s.c(s.b(x * 2 if x.sum().item() > 0 else x * 3))

    with pytest.raises(UserError, match="cut into 1 at most.*looks at values that only an earlier stage has"):
        cut(Sums(order, **linears("a", "b", "c")), torch.randn(2, 4), stages=2)


def test_constants_are_computed_in_each_stage_and_do_not_cross():
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("table", torch.rand(8, 4), persistent=False)
            self.embed = nn.Linear(4, 4)
            self.blocks = nn.ModuleList(model_zoo.Block(4) for _ in range(3))

        def forward(self, x):
            places = torch.arange(x.shape[1], device=x.device)
            mask = self.table[places] + torch.ones_like(x[:1])
            assert mask.sum().item() > 0  # a look at a constant
            x = self.embed(x)
            for block in self.blocks:
                x = block(x, mask=mask)
            return x * self.table[0]

    model = Masked()
    cutting = check(model, torch.randn(2, 5, 4), stages=3)
    assert names(cutting) == ["embed", *(f"blocks.{i}.norm" for i in range(3))]
    assert all(len(segment.entry) == 1 for segment in cutting.segments)
    assert [list(dict(stage.named_buffers())) for stage in split_runs.cut_at(cutting, [0, 1, 2])] == [["table"]] * 3
    assert "table" not in cutting.stage(1, 2).state_dict()


def test_what_depends_on_an_input_crosses_with_every_boundary():
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(model_zoo.Block(4) for _ in range(3))

        def forward(self, x, lengths):
            mask = (torch.arange(x.shape[1], device=x.device) < lengths[:, None]).unsqueeze(-1)
            for block in self.blocks:
                x = block(x, mask)
            return x

    cutting = check(Masked(), (torch.randn(2, 5, 4), torch.tensor([3, 5])), stages=3)
    assert [len(segment.entry) for segment in cutting.segments] == [2, 2, 2]
    last = cutting.stage(2, 3)
    assert [spec.dtype for spec in cutting.segments[2].entry] == [torch.float16, torch.float32]  # the mask, as numbers
    entry = [torch.randn(spec.shape, dtype=spec.dtype, requires_grad=True) for spec in cutting.segments[2].entry]
    last(*entry).sum().backward()
    assert torch.count_nonzero(entry[0].grad) == 0


def test_transformer_layers_that_evaluate_in_one_fused_kernel():
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    model = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
    example = torch.randn(2, 5, 16)
    cutting = check(model, example)
    assert {"layers.1.self_attn", "layers.2.self_attn"} <= set(names(cutting))
    stages = split_runs.cut_at(cutting, [0, names(cutting).index("layers.2.self_attn")])
    for module in [model, *stages]:
        module.eval()
    with torch.no_grad():
        torch.testing.assert_close(stages[1](stages[0](example)), model(example), rtol=1e-5, atol=1e-5)


def test_the_models_own_input_may_be_needed_at_the_end():
    model = Sums(lambda s, x: x - s.c(s.b(s.a(x))), **linears("a", "b", "c"))
    cutting = check(model, torch.randn(2, 4), stages=3)
    assert [len(segment.entry) for segment in cutting.segments] == [1, 2, 2]


def test_a_forward_may_name_its_device():
    def order(s, x):
        x = s.a(x.to("cpu")).cpu() + torch.ones(4, device="cpu") * torch.zeros(4).to(torch.device("cpu"))
        return s.c(s.b(x).to("cpu", torch.float32) + torch.arange(4))

    check(Sums(order, **linears("a", "b", "c")), torch.randn(2, 4), stages=3)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: torch.compile(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))), "compiled.*cut first, then compile"),
        (lambda: nn.Sequential(nn.LazyLinear(4), nn.Linear(4, 4)), "0.weight.*has no values yet.*run a lazy module"),
        (lambda: nn.Sequential(nn.Linear(4, 4, device="meta"), nn.Linear(4, 4)), "0.weight.*build it on the CPU"),
        (lambda: nn.Linear(4, 4), "2 stages of the model Linear.*cut into 1 at most.*allowed: 1 to 1"),
    ],
)
def test_models_that_are_not_fit_are_refused(build, words):
    with pytest.raises(UserError, match=words):
        cut(build(), torch.randn(2, 4), stages=2)


def test_stage_numbers_are_checked():
    cutting = cut(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), torch.randn(2, 4), stages=2)
    for begin, end in ((0, 0), (-1, 1), (1, 3)):
        with pytest.raises(ValueError, match="of 2 segments"):
            cutting.stage(begin, end)


def test_transformers_imports_as_a_script_does_it(tmp_path):
    """Without the operators that model_zoo declares: no torchvision may be found that does not fit this torch."""
    pytest.importorskip("transformers", reason="transformers is not installed")
    script = tmp_path / "script.py"
    script.write_text("from transformers import GPT2LMHeadModel; print(GPT2LMHeadModel.__name__)")
    assert by_itself(tmp_path, script) == (0, "GPT2LMHeadModel\n")
