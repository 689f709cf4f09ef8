"""C++ that tells in one call whether a module's tree is as it was: the versions of its dictionaries, and where its tensors are.

    int dcir_watch(dictionaries, n, tensors, m, functions)   0: as noted, 1: other contents, 2: another structure
    void dcir_note(dictionaries, n, tensors, m, functions)   notes what is there now

Both are called with the interpreter's lock held. A dictionary's version lies behind its header (PEP 509); what is asked of a
tensor goes through torch's own functions, whose addresses the caller hands over in the order of ``FUNCTIONS``, so a library
needs torch neither to be compiled nor to be linked. ``dcir/runtime/watch.py`` fills the rows.
"""

FUNCTIONS = (
    "aoti_torch_get_data_ptr",
    "aoti_torch_get_dtype",
    "aoti_torch_get_dim",
    "aoti_torch_get_sizes",
    "aoti_torch_get_strides",
    "_ZNK2at10TensorBase8_versionEv",
)
LARGEST_RANK = 6

WATCH = f"""
namespace {{
struct Dictionary {{ const char* object; unsigned long long version; }};
struct Tensor {{
  void* handle; const char* near[2]; void* data;
  long long version, kind, rank, sizes[{LARGEST_RANK}], strides[{LARGEST_RANK}];
}};
struct Functions {{
  int (*data)(void*, void**); int (*kind)(void*, int*); int (*rank)(void*, long long*);
  int (*sizes)(void*, long long**); int (*strides)(void*, long long**); long long (*version)(const void*);
}};
unsigned long long version_of(const Dictionary& d) {{ return *(const unsigned long long*)(d.object + 24); }}
bool other_versions(const Dictionary* dictionaries, long long n) {{
  unsigned long long other = 0;
  for (long long i = 0; i < n; i++) other |= version_of(dictionaries[i]) ^ dictionaries[i].version;
  return other;
}}
// Each tensor is a chain of objects that the last call's kernels have pushed out of the near caches: all are asked for first.
void ask_for(const Tensor* tensors, long long m) {{
  for (long long i = 0; i < m; i++)
    for (const char* near : tensors[i].near)
      for (int line = 0; line < 3; line++) __builtin_prefetch(near + 64 * line);
}}
bool other_layout(const Tensor& t, void* handle, const Functions* f) {{
  int kind; long long rank, *sizes, *strides;
  if (f->kind(handle, &kind) || kind != t.kind || f->rank(handle, &rank) || rank != t.rank) return true;
  if (f->sizes(handle, &sizes) || f->strides(handle, &strides)) return true;
  for (long long k = 0; k < rank; k++) if (sizes[k] != t.sizes[k] || strides[k] != t.strides[k]) return true;
  return false;
}}
}}
extern "C" __attribute__((visibility("default")))
int dcir_watch(const Dictionary* dictionaries, long long n, const Tensor* tensors, long long m, const Functions* f) {{
  if (other_versions(dictionaries, n)) return 2;
  ask_for(tensors, m);
  int result = 0;
  for (long long i = 0; i < m; i++) {{
    void* data;
    if (other_layout(tensors[i], tensors[i].handle, f) || f->data(tensors[i].handle, &data)) return 2;
    if (data != tensors[i].data || f->version(tensors[i].handle) != tensors[i].version) result = 1;
  }}
  return result;
}}
extern "C" __attribute__((visibility("default")))
int dcir_note(Dictionary* dictionaries, long long n, Tensor* tensors, long long m, const Functions* f) {{
  for (long long i = 0; i < n; i++) dictionaries[i].version = version_of(dictionaries[i]);
  for (long long i = 0; i < m; i++) {{
    Tensor& t = tensors[i];
    int kind; long long *sizes, *strides;
    if (f->kind(t.handle, &kind) || f->rank(t.handle, &t.rank) || t.rank > {LARGEST_RANK}) return 2;
    if (f->sizes(t.handle, &sizes) || f->strides(t.handle, &strides) || f->data(t.handle, &t.data)) return 2;
    t.kind = kind; t.version = f->version(t.handle);
    for (long long k = 0; k < t.rank; k++) t.sizes[k] = sizes[k], t.strides[k] = strides[k];
  }}
  return 0;
}}
"""
