// How code of stock DaCe calls whoever runs it: a pointer that is set once the library is loaded.
#ifndef DCIR_CALL_OUT
#define DCIR_CALL_OUT
#include <cstdio>
#include <cstdlib>
extern "C" {
static void dcir_call_nobody(const char *, void *const *, const long long *) {
  std::fputs("dcir: this code calls operators of torch, and nobody has set dcir_call_out\n", stderr);
  std::abort();
}
// The call, where each operand begins, and how many elements of its array follow from there.
void (*dcir_call_out)(const char *, void *const *, const long long *) = dcir_call_nobody;
}
// Where an operand begins; DaCe hands a tasklet the one element of an array by its value.
template <class T> static inline void *dcir_place(T *array, long long offset) { return (void *)(array + offset); }
template <class T> static inline void *dcir_place(T &element, long long) { return (void *)&element; }
#endif
