"""C++ of the entry that repeated calls take: a function of the interpreter's own calling convention that looks for changes and runs.

    int dcir_enter(address of an Entry, of a table, of the call back, and what the entry's slots are to point to)

Between two calls of a small network its weights have pushed the interpreter's data out of the near caches, so every object that a call
touches costs time, and a call through ctypes touches many. The convention (``METH_FASTCALL``) and the interpreter's functions belong to
its stable interface; ``dcir/runtime/entry.py`` hands over their addresses, so a library needs no header of Python's.
"""

OTHER_MODES, CHANGED = 1 << 30, (1 << 30) + 1
"""What ``dcir_enter`` returns where it ran nothing: the thread's dispatch keys are others; something is not as it was noted."""

ENTRY = f"""
namespace {{
struct Interpreter {{
  void* (*address)(void*); void* (*number)(long); void* (*release)(); void (*take)(void*);
  const unsigned long long* (*symbol)(void*, const char*); void* library; const char* keys;
  void* (*member)(void*, long long); const void* (*item)(void*, void*); void (*hold)(void*); void (*let_go)(void*);
}};
struct Entry {{
  const Dictionary* dictionaries; long long n; const Tensor* tensors; long long m; const Functions* functions;
  unsigned long long keys[2]; long long count; const int* slots; long long compares; unsigned long long fingerprint;
}};
const Interpreter* python;
bool other_keys(const Entry& e) {{
  // Each thread has dispatch keys of its own.
  static __thread const unsigned long long* keys;
  if (!keys) keys = python->symbol(python->library, python->keys);
  return !keys || keys[0] != e.keys[0] || keys[1] != e.keys[1];
}}
int entered(const Entry& e, void** table, void* call_back, void* const* pointers) {{
  if (other_keys(e)) return {OTHER_MODES};
  if (dcir_watch(e.dictionaries, e.n, e.tensors, e.m, e.functions)) return {CHANGED};
  for (long long i = 0; i < e.count; i++) table[e.slots[i]] = python->address(pointers[i]);
  if (e.compares && dcir_fingerprint(table) != e.fingerprint) return {CHANGED};
  void* state = python->release();
  const int code = dcir_run(table, (int (*)(int))call_back);
  python->take(state);
  return code;
}}
}}
extern "C" __attribute__((visibility("default"))) void dcir_interpreter(const Interpreter* given) {{ python = given; }}
extern "C" __attribute__((visibility("default"))) void* dcir_enter(void*, void* const* args, long long) {{
  const Entry* e = (const Entry*)python->address(args[0]);
  return python->number(entered(*e, (void**)python->address(args[1]), python->address(args[2]), args + 3));
}}
"""
