"""The pretended device itself: what fails on a GPU fails on it, and what works there works."""

import numpy as np
import pytest
import torch

from pretended_cuda import CUDA, PretendedCuda

MIXED = pytest.mark.parametrize(
    "mix",
    [
        lambda one, other: one + other,
        lambda one, other: other * one,
        lambda one, other: one @ other,
        lambda one, other: torch.cat([one, other]),
        lambda one, other: torch.stack([one.sum(), other.sum()]),
        lambda one, other: torch.where(one > 0, other, one),
        lambda one, other: torch.einsum("ij,jk->ik", one, other),
        lambda one, other: torch.nn.functional.linear(one, other),
        lambda one, other: other[one > 0],
        lambda one, other: one.index_select(0, torch.arange(2)),
        lambda one, other: other.add_(one.sum()),
        lambda one, other: other.sum().add_(one.sum()),
        lambda one, other: other.sum() + one + other,
        lambda one, other: torch.nn.Linear(3, 3)(one),
    ],
)


@MIXED
def test_a_misplaced_tensor_raises(mix):
    with PretendedCuda():
        one, other = torch.ones(3, 3).to(CUDA), torch.ones(3, 3)
        with pytest.raises(RuntimeError, match="same device"):
            mix(one, other)


def test_a_tensor_from_numpy_or_a_factory_is_on_the_cpu():
    with PretendedCuda():
        there = torch.ones(3, device=CUDA)
        for here in (torch.from_numpy(np.ones(3)), torch.zeros(3), torch.tensor([1.0, 2, 3]), torch.arange(3)):
            assert here.device.type == "cpu"
            with pytest.raises(RuntimeError, match="same device"):
                there + here
            assert torch.equal(there + here.to(there.device), (there.cpu() + here).to(CUDA))


def test_a_misplaced_tensor_raises_in_the_backward_pass():
    with PretendedCuda():
        x, here = torch.ones(3, device=CUDA).requires_grad_(), torch.ones(3)
        total = (2 * x).sum()
        x.register_hook(lambda gradient: gradient * here)
        with pytest.raises(RuntimeError, match="same device"):
            total.backward()


def test_what_works_on_a_gpu_works():
    with PretendedCuda() as pretended:
        there, scalar, index = torch.arange(6.0, device="cuda:0"), torch.tensor(2.0), torch.tensor([1, 0])
        assert (there * scalar).device == there.new_zeros(2).device == torch.device("cuda:0")
        assert there[index].is_cuda and there[np.array([1, 0])].tolist() == [1.0, 0.0]
        assert there[there > 3].unique().tolist() == [4.0, 5.0]
        assert torch.where(there > 3, 1.0, 0.0).is_cuda
        copied = torch.empty(6).copy_(there)
        assert copied.device.type == "cpu" and copied.numpy().sum() == 15
        assert there.to(torch.half).is_cuda and not there.to(copied).is_cuda and not there.cpu().is_cuda
        assert torch.ones(3).pin_memory().to(CUDA, non_blocking=True).is_cuda
    assert {"mul", "index", "gt"} <= pretended.operations


def test_a_layer_is_trained():
    torch.manual_seed(0)
    layers, trained = [torch.nn.Linear(3, 1) for _ in range(2)], []
    layers[1].load_state_dict(layers[0].state_dict())
    for layer, device in zip(layers, (torch.device("cpu"), CUDA), strict=True):
        with PretendedCuda() as pretended:
            layer.to(device)
            optimiser = torch.optim.AdamW(layer.parameters(), fused=True)
            layer(torch.ones(4, 3, device=device)).topk(1, dim=0).values.square().sum().backward()
            torch.nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
            optimiser.step()
            assert layer.weight.device.type == layer.weight.grad.device.type == device.type
            assert ("_fused_adamw_" in pretended.operations) == (device == CUDA)
            trained.append(layer.weight.detach().cpu().numpy())
    np.testing.assert_array_equal(*trained)


def test_numpy_of_a_tensor_on_the_device_raises():
    with PretendedCuda():
        there = torch.ones(3, device=CUDA)
        for convert in (lambda: there.numpy(), lambda: np.asarray(there), lambda: there.pin_memory()):
            with pytest.raises((TypeError, RuntimeError), match="cuda"):
                convert()
        assert there.cpu().numpy().sum() == 3


def test_a_generator_of_the_cpu_raises_on_the_device():
    generator = torch.Generator().manual_seed(0)
    with PretendedCuda():
        there = torch.ones(3, device=CUDA)
        for draw in (
            lambda: torch.randn(3, generator=generator, device=CUDA),
            lambda: torch.multinomial(there, 1, generator=generator),
            lambda: there.normal_(generator=generator),
        ):
            with pytest.raises(RuntimeError, match="generator"):
                draw()
        assert torch.randn(3, generator=generator).to(CUDA).is_cuda
