"""C++ that finds in a strip of indices those that lie in a range, and whether one leads outside."""

from __future__ import annotations

# Indices of a strip: with what is found of them they stay in the first-level cache.
STRIP = 1024

# Appended without a branch: nobody could predict it.
_TEXT = """
// Numbers of the indices in [low, low + span), in order. An index outside, or its distance from the last place, is negative: so is
// ``outside`` then.
template <class T> static int d_find(const T* index, int count, long long low, unsigned long long span, int* found, long long& outside) {{
  int n = 0, e = 0;
  unsigned long long out = 0;
#ifdef __AVX512VL__
  typedef long long Places __attribute__((vector_size(64)));
  typedef unsigned long long Bits __attribute__((vector_size(64)));
  typedef int Numbers __attribute__((vector_size(32)));
  typedef Numbers AnyNumbers __attribute__((aligned(4), may_alias));
  typedef T AnyIndices __attribute__((vector_size(8 * sizeof(T)), aligned(sizeof(T)), may_alias));
  Bits outs = {{}};
  for (Numbers numbers = {{0, 1, 2, 3, 4, 5, 6, 7}}; e + 8 <= count; e += 8, numbers += 8) {{
    Places k = {eight};
    unsigned char mine = 255;
    {pass_eight}{wrap_eight}
    outs |= (Bits)k | ({extent}ULL - 1 - (Bits)k);
    mine = __builtin_ia32_ucmpq512_mask((Places)((Bits)k - low), (Places)(Bits{{}} + span), 1, mine);
    *(AnyNumbers*)(found + n) = __builtin_ia32_compresssi256_mask(numbers, Numbers{{}}, mine);
    n += __builtin_popcount(mine);
  }}
  for (int l = 0; l < 8; l++) out |= outs[l];
#endif
  for (; e < count; e++) {{
    long long k = (long long)index[e * {step}LL];
    bool mine = true;
    {pass_one}{wrap}
    out |= (unsigned long long)k | ({extent}ULL - 1 - (unsigned long long)k);
    found[n] = e;
    n += mine & ((unsigned long long)k - low < span);
  }}
  outside |= (long long)out;
  return n;
}}
"""
SLACK = 8
"""Numbers behind those found that ``d_find`` may write."""


def find_function(step: int, extent: int, *, wrap: bool, skip: int | None) -> str:
    """``d_find`` for indices ``step`` elements apart.

    Args:
        step: their distance.
        extent: how many values they may take.
        wrap: whether negative ones count from the end.
        skip: a value that is neither outside nor found.
    """
    several = ", ".join(f"index[(e + {lane}) * {step}LL]" for lane in range(8))
    return _TEXT.format(
        step=step, extent=extent,
        eight="__builtin_convertvector(*(const AnyIndices*)(index + e), Places)" if step == 1 else f"{{{several}}}",
        wrap=f"k += k < 0 ? {extent}LL : 0;" if wrap else "",
        wrap_eight=f"k += (k >> 63) & {extent}LL;" if wrap else "",
        **_passing(skip),
    )  # fmt: skip


def _passing(skip: int | None) -> dict[str, str]:
    """Lines that make of a value to pass over one that lies inside and is not found."""
    if skip is None:
        return {"pass_one": "", "pass_eight": ""}
    passed = f"k == {skip}LL"
    return {
        "pass_one": f"mine = !({passed}); k = mine ? k : 0; ",
        "pass_eight": f"mine = __builtin_ia32_cmpq512_mask(k, Places{{}} + {skip}LL, 4, mine); k &= ~({passed}); ",
    }
