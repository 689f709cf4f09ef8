/* Runs a compiled network from C: ./run_model weights.safetensors input0.bin ...; see README.md beside this file.
 * Inputs are raw elements in the order of dcir.h; the first values of every float result are printed. */
#include <string.h>

#include "dcir.h"

static void *load(const char *path, size_t bytes) {
    FILE *file = fopen(path, "rb");
    void *memory = dcir_memory(bytes);
    if (!file || !memory || fread(memory, 1, bytes, file) != bytes) {
        fprintf(stderr, "%s: cannot read %zu bytes\n", path, bytes);
        exit(2);
    }
    fclose(file);
    return memory;
}

int main(int count, char **arguments) {
    void *inputs[DCIR_INPUTS + 1], *buffers[DCIR_BUFFERS + 1];
    if (count != 2 + DCIR_INPUTS || DCIR_CALLS_INTO_TORCH) {
        fprintf(stderr, "usage: run_model WEIGHTS and %d inputs\n", DCIR_INPUTS);
        return 2;
    }
    dcir_model *model = dcir_open(arguments[1]);
    if (!model) return 2;
    for (int i = 0; i < DCIR_INPUTS; i++) inputs[i] = load(arguments[2 + i], dcir_inputs[i].bytes);
    for (int i = 0; i < DCIR_BUFFERS; i++) buffers[i] = dcir_memory(dcir_buffers[i].bytes);

    int status = dcir_call(model, (const void *const *)inputs, buffers);
    for (int i = 0; status == 0 && i < DCIR_OUTPUTS; i++) {
        const dcir_output *out = &dcir_outputs[i];
        if (out->source != 'b' || strcmp(dcir_buffers[out->index].type, "f32")) continue;
        const float *values = (const float *)buffers[out->index] + out->offset;
        size_t size = dcir_buffers[out->index].bytes / sizeof(float) - (size_t)out->offset;
        printf("%s", out->name);
        for (size_t k = 0; k < size && k < 8; k++) printf(" %.6g", values[k]);
        printf("\n");
    }
    dcir_close(model);
    return status;
}
