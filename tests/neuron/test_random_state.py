"""Random state as torch.cuda's: generators, 16-byte states, forks, and who touches what (D9)."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Iterator

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.utils.checkpoint import checkpoint, get_device_states, set_device_states

from support import output_of


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    state = torch.neuron.get_rng_state()
    yield
    torch.neuron.set_rng_state(state)


def words(generator: torch.Generator | None = None) -> list[int]:
    """Seed and offset."""
    state = generator.get_state() if generator else torch.neuron.get_rng_state()
    return state.view(torch.int64).tolist()


def draw(generator: torch.Generator | None = None) -> list[float]:
    return torch.rand(5, device="neuron", generator=generator).tolist()


def test_seeds_as_on_cpu() -> None:
    for seed in (0, 5, -5, 2**63, 2**64 - 1):
        reference = torch.Generator().manual_seed(seed).initial_seed()
        torch.neuron.manual_seed(seed)
        assert torch.neuron.initial_seed() == reference
    with pytest.raises((ValueError, RuntimeError)):
        torch.neuron.manual_seed(2**64)


def test_random_seeds_differ() -> None:
    torch.neuron.seed()
    first = torch.neuron.initial_seed()
    torch.neuron.seed_all()
    assert torch.neuron.initial_seed() != first
    assert words()[1] == 0


def test_a_restored_state_restores_the_seed() -> None:
    torch.neuron.manual_seed(7)
    draw()
    state = torch.neuron.get_rng_state()
    expected = draw()
    torch.neuron.manual_seed(8)
    torch.neuron.set_rng_state(state)
    assert torch.neuron.initial_seed() == 7
    assert draw() == expected
    for device in ("neuron", "neuron:0", torch.device("neuron"), 0):
        torch.neuron.set_rng_state(state, device)
        assert torch.equal(torch.neuron.get_rng_state(device), state)
    torch.neuron.set_rng_state_all(torch.neuron.get_rng_state_all())
    assert torch.equal(torch.neuron.get_rng_state(), state)


def test_a_state_survives_the_device() -> None:
    # Libraries broadcast states as device tensors.
    state = torch.neuron.get_rng_state()
    assert torch.equal(state.to("neuron").cpu(), state)


@pytest.mark.parametrize(
    ("state", "error", "message"),
    [
        (torch.zeros(15, dtype=torch.uint8), RuntimeError, "16 bytes"),
        (torch.zeros(16), TypeError, "ByteTensor"),
        (torch.tensor([0] * 8 + [3] + [0] * 7, dtype=torch.uint8), RuntimeError, "multiple of 4"),
        ("state", TypeError, "ByteTensor"),
    ],
)
def test_states_that_are_refused_change_nothing(
    state: object, error: type[Exception], message: str
) -> None:
    torch.neuron.manual_seed(11)
    with pytest.raises(error, match=message):
        torch.neuron.set_rng_state(state)  # type: ignore[arg-type]
    assert words() == [11, 0]


def test_a_mode_that_makes_fake_tensors_sees_the_real_state() -> None:
    """PyTorch's tests take and restore states wherever a sample is traced."""
    torch.neuron.manual_seed(7)
    with FakeTensorMode() as mode:
        state = torch.neuron.get_rng_state()
        torch.neuron.manual_seed(8)
        torch.neuron.set_rng_state(state)
        fake = mode.from_tensor(state)
    assert type(state) is torch.Tensor
    torch.neuron.manual_seed(7)
    assert torch.equal(state, torch.neuron.get_rng_state())
    with pytest.raises(RuntimeError, match="got a fake or meta tensor"):
        torch.neuron.set_rng_state(fake)
    assert torch.equal(state, torch.neuron.get_rng_state())


def test_a_state_on_the_device_is_refused() -> None:
    with pytest.raises(TypeError, match="ByteTensor"):
        torch.neuron.set_rng_state(torch.neuron.get_rng_state().to("neuron"))


def test_devices_that_are_not_there() -> None:
    with pytest.raises(RuntimeError, match="invalid device ordinal: neuron:7"):
        torch.Generator("neuron:7")
    with pytest.raises(IndexError, match="neuron:7"):
        torch.neuron.get_rng_state(7)
    with pytest.raises(IndexError, match="neuron:1"):
        torch.neuron.set_rng_state_all(torch.neuron.get_rng_state_all() * 2)


def test_generators_of_another_device_are_refused() -> None:
    with pytest.raises(RuntimeError, match="'neuron' device type for generator but found 'cpu'"):
        torch.rand(3, device="neuron", generator=torch.Generator())
    with pytest.raises(RuntimeError):
        torch.rand(3, generator=torch.Generator("neuron"))
    x = torch.zeros(3, device="neuron")
    for call in (
        lambda g: x.normal_(generator=g),
        lambda g: x.bernoulli_(0.5, generator=g),
        lambda g: torch.randperm(4, device="neuron", generator=g),
        lambda g: torch.multinomial(x + 1, 2, generator=g),
    ):
        with pytest.raises(RuntimeError, match="generator"):
            call(torch.Generator())
    assert x.tolist() == [0, 0, 0]


def test_generator_objects() -> None:
    generator = torch.Generator("neuron")
    assert generator.device == torch.device("neuron:0")
    assert generator.manual_seed(5) is generator
    assert generator.initial_seed() == 5 and generator.get_offset() == 0
    draw(generator)
    assert generator.get_offset() == 8  # five elements, rounded up to a multiple of four
    for twin in (pickle.loads(pickle.dumps(generator)), copy.deepcopy(generator)):
        assert words(twin) == words(generator)
        assert draw(twin) == draw(generator.clone_state())
    generator.set_offset(4)
    assert words(generator) == [5, 4]
    with pytest.raises(RuntimeError, match="multiple of 4"):
        generator.set_offset(3)


def test_joined_generators_advance_together() -> None:
    # What torch's compiler does to carry random state through graphs.
    default = torch.neuron.default_generators[0]
    other = default.clone_state().manual_seed(3)
    before = default.graphsafe_get_state()
    default.graphsafe_set_state(other)
    try:
        drawn = draw()
        assert words(other) == [3, 8]
        assert draw(torch.Generator("neuron").manual_seed(3)) == drawn
    finally:
        default.graphsafe_set_state(before)
    with pytest.raises(RuntimeError):
        default.graphsafe_set_state(torch.Generator())


def test_offsets_by_the_names_that_dtensor_uses() -> None:
    torch.neuron.manual_seed(1)
    draw()
    assert torch.neuron._get_rng_state_offset() == 8
    torch.neuron._set_rng_state_offset(0)
    again = draw()
    torch.neuron.manual_seed(1)
    assert draw() == again


def test_the_offset_counts_elements() -> None:
    torch.neuron.manual_seed(0)
    for shape, offset in (((3,), 4), ((4,), 8), ((2, 5), 20), ((0,), 20)):
        torch.randn(shape, device="neuron")
        assert words() == [0, offset], shape


@pytest.mark.parametrize("kind", ["rand", "randn"])
def test_shards_draw_what_the_whole_draws(kind: str) -> None:
    """Each shard starts at the offset where the one before ended (DTensor's convention)."""
    draw_ = getattr(torch, kind)
    torch.neuron.manual_seed(4)
    whole = draw_(24, device="neuron")
    shards = []
    for start in (0, 8, 16):
        torch.neuron._set_rng_state_offset(start)
        shards.append(draw_(8, device="neuron"))
        assert words() == [4, start + 8]
    assert torch.equal(torch.cat(shards), whole)
    assert len(set(whole.tolist())) == 24


def test_fork_rng_by_device_type() -> None:
    torch.manual_seed(1)
    draw()
    host, device = torch.get_rng_state(), words()
    with torch.random.fork_rng(device_type="neuron"):
        torch.manual_seed(2)
        draw()
        torch.rand(3)
    assert torch.equal(torch.get_rng_state(), host) and words() == device
    with torch.random.fork_rng(devices=[torch.device("neuron:0")], device_type="neuron"):
        draw()
    assert words() == device
    with torch.random.fork_rng(devices=[], device_type="neuron"):
        draw()
    assert words() != device


def dropped(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.dropout(x, 0.5).sin()


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpointing_repeats_the_mask(use_reentrant: bool) -> None:
    gradients = []
    for checkpointed in (False, True):
        torch.manual_seed(0)
        x = torch.linspace(0.1, 1, 40, device="neuron").requires_grad_()
        y = checkpoint(dropped, x, use_reentrant=use_reentrant) if checkpointed else dropped(x)
        after = words()
        y.sum().backward()
        assert words() == after  # the recomputation leaves the state as it was
        gradients.append(x.grad.tolist())
    assert gradients[0] == gradients[1]


def test_checkpointing_may_be_told_not_to_keep_the_state() -> None:
    torch.manual_seed(0)
    x = torch.ones(200, device="neuron", requires_grad=True)
    y = checkpoint(dropped, x, use_reentrant=False, preserve_rng_state=False)
    y.sum().backward()
    assert not torch.equal((x.grad != 0).cpu(), (y.detach() != 0).cpu())


def test_device_states_as_cached_losses_take_them() -> None:
    x = torch.ones(4, device="neuron")
    devices, states = get_device_states(x)
    expected = draw()
    set_device_states(devices, states, device_type="neuron")
    assert draw() == expected


def test_threads_share_the_device_generator() -> None:
    torch.neuron.manual_seed(0)
    threads = [threading.Thread(target=lambda: [draw() for _ in range(5)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert words() == [0, 4 * 5 * 8]


def test_each_device_has_its_own() -> None:
    text = output_of(
        """
        import threading, torch
        torch.manual_seed(3)
        torch.rand(4, device="neuron:1")
        print([s.view(torch.int64).tolist() for s in torch.neuron.get_rng_state_all()])
        with torch.neuron.device(1):
            torch.neuron.manual_seed(9)
            print(torch.neuron.initial_seed(), torch.neuron.default_generators[0].initial_seed())
        states = torch.neuron.get_rng_state_all()
        with torch.random.fork_rng(device_type="neuron"):
            torch.neuron.manual_seed_all(1)
        print(all(map(torch.equal, torch.neuron.get_rng_state_all(), states)))
        generator = torch.Generator("neuron:1")
        print(torch.rand(2, device="neuron:1", generator=generator).device, generator.device)

        def where():
            print("thread", torch.neuron.current_device(), torch.empty(1, device="neuron").device)

        def run():
            thread = threading.Thread(target=where)
            thread.start()
            thread.join()

        with torch.neuron.device(1):
            run()
        torch.neuron.set_device(1)
        run()
        with torch.accelerator.device_index(0):
            print("main", torch.neuron.current_device())
            run()
        torch.accelerator.set_device_index(0)
        run()
        """,
        TORCH_NEURONX_NUM_DEVICES="2",
    )
    assert text.splitlines() == [
        "[[3, 0], [3, 4]]",
        "9 3",
        "True",
        "neuron:1 neuron:1",
        "thread 0 neuron:0",  # a context manager is its thread's own affair
        "thread 1 neuron:1",  # what the main thread set holds where nothing else was chosen
        "main 0",
        "thread 1 neuron:1",
        "thread 0 neuron:0",
    ]


def test_seeds_repeat_draws() -> None:
    def draws() -> list[torch.Tensor]:
        return [
            torch.rand(5, device="neuron"),
            torch.randn(3, 4, device="neuron"),
            torch.randint(0, 100, (6,), device="neuron"),
            torch.nn.functional.dropout(torch.ones(20, device="neuron"), 0.5),
            torch.randperm(9, device="neuron"),
            torch.bernoulli(torch.full((8,), 0.5, device="neuron")),
        ]

    torch.manual_seed(3)
    first = draws()
    later = draws()
    torch.neuron.manual_seed_all(3)
    again = draws()
    for a, b in zip(first, again, strict=True):
        assert torch.equal(a.cpu(), b.cpu())
    assert not torch.equal(first[0].cpu(), later[0].cpu())
    assert sorted(first[4].tolist()) == list(range(9))


def test_the_cpu_generator_is_untouched() -> None:
    torch.manual_seed(11)
    before = torch.get_rng_state()
    torch.randn(100, device="neuron")
    torch.nn.functional.dropout(torch.ones(9, device="neuron"))
    torch.nn.init.kaiming_uniform_(torch.empty(3, 3, device="neuron"))
    torch.neuron.manual_seed(5)
    assert torch.equal(torch.get_rng_state(), before)
