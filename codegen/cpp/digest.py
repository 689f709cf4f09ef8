"""C++ that digests memory at its own speed: whether weights that others may write are what they were.

    void dcir_digest(const void* const* from, const long long* bytes, long long n, unsigned long long* to)

Each lane of a vector takes its words in two ways, ``a = a * P + w`` and ``b = (b ^ w) * Q`` with odd P and Q. Either is one to one in the
word and in what was before, so a single changed word changes both for certain, and several that cancel in one do not in the other but
with a chance of 2^-32 each. Blocks are digested by the whole team; where a block lies counts, the order of blocks does not.
"""

from __future__ import annotations

from dcir.codegen.cpp.template import templates

BLOCK_BYTES = 1 << 18

DIGEST = templates("driver/digest").digest(block_bytes=BLOCK_BYTES)
