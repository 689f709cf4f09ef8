"""C++ that tells in one call whether a module's tree is as it was: the versions of its dictionaries, and where its tensors are.

    int dcir_watch(dictionaries, n, tensors, m, functions)   0: as noted, 1: other contents, 2: another structure
    void dcir_note(dictionaries, n, tensors, m, functions)   notes what is there now

Both are called with the interpreter's lock held. A dictionary's version lies behind its header (PEP 509); what is asked of a
tensor goes through torch's own functions, whose addresses the caller hands over in the order of ``FUNCTIONS``, so a library
needs torch neither to be compiled nor to be linked. ``dcir/runtime/watch.py`` fills the rows.
"""

from __future__ import annotations

from dcir.codegen.cpp.template import templates

FUNCTIONS = (
    "aoti_torch_get_data_ptr",
    "aoti_torch_get_dtype",
    "aoti_torch_get_dim",
    "aoti_torch_get_sizes",
    "aoti_torch_get_strides",
    "_ZNK2at10TensorBase8_versionEv",
)
LARGEST_RANK = 6

WATCH = templates("driver/watch").watch(largest_rank=LARGEST_RANK)
