"""The random numbers of a rank: its own GPU's generator is among what is saved and restored."""

import torch

from algorun_train.ranks import generators

CPU, GPU = torch.device("cpu"), torch.device("cuda", 1)


def pretended(monkeypatch):
    gpus = tuple(torch.Generator() for _ in range(2))
    begun = []
    monkeypatch.setattr(torch.cuda, "init", lambda: begun.append(True))
    monkeypatch.setattr(torch.cuda, "default_generators", gpus)
    return gpus, begun


def test_a_gpus_generator_is_one_of_the_ranks_and_another_gpus_is_not(monkeypatch):
    gpus, begun = pretended(monkeypatch)
    assert generators.generators(CPU) == [torch.default_generator]
    assert not begun
    assert generators.generators(GPU) == [torch.default_generator, gpus[1]]
    assert begun


def test_what_is_drawn_or_seeded_inside_changes_nothing_afterwards(monkeypatch):
    gpus, _ = pretended(monkeypatch)

    def drawn():
        return [torch.rand(2, generator=generator).tolist() for generator in generators.generators(GPU)]

    saved = generators.state(GPU)
    wanted = drawn()
    generators.set_state(GPU, saved)
    with generators.kept(GPU):
        torch.manual_seed(3)
        gpus[1].manual_seed(3)
        drawn()
    assert drawn() == wanted
