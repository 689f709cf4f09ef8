"""Loop nests of typical shapes, for tests of CUDA kernels."""

from __future__ import annotations

from dcir.ir.loop_nest import LoopNest
from dcir.ir.loop_nest_builder import LoopNestBuilder


def product(n: int, dtype: str = "f32") -> LoopNest:
    """y = tanh(a) * b over n points."""
    b = LoopNestBuilder((n,))
    x, y = b.load(b.input(dtype), (1,)), b.load(b.input(dtype), (1,))
    b.store(b.output(dtype), (1,), b.op("tanh", x) * y)
    return b.finish()


def biased(rows: int, columns: int, dtype: str = "f32") -> LoopNest:
    """y[i, j] = x[i, j] + b[j] + c[i]."""
    b = LoopNestBuilder((rows, columns))
    x, bias = b.load(b.input(dtype), (columns, 1)), b.load(b.input(dtype), (0, 1))
    b.store(b.output(dtype), (columns, 1), x + bias + b.load(b.input(dtype), (1, 0)))
    return b.finish()


def transposed(rows: int, columns: int, dtype: str = "f32") -> LoopNest:
    """y[j, i] = 2 x[i, j]."""
    b = LoopNestBuilder((columns, rows))
    b.store(b.output(dtype), (rows, 1), b.load(b.input(dtype), (1, columns)) * 2.0)
    return b.finish()


def row_reduce(rows: int, columns: int, kind: str = "sum", dtype: str = "f32") -> LoopNest:
    """y[i] = reduce_j x[i, j]."""
    b = LoopNestBuilder((rows,), (columns,))
    found = b.reduce(kind, b.load(b.input(dtype), (columns, 1)))
    b.store(b.output(found.dtype if found.dtype != "f32" else dtype), (1, 0), found)
    return b.finish()


def column_reduce(rows: int, columns: int, kind: str = "sum", dtype: str = "f32") -> LoopNest:
    """y[j] = reduce_i x[i, j]."""
    b = LoopNestBuilder((columns,), (rows,))
    found = b.reduce(kind, b.load(b.input(dtype), (1, columns)))
    b.store(b.output(found.dtype if found.dtype != "f32" else dtype), (1, 0), found)
    return b.finish()


def normalised_sums(rows: int, columns: int, dtype: str = "f32") -> LoopNest:
    """y[j] = sum_i (x[i, j] - m[j]) / sqrt(1 + v[j] ** 2)."""
    b = LoopNestBuilder((columns,), (rows,))
    x, mean, spread = (b.load(b.input(dtype), strides) for strides in ((1, columns), (1, 0), (1, 0)))
    found = b.reduce("sum", (x - mean) * b.op("rsqrt", spread * spread + 1.0))
    b.store(b.output(dtype), (1, 0), found)
    return b.finish()


def softmax(rows: int, columns: int, dtype: str = "f32") -> LoopNest:
    """y[i] = softmax(x[i])."""
    b = LoopNestBuilder((rows,), (columns,))
    x = b.load(b.input(dtype), (columns, 1))
    e = b.op("exp", x - b.reduce("max", x))
    b.store(b.output(dtype), (columns, 1), e / b.reduce("sum", e))
    return b.finish()


def layer_norm(rows: int, columns: int, dtype: str = "f32") -> LoopNest:
    """y[i] = (x[i] - mean) / deviation * g + b; the mean too."""
    b = LoopNestBuilder((rows,), (columns,))
    x = b.load(b.input(dtype), (columns, 1))
    mean = b.reduce("sum", x) * (1.0 / columns)
    apart = x - mean
    scale = b.op("rsqrt", b.reduce("sum", apart * apart) * (1.0 / columns) + 1e-5)
    g, shift = b.load(b.input(dtype), (0, 1)), b.load(b.input(dtype), (0, 1))
    b.store(b.output(dtype), (columns, 1), apart * scale * g + shift)
    b.store(b.output("f32"), (1, 0), mean)
    return b.finish()


def batch_norm(images: int, channels: int, pixels: int, dtype: str = "f32") -> LoopNest:
    """Normalised per channel over images and pixels, channels in the middle."""
    b = LoopNestBuilder((channels,), (images, pixels))
    walk = (pixels, channels * pixels, 1)
    x, n = b.load(b.input(dtype), walk), images * pixels
    mean = b.reduce("sum", x) * (1.0 / n)
    apart = x - mean
    scale = b.op("rsqrt", b.reduce("sum", apart * apart) * (1.0 / n) + 1e-5)
    b.store(b.output(dtype), walk, apart * scale)
    return b.finish()


def embedding(rows: int, table: int, columns: int, dtype: str = "f32") -> LoopNest:
    """y[i, j] = w[k[i], j]."""
    b = LoopNestBuilder((rows, columns))
    w = b.input(dtype)
    k = b.load(b.input("i64"), (1, 0))
    b.store(b.output(dtype), (columns, 1), b.gather(w, (0, 1), [k], [table], [columns]))
    return b.finish()


def running(rows: int, columns: int, *, down: bool = False) -> LoopNest:
    """y[i, j] = x[i, j] - mean(x[i]) + r[i], and r[i] + mean(x[i]), which may lie in place of r; with ``down`` columns are reduced."""
    b = LoopNestBuilder((rows,), (columns,))
    walk = (1, rows) if down else (columns, 1)
    x, r = b.load(b.input("f32"), walk), b.load(b.input("f32"), (1, 0))
    mean = b.reduce("sum", x) * (1.0 / columns)
    b.store(b.output("f32"), walk, x - mean + r)
    b.store(b.output("f32"), (1, 0), r + mean)
    return b.finish()
