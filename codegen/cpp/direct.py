"""C++ of a whole call: a function of the interpreter's that takes the user's tensors and gives the result, or says that it cannot.

    PyObject* dcir_direct(tuple that begins with the address of a Direct, tensors, how many)

It compares all that the long way's guards look at (``dcir/runtime/direct.py`` notes it), then makes the result, fills the table and runs.
Of a small network's call half was the interpreter's way to ``dcir_enter`` and back, and Dynamo's guards: thousands of lines of code and
data that the weights have pushed out of the near caches. Here they are rows that lie behind each other.
"""

LARGEST_ARITY = 16
"""How many tensors a call may have."""

DIRECT = f"""
namespace {{
// Item ``key`` of a dictionary, an attribute of an object, and what must be there.
struct Item {{ void* dictionary; void* key; const void* value; }};
struct Field {{ const void* const* at; const void* value; }};
struct Input {{ unsigned long long keys; long long slot; Tensor noted; }};
struct Direct {{
  Entry entry; void** table;
  const Dictionary* dictionaries; long long n; const Item* items; long long count; const Field* fields; long long places;
  const Input* inputs; long long arity; const void* kind; const void* missed;
  long long values, dictionary, tensor, keys;
  const void* (*modes)(void*, void*); void* noted_modes; const void* same_modes; long long (*stack)(); bool (*gradient)(const void*);
  void* (*result)(void*, void*); void* result_module; void* result_layout; long long result_slot;
  long long busy, broken, used;
}};
const void* word(const void* object, long long at) {{ return *(const void* const*)((const char*)object + at); }}
void* missed(const Direct& d) {{ python->hold((void*)d.missed); return (void*)d.missed; }}
bool other_inputs(const Direct& d, void* const* args, const void** tensors) {{
  for (long long i = 0; i < d.arity; i++) {{
    if (word(args[i], 8) != d.kind) return true;
    // Attributes may be marks for Dynamo, which leaves an empty dictionary where it has looked for some.
    const void* attributes = word(args[i], d.dictionary);
    if (word(args[i], d.values) || (attributes && word(attributes, 16))) return true;
    tensors[i] = word(args[i], d.tensor);
    const Input& noted = d.inputs[i];
    if ((unsigned long long)word(tensors[i], d.keys) != noted.keys || d.gradient(tensors[i])) return true;
    if (other_layout(noted.noted, (void*)(tensors + i), d.entry.functions)) return true;
    for (long long k = 0; k < i; k++) if (tensors[k] == tensors[i]) return true;
    for (long long k = 0; k < d.entry.m; k++) if (d.entry.tensors[k].near[0] == tensors[i]) return true;
  }}
  return false;
}}
bool other_surroundings(const Direct& d) {{
  if (other_versions(d.dictionaries, d.n)) return true;
  for (long long i = 0; i < d.places; i++) if (*d.fields[i].at != d.fields[i].value) return true;
  for (long long i = 0; i < d.count; i++) if (python->item(d.items[i].dictionary, d.items[i].key) != d.items[i].value) return true;
  return false;
}}
bool other_modes(const Direct& d) {{
  if (other_keys(d.entry) || d.stack()) return true;
  const void* answer = d.modes(d.noted_modes, nullptr);
  python->let_go((void*)answer);
  return answer != d.same_modes;
}}
int run_with(Direct& d, const void** tensors, const void* result) {{
  const Entry& e = d.entry;
  if (other_surroundings(d)) return d.broken = 1;
  if (dcir_watch(e.dictionaries, e.n, e.tensors, e.m, e.functions)) return 1;
  for (long long i = 0; i < d.arity; i++)
    if (d.inputs[i].slot >= 0 && e.functions->data((void*)(tensors + i), d.table + d.inputs[i].slot)) return 1;
  const void* made = word(result, d.tensor);
  if (e.functions->data(&made, d.table + d.result_slot)) return 1;
  if (e.compares && dcir_fingerprint(d.table) != e.fingerprint) return 1;
  void* state = python->release();
  const int code = dcir_run(d.table, nullptr);
  python->take(state);
  d.used += !code;
  return code;
}}
}}
extern "C" __attribute__((visibility("default"))) void* dcir_direct(void* self, void* const* args, long long count) {{
  Direct& d = *(Direct*)python->address(python->member(self, 0));
  ask_for(d.entry.tensors, d.entry.m);
  const void* tensors[{LARGEST_ARITY}];
  if (count != d.arity || d.busy || other_inputs(d, args, tensors) || other_modes(d)) return missed(d);
  // Others see this before they could use the table: another thread, or what a garbage collection calls.
  d.busy = 1;
  void* result = d.result(d.result_module, d.result_layout);
  const int code = result ? run_with(d, tensors, result) : 0;
  d.busy = 0;
  if (!code) return result;
  python->let_go(result);
  return missed(d);  // if it ran and failed, those who can say what is wrong run it again
}}
"""
