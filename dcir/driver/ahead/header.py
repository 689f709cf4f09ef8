"""The C header of a .dcir file: what the library's one function wants, and helpers to load weights and call it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dcir.ir.types import itemsize
from dcir.runtime.manifest import Manifest, extent

_TEXT = """\
/* A compiled network. Link with network.so:
 *
 *     #include "dcir.h"
 *     dcir_model *model = dcir_open("weights.safetensors");
 *     int status = dcir_call(model, inputs, buffers);
 *     dcir_close(model);
 *
 * dcir_run and dcir_prepare are the library's own functions. table[0] is a 64-byte aligned arena of DCIR_ARENA_BYTES,
 * table[1] one of DCIR_PREPARED_BYTES that dcir_prepare fills once the weights are there; the other entries
 * are the slots named below, filled with addresses of inputs, weights and buffers. call_back runs operator number n
 * through torch and answers 0; this network has DCIR_CALLS_INTO_TORCH of them, and from C only networks without any
 * can be called. dcir_run answers 0, or 1 + the number of the operator that met an index outside its tensor, or
 * -1 - the number of the call back that failed.
 * Strides and offsets count elements. A model is used by one thread at a time; open one per thread. Buffers hold other
 * values until their own are written: they must not share memory with inputs.
 */
#ifndef DCIR_H
#define DCIR_H

#include <stdio.h>
#include <stdlib.h>

#define DCIR_INPUTS @inputs@
#define DCIR_BUFFERS @buffers@
#define DCIR_WEIGHTS @weights@
#define DCIR_OUTPUTS @outputs@
#define DCIR_TABLE_SIZE @table_size@
#define DCIR_ARENA_BYTES @arena_bytes@ull
#define DCIR_PREPARED_BYTES @prepared_bytes@ull
#define DCIR_CALLS_INTO_TORCH @calls_into_torch@

#ifdef __cplusplus
extern "C" {
#endif

int dcir_run(void **table, int (*call_back)(int));
int dcir_prepare(void **table);

typedef struct dcir_tensor {
    const char *name, *type;
    int slot; /* in the table; -1: not read */
    size_t bytes;
    int rank;
    const long long *shape, *strides;
    unsigned long long place; /* of a weight: where it begins in weights.safetensors */
} dcir_tensor;

/* A result: a window of buffers[index] (source 'b') or of inputs[index] ('i'), or a literal that C has no use for. */
typedef struct dcir_output {
    const char *name;
    char source;
    int index;
    long long offset;
    int rank;
    const long long *shape, *strides;
} dcir_output;

@tables@
typedef struct dcir_model {
    void *table[DCIR_TABLE_SIZE];
} dcir_model;

static inline int dcir_no_torch(int number) {
    (void)number;
    return 1;
}

static inline void *dcir_memory(size_t bytes) { return aligned_alloc(64, (bytes / 64 + 1) * 64); }

/* Frees what dcir_open made. */
static inline void dcir_close(dcir_model *model) {
    if (!model) return;
    free(model->table[0]);
    free(model->table[1]);
    for (int i = 0; i < DCIR_WEIGHTS; i++) free(model->table[dcir_weights[i].slot]);
    free(model);
}

/* Reads the weights; 0 if the file or the memory is not there. */
static inline dcir_model *dcir_open(const char *weights) {
    FILE *file = fopen(weights, "rb");
    dcir_model *model = file ? (dcir_model *)calloc(1, sizeof(dcir_model)) : 0;
    int good = model && (model->table[0] = dcir_memory(DCIR_ARENA_BYTES)) != 0 &&
               (model->table[1] = dcir_memory(DCIR_PREPARED_BYTES)) != 0;
    for (int i = 0; good && i < DCIR_WEIGHTS; i++) {
        const dcir_tensor *w = &dcir_weights[i];
        void *memory = model->table[w->slot] = dcir_memory(w->bytes);
        good = memory && !fseek(file, (long)w->place, SEEK_SET) && fread(memory, 1, w->bytes, file) == w->bytes;
    }
    if (file) fclose(file);
    if (good) good = !dcir_prepare(model->table);
    if (good) return model;
    dcir_close(model);
    return 0;
}

/* inputs: DCIR_INPUTS addresses; buffers: DCIR_BUFFERS addresses of memory for the results. */
static inline int dcir_call(dcir_model *model, const void *const *inputs, void *const *buffers) {
    for (int i = 0; i < DCIR_INPUTS; i++)
        if (dcir_inputs[i].slot >= 0) model->table[dcir_inputs[i].slot] = (void *)inputs[i];
    for (int i = 0; i < DCIR_BUFFERS; i++) model->table[dcir_buffers[i].slot] = buffers[i];
    return dcir_run(model->table, dcir_no_torch);
}

#ifdef __cplusplus
}
#endif
#endif
"""


def header_text(manifest: Manifest, offsets: Mapping[str, int]) -> str:
    """The header of one network; ``offsets`` says where weights begin in the file of weights."""
    numbers = _Numbers()
    weights = [
        (c.tensor, c.dtype, slot, c.shape, c.strides, offsets[c.tensor]) for c in manifest.constants for slot in c.slots
    ]
    inputs = [(x.name, x.dtype, x.slot, x.shape, x.strides, 0) for x in manifest.inputs]
    buffers = [(f"buffer {i}", b.dtype, b.slot, b.shape, b.strides, 0) for i, b in enumerate(manifest.buffers)]
    tables = [
        _tensors(name, rows, numbers) for name, rows in (("inputs", inputs), ("weights", weights), ("buffers", buffers))
    ]
    tables.append(_outputs(manifest, numbers))
    values = {
        "inputs": len(inputs),
        "buffers": len(buffers),
        "weights": len(weights),
        "outputs": len(manifest.outputs),
        "table_size": manifest.table_size,
        "arena_bytes": manifest.arena_bytes,
        "prepared_bytes": manifest.prepared_bytes,
        "calls_into_torch": len(manifest.calls_into_torch),
        "tables": numbers.text() + "".join(tables),
    }
    text = _TEXT
    for name, value in values.items():
        text = text.replace(f"@{name}@", str(value), 1)
    return text


class _Numbers:
    """All shapes and strides in one array, each list of numbers once."""

    def __init__(self) -> None:
        self.values: list[int] = []
        self.places: dict[tuple[int, ...], int] = {}

    def at(self, numbers: Sequence[int]) -> str:
        key = tuple(numbers)
        if key not in self.places:
            self.places[key] = len(self.values)
            self.values += key
        return f"dcir_numbers + {self.places[key]}"

    def text(self) -> str:
        return f"static const long long dcir_numbers[] = {{{', '.join(map(str, [*self.values, 0]))}}};\n"


Row = tuple[str, str, int, tuple[int, ...], tuple[int, ...], int]


def _tensors(name: str, rows: Sequence[Row], numbers: _Numbers) -> str:
    lines = [
        f"    {{{_string(label)}, {_string(dtype)}, {slot}, {extent(shape, strides) * itemsize(dtype)}ull, "
        f"{len(shape)}, {numbers.at(shape)}, {numbers.at(strides)}, {place}ull}},"
        for label, dtype, slot, shape, strides, place in rows
    ]
    # C has no empty arrays.
    return "\n".join([f"static const dcir_tensor dcir_{name}[] = {{", *lines, "    {0, 0, -1, 0, 0, 0, 0, 0}};", ""])


def _outputs(manifest: Manifest, numbers: _Numbers) -> str:
    lines = []
    for out in manifest.outputs:
        shape, strides = out.shape, out.strides
        if out.source != "literal" and shape is None:
            base = manifest.buffers[out.index] if out.source == "buffer" else manifest.inputs[out.index]
            shape, strides = base.shape, base.strides
        shape = shape or ()
        lines.append(
            f"    {{{_string(out.name)}, '{out.source[0]}', {out.index}, {out.offset}, {len(shape)}, "
            f"{numbers.at(shape)}, {numbers.at(strides)}}},"
        )
    return "\n".join(["static const dcir_output dcir_outputs[] = {", *lines, "    {0, 'l', 0, 0, 0, 0, 0}};", ""])


def _string(text: str) -> str:
    """A C string literal; everything but plain characters as octal escapes, so that no name can end the literal."""
    plain = (chr(b) if (chr(b).isalnum() and b < 128) or b in b" ._-/[]" else f"\\{b:03o}" for b in text.encode())
    return '"' + "".join(plain) + '"'
