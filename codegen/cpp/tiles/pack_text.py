"""C++ that packs a strided matrix into panels: contiguous rows by copies, contiguous columns by transposition."""

from __future__ import annotations

from dcir.codegen.cpp.tiles.emit import render

# A panel is [depth][width]: `width` neighbours of one dimension (stride sw) at each of `depth` steps of the other
# (stride sd). Lanes from `valid` up to `width` are zero.
_VECTOR_COPY = """
template <int NV> $inline void $name(T *d, const T *s, L depth, L valid) {
    const int tail = (int)(valid % VL);
    if (valid == NV * VL)
        for (L k = 0; k < depth; k++)
#pragma GCC unroll 8
            for (int v = 0; v < NV; v++) store(d + (k * NV + v) * VL, load(s + k * ${sd}LL + v * VL));
    else
        for (L k = 0; k < depth; k++)
            for (int v = 0; v < NV; v++) {
                const L left = valid - v * VL;
                const T *p = s + k * ${sd}LL + v * VL;
                store(d + (k * NV + v) * VL, left >= VL ? load(p) : left > 0 ? load_part(p, tail) : V{});
            }
}
"""
_VECTOR_TRANSPOSE = """
template <int NV> $inline void $name(T *d, const T *s, L depth, L valid) {
    for (int v = 0; v < NV; v++) {
        const int rows = (int)(valid - v * VL < VL ? valid - v * VL : VL);
        for (L k = 0; k < depth; k += VL)
            transpose_block(s + v * VL * ${sw}LL + k, ${sw}LL, rows, (int)(depth - k < VL ? depth - k : VL), V{},
                            d + (k * NV + v) * VL, NV * VL, VL);
    }
}
"""
_VECTOR_ANY = """
template <int NV> $inline void $name(T *d, const T *s, L depth, L valid) {
    for (L k = 0; k < depth; k++)
        for (int i = 0; i < NV * VL; i++) d[k * NV * VL + i] = i < valid ? s[k * ${sd}LL + i * ${sw}LL] : 0;
}
"""
# A tile's rows, [depth][MR]; when transposing, every vector is stored whole and the next one overwrites its excess, so the
# buffer needs VL elements more.
_ROWS_TRANSPOSE = """
template <int MR> $inline void $name(T *d, const T *s, L depth) {
    if constexpr (MR <= VL)
        for (L k = 0; k < depth; k += VL)
            transpose_block(s + k, ${sw}LL, MR, (int)(depth - k < VL ? depth - k : VL), V{}, d + k * MR, MR, VL);
    else
        for (L k = 0; k < depth; k++)
            for (int i = 0; i < MR; i++) d[k * MR + i] = s[i * ${sw}LL + k];
}
"""
_ROWS_COPY = """
template <int MR> $inline void $name(T *d, const T *s, L depth) {
    for (L k = 0; k < depth; k++) __builtin_memcpy(d + k * MR, s + k * ${sd}LL, MR * sizeof(T));
}
"""
_ROWS_ANY = """
template <int MR> $inline void $name(T *d, const T *s, L depth) {
    for (L k = 0; k < depth; k++)
#pragma GCC unroll 32
        for (int i = 0; i < MR; i++) d[k * MR + i] = s[k * ${sd}LL + i * ${sw}LL];
}
"""


def pack_vectors(name: str, width_stride: int, depth_stride: int) -> str:
    """A function template ``name<NV>(to, from, depth, valid)`` that fills a panel of NV vectors' width."""
    if width_stride == 1:
        text = _VECTOR_COPY
    else:
        text = _VECTOR_TRANSPOSE if depth_stride == 1 else _VECTOR_ANY
    return render(text, name=name, sw=width_stride, sd=depth_stride)


def pack_rows(name: str, width_stride: int, depth_stride: int) -> str:
    """A function template ``name<MR>(to, from, depth)`` that fills a panel of MR rows."""
    if width_stride == 1:
        text = _ROWS_COPY
    else:
        text = _ROWS_TRANSPOSE if depth_stride == 1 else _ROWS_ANY
    return render(text, name=name, sw=width_stride, sd=depth_stride)
