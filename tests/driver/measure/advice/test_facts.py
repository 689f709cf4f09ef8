"""Facts know the time of a call and its rate, what commands can measure, and what images are; here is what makes them for rules' tests."""

import pytest
import torch

from dcir.cost.bounds import FLOP, Bound
from dcir.driver.measure.advice.facts import Facts, Update, is_image
from dcir.report.advice_pieces import Call
from dcir.report.roofline_points import WHOLE, Point, Run, Setting
from tests.cost.test_machine import MODEL


def kernel(what="product m64 n64 k64", ms=1.0, flops=1000, moved=1000, bound=FLOP, calls=1):
    """A point of a roofline, of a kernel whose roof takes half of its time."""
    return Point(what, ("net.py:3",), calls, ms, 0.5, flops, moved, None, Bound(bound, 0.5))


def run_of(setting, ms, kernels=None, around=0.0, graphs=("inference",)):
    """A measured call of so many milliseconds, with a kernel that takes all of it."""
    kernels = kernels or (kernel(ms=ms - around),)
    whole = Point(WHOLE, (), 1, ms, 1.0, 1000, 1000, None, Bound(FLOP, 0.5))
    return Run(setting, tuple(graphs), 10, whole, tuple(kernels), 0.0, around, {})


def facts_of(times, now=None, kernels=None, around=0.0, graphs=("inference",), **facts):
    """Facts of calls that take so many milliseconds: {(threads, batch, level): ms}; that of now is the first unless named."""
    settings = {Setting(*key): ms for key, ms in times.items()}
    update = facts.get("update")
    runs = {s: run_of(s, ms - (update.ms if update else 0), kernels, around, graphs) for s, ms in settings.items()}
    at = next(iter(settings)) if now is None else Setting(*now)
    items = {s.batch: s.batch or 1 for s in settings}
    return Facts(
        at,
        runs,
        settings,
        items,
        facts.pop("rates", MODEL),
        facts.pop("processors", max(s.threads for s in settings)),
        **facts,
    )


def test_rates_are_items_over_the_time_of_a_call():
    facts = facts_of({(2, 4, 4): 8.0, (2, 16, 4): 20.0})
    assert facts.call == Call(2, 4, 4) and facts.run.whole.ms == 8.0
    assert (facts.a_second(facts.now), facts.a_second(Setting(2, 16, 4))) == (500.0, 800.0)


def test_a_training_step_has_the_optimisers_time():
    facts = facts_of({(2, 4, 4): 10.0}, mode="train", update=Update("sgd", 2.0, 100))
    assert facts.trains and facts.a_second(facts.now) == 400.0 and facts.run.whole.ms == 8.0


def test_a_kernels_part_is_clearest_with_the_fewest_threads():
    facts = facts_of({(4, 1, 4): 1.0, (2, 1, 4): 1.0, (1, 8, 4): 1.0, (1, 1, 2): 1.0})
    assert facts.clearest.setting == Setting(2, 1, 4)


@pytest.mark.parametrize(
    ("call", "command"),
    [
        (Call(2, None, 4), "dcir bench net.py:make"),
        (Call(1, 8, 2), "dcir bench net.py:make --batch 8 --threads 1 -O2"),
        (Call(1, None, 4, streams=2), "dcir bench net.py:make --hint throughput --streams 2"),
        (Call(1, 8, 4, streams=4), "dcir bench net.py:make --batch 8 --threads 4 --hint throughput --streams 4"),
        (Call(2, None, 4, half=True), ""),
        (Call(2, None, 4, turned=True), ""),
    ],
)
def test_commands_are_those_that_measure_the_call(call, command):
    assert facts_of({(2, None, 4): 1.0}, source="net.py:make").command(call) == command


def test_no_command_sets_an_onnx_files_batch_or_trains():
    assert facts_of({(2, None, 4): 1.0}, source="m.onnx").command(Call(2, 8, 4)) == ""
    assert facts_of({(2, None, 4): 1.0}, source="net.py:make", mode="train").command(Call(2, None, 4)) == ""


def test_images_have_several_channels_of_several_points():
    image = torch.ones(2, 3, 4, 5)
    assert is_image(image) and is_image(image.contiguous(memory_format=torch.channels_last))
    others = [torch.ones(2, 1, 4, 5), torch.ones(2, 3, 1, 1), torch.ones(2, 3, 4), image.int(), image[..., ::2], 3]
    assert not any(map(is_image, others))
