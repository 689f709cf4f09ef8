"""Buffers that become results as they are, and those of which results are windows."""

from dcir.runtime.program_info import BufferInfo, ProgramInfo, ResultInfo


def info(buffers, results):
    return ProgramInfo(1, 0, (), (), tuple(buffers), (0,) * len(buffers), tuple(results), {}, ())


def test_a_buffer_takes_the_shape_of_its_result():
    made = info(
        [BufferInfo((8, 1), (1, 1), "f32")], [ResultInfo("buffer", 0, (2, 4), (4, 1))]
    ).with_buffers_as_results()
    assert made.buffers == (BufferInfo((2, 4), (4, 1), "f32"),)
    assert made.results == (ResultInfo("buffer", 0),)
    channels_last = ResultInfo("buffer", 0, (1, 2, 4), (8, 1, 2))
    made = info([BufferInfo((8,), (1,), "f32")], [channels_last]).with_buffers_as_results()
    assert made.buffers[0].strides == (8, 1, 2)


def test_windows_stay_windows():
    whole = BufferInfo((8,), (1,), "f32")
    for results in (
        [ResultInfo("buffer", 0, (4,), (1,))],  # a part
        [ResultInfo("buffer", 0, (4,), (2,))],  # with gaps
        [ResultInfo("buffer", 0, (4,), (1,), 4)],  # not from the beginning
        [ResultInfo("buffer", 0, (8, 2), (1, 0))],  # an element more than once
        [ResultInfo("buffer", 0, (8,), (1,)), ResultInfo("buffer", 0, (2, 4), (4, 1))],  # two of one buffer
        [ResultInfo("input", 0, (8,), (1,))],
    ):
        assert info([whole], results).with_buffers_as_results() == info([whole], results)
    padded = BufferInfo((2, 4), (8, 1), "f32")
    result = [ResultInfo("buffer", 0, (8,), (1,))]
    assert info([padded], result).with_buffers_as_results() == info([padded], result)
