"""Images of any size through one program: the networks that see them, at ends, odd sizes and tails, with one thread and two."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import dcir
from tests.driver.test_moving_program import check, programs

pytestmark = pytest.mark.in_turn(3)

SIZES = [(2, 40, 56), (3, 64, 44), (2, 33, 35), (5, 97, 31), (2, 16, 120), (4, 47, 48), (2, 12, 9), (3, 81, 100)]


class Residual(nn.Module):
    """As in ResNet: a stem of 7 x 7, a pool, blocks with a stride, a mean over the image, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 16, 7, 2, 3, bias=False), nn.BatchNorm2d(16)
        self.a, self.b = nn.Conv2d(16, 24, 3, 2, 1), nn.Conv2d(24, 24, 3, 1, 1)
        self.short, self.head = nn.Conv2d(16, 24, 1, 2), nn.Linear(24, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.stem(x))), 3, 2, 1)
        x = F.relu(self.b(F.relu(self.a(x))) + self.short(x))
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


class Segments(nn.Module):
    """Strides, depthwise and grouped convolutions, and results of the size of the image."""

    def __init__(self, mode: str = "bilinear") -> None:
        super().__init__()
        self.mode = {"mode": mode} if mode == "nearest" else {"mode": "bilinear", "align_corners": mode == "corners"}
        self.a, self.b = nn.Conv2d(3, 16, 3, 2, 1), nn.Conv2d(16, 32, 3, 2, 1)
        self.up, self.deep = nn.Conv2d(32, 48, 1), nn.Conv2d(48, 48, 3, 1, 1, groups=48)
        self.down, self.grouped, self.out = (
            nn.Conv2d(48, 32, 1),
            nn.Conv2d(32, 32, 3, 1, 1, groups=4),
            nn.Conv2d(32, 5, 1),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.b(F.silu(self.a(x))))
        y = y + self.down(F.silu(self.deep(F.silu(self.up(y)))))
        return F.interpolate(self.out(self.grouped(y)), size=x.shape[2:], **self.mode)


class Across(nn.Module):
    """As in U-Net: what was halved is doubled and lies beside what it was."""

    def __init__(self, *, learnt: bool) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 16, 3, 1, 1), nn.Conv2d(16, 32, 3, 1, 1)
        self.up = nn.ConvTranspose2d(32, 16, 2, 2) if learnt else None
        self.narrow, self.out = nn.Conv2d(32, 16, 1), nn.Conv2d(32, 4, 3, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.a(x))
        y = F.relu(self.b(F.max_pool2d(x, 2)))
        y = self.up(y) if self.up is not None else F.interpolate(self.narrow(y), size=x.shape[2:], mode="bilinear")
        return self.out(torch.cat((y, x), 1))


class Padded(nn.Module):
    """Padded to a multiple, by nothing at times, and cut again."""

    def __init__(self, multiple: int, *, quotient: bool) -> None:
        super().__init__()
        self.multiple, self.quotient = multiple, quotient
        self.a, self.b = nn.Conv2d(3, 8, 3, 1, 1), nn.Conv2d(8, 4, 3, 1, 1)

    def more(self, size: int) -> int:
        by = self.multiple
        return -(-size // by) * by - size if self.quotient else (by - size % by) % by

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        height, width = x.shape[2:]
        y = F.pad(x, (0, self.more(width), 0, self.more(height)), value=0.5)
        return self.b(F.relu(self.a(y)))[:, :, :height, :width]


class Windows(nn.Module):
    """As in VGG and AlexNet: as many windows as the head has inputs; or pools whose last windows may leave the image."""

    def __init__(self, pool: nn.Module, out: int = 1) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 8, 3, 1, 1)
        self.pool, self.out, self.head = pool, out, nn.Linear(8 * out * out, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.b(self.pool(F.relu(self.a(x)))))
        return self.head(F.adaptive_avg_pool2d(y, self.out).flatten(1))


class Pyramid(nn.Module):
    """As in PSPNet: means of 1, 2, 3 and 6 windows a side, spread over the image again."""

    def __init__(self, pool: str = "avg") -> None:
        super().__init__()
        self.pool = {"avg": F.adaptive_avg_pool2d, "max": F.adaptive_max_pool2d}[pool]
        self.a, self.out = nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(40, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.silu(self.a(x))
        wide = [F.interpolate(self.pool(y, n), size=y.shape[2:], mode="bilinear") for n in (1, 2, 3, 6)]
        return self.out(torch.cat((y, *wide), 1))


class Fitted(nn.Module):
    """As in many a U-Net: what was halved and doubled is padded by what is missing, twice."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(3, 8, 3, 1, 1), nn.Conv2d(8, 16, 3, 1, 1), nn.Conv2d(16, 16, 3, 1, 1)
        self.up, self.more, self.out = (
            nn.ConvTranspose2d(16, 16, 2, 2),
            nn.ConvTranspose2d(32, 8, 2, 2),
            nn.Conv2d(16, 4, 1),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = F.silu(self.a(x))
        b = F.silu(self.b(F.avg_pool2d(a, 2)))
        y = self.fitted(self.up(F.silu(self.c(F.avg_pool2d(b, 2)))), b)
        return self.out(self.fitted(self.more(y), a))

    def fitted(self, y: torch.Tensor, to: torch.Tensor) -> torch.Tensor:
        down, right = to.size(2) - y.size(2), to.size(3) - y.size(3)
        return torch.cat((to, F.pad(y, [right // 2, right - right // 2, down // 2, down - down // 2])), 1)


NETS = {
    "windows": lambda: Windows(nn.MaxPool2d(2), 7),
    "pool-up": lambda: Windows(nn.MaxPool2d(3, 2, ceil_mode=True)),
    "pool-up-2": lambda: Windows(nn.MaxPool2d(2, ceil_mode=True)),
    "mean-up": lambda: Windows(nn.AvgPool2d(3, 2, 1, ceil_mode=True, count_include_pad=False)),
    "pyramid": Pyramid,
    "pyramid-max": lambda: Pyramid("max"),
    "fitted": Fitted,
    "padded": lambda: Padded(8, quotient=False),
    "padded-up": lambda: Padded(8, quotient=True),
    "residual": Residual,
    "segments": Segments,
    "segments-nearest": lambda: Segments("nearest"),
    "segments-corners": lambda: Segments("corners"),
    "across": lambda: Across(learnt=False),
    "across-learnt": lambda: Across(learnt=True),
    "patches": lambda: nn.Sequential(nn.Conv2d(3, 16, 4, 4), nn.GELU(), nn.Conv2d(16, 8, 2, 2)),
    "plain": lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AvgPool2d(2), nn.Conv2d(8, 4, 3, padding=1)),
}


def net_of(name: str) -> nn.Module:
    torch.manual_seed(0)
    return NETS[name]().eval()


def images(name: str, batch: int, height: int, width: int) -> torch.Tensor:
    even, times = 2 if name == "across-learnt" else 1, 2 if "pyramid" in name else 1
    return torch.randn(batch, 3, height // even * even * times, width // even * even * times)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", NETS)
def test_one_program(name: str, threads: int) -> None:
    net = net_of(name)
    fast = dcir.optimize(net, threads=threads)
    for size in SIZES:
        check(fast, net, images(name, *size))
    moving, constant = programs(fast)
    assert len(moving) == len(constant) == 1, [g.remark for g in constant]


def test_one_image_at_a_time() -> None:
    """Torch has a trace of its own for it."""
    net = net_of("segments")
    fast = dcir.optimize(net)
    for _, height, width in SIZES[:4]:
        check(fast, net, torch.randn(1, 3, 3 * height, 3 * width))
    moving, constant = programs(fast)
    assert len(moving) == len(constant) == 1, [g.remark for g in constant]


def test_channels_last() -> None:
    net = net_of("segments").to(memory_format=torch.channels_last)
    fast = dcir.optimize(net)
    for size in SIZES[:4]:
        check(fast, net, images("segments", *size).to(memory_format=torch.channels_last))


def test_square_images() -> None:
    """Both sides may be one size."""
    net = net_of("segments")
    fast = dcir.optimize(net)
    for batch, side in ((2, 40), (3, 64), (2, 33), (2, 90)):
        check(fast, net, torch.randn(batch, 3, side, side))


def test_tiny_images() -> None:
    """Of which little is left after strides: they may have programs of their own."""
    net = net_of("segments")
    fast = dcir.optimize(net)
    for size in ((2, 40, 56), (3, 64, 44), (2, 5, 5), (2, 4, 9), (3, 3, 3), (2, 2, 70), (2, 1, 1)):
        check(fast, net, images("segments", *size))


def test_images_below_the_first_ones_of_a_program_do_not_ask_for_wider_ones() -> None:
    """It takes windows of 6 along 7 and more pixels; smaller images have programs of their own, one each."""
    net = net_of("pyramid")
    fast = dcir.optimize(net)
    for size in (*SIZES[:2], (2, 12, 40), (2, 11, 40), (2, 12, 50)):
        check(fast, net, torch.randn(size[0], 3, *size[1:]))
    moving, constant = programs(fast)
    assert len(moving) == 1
    assert len(constant) == 4


@pytest.mark.parametrize("name", ["windows", "pool-up", "mean-up", "pyramid"])
def test_one_side_moves_and_the_other_does_not(name: str) -> None:
    """Windows along the other one are as even as its size has it."""
    net = net_of(name)
    fast = dcir.optimize(net, dynamic={"x": {2: "height"}})
    for height in (56, 71, 90, 64):
        check(fast, net, torch.randn(2, 3, height, 84))
    moving, constant = programs(fast)
    assert len(moving) == 1, [g.remark for g in constant]


def test_a_float_that_depends_on_a_remainder() -> None:
    """PyTorch's own trace ended with an AttributeError."""

    def padded_to_a_multiple(x: torch.Tensor) -> torch.Tensor:
        y = F.pad(x.sin(), [0, -x.size(3) % 8, 0, -x.size(2) % 8])
        return F.interpolate(F.avg_pool2d(y, 2), scale_factor=2)[:, :, : x.size(2), : x.size(3)]

    fast = dcir.optimize(padded_to_a_multiple)
    for size in SIZES[:3]:
        x = torch.randn(size[0], 3, *size[1:])
        torch.testing.assert_close(fast(x), padded_to_a_multiple(x))


def test_a_middle_that_the_trace_cannot_place_where_sizes_may_be_one() -> None:
    """Dynamo's error leads to a trace that sets sizes of 1 apart."""
    torch.manual_seed(0)
    thin = nn.Conv2d(4, 4, 2, 3, groups=4)

    def middle(x: torch.Tensor) -> torch.Tensor:
        x = F.pixel_shuffle(x, 2)
        y = thin(x)
        down, right = ((x.size(d) - y.size(d)) // 2 for d in (2, 3))
        return y + x[:, :, down : down + y.size(2), right : right + y.size(3)]

    fast = dcir.optimize(middle)
    for size in SIZES[:3]:
        x = torch.randn(size[0], 16, *size[1:])
        torch.testing.assert_close(fast(x), middle(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("level", [1, 2, 3])
def test_levels(level: int) -> None:
    net = net_of("segments")
    fast = dcir.optimize(net, level=level)
    for size in SIZES[:4]:
        check(fast, net, images("segments", *size))


def test_groups_in_planes() -> None:
    """Weights of several groups in one panel, and a bias that is no epilogue."""
    net = nn.Conv2d(32, 32, 3, 1, 1, groups=4).eval()
    fast = dcir.optimize(net, level=1)
    for size in SIZES[:4]:
        check(fast, net, torch.randn(size[0], 32, *size[1:]))


def test_what_torch_compile_traces_for_squares_is_one_program() -> None:
    """Asked for sizes that all move, Dynamo takes equal ones of the first call for one size."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.SiLU(), nn.Conv2d(16, 8, 1)).eval()
    before = dcir.sessions()
    fast = torch.compile(net, backend="dcir", dynamic=True)
    with torch.no_grad():
        for batch, side in ((2, 20), (3, 26), (4, 41), (2, 33)):
            x = torch.randn(batch, 3, side, side)
            torch.testing.assert_close(fast(x), net(x))
    (made,) = [handle for handle in dcir.sessions() if handle not in before]
    (graph,) = made.session.graphs
    assert len(graph.bounds) == 2
