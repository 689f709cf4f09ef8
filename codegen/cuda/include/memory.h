// Checked memory of the twin: shared arrays that know who touched each element when, and buffers that know where they end. A part of twin.h.
#ifndef DCIR_TWIN_MEMORY_H
#define DCIR_TWIN_MEMORY_H

namespace dcir_twin {

// Who touched something last: in which launch, in which block, between which of its meetings, which thread.
struct Mark {
    unsigned long long launch = 0, block = 0, epoch = 0;
    int thread = -1;
};

inline Mark now() {
    const State &s = state();
    return {s.launches, s.blocks, s.epoch, s.current};
}

// Whether another thread touched it with nothing in between that orders the two.
inline bool clashes(const Mark &m) {
    const State &s = state();
    if (m.launch != s.launches || m.thread < 0) return false;
    return m.block != s.blocks || (m.epoch == s.epoch && m.thread != s.current);
}

// An index, and the line that it stands in.
struct Place {
    long long at;
    int line;
    Place(long long at, int line = __builtin_LINE()) : at(at), line(line) {}
    operator long long() const { return at; }
};

template <class T, int N> struct SharedArray {
    T data[N];
    Mark wrote[N], read[N];
    bool written[N];
    Shared here;

    SharedArray() {
        State &s = state();
        here = {this, [](void *a) { ((SharedArray *)a)->reset(); }, s.kernel, s.shared};
        s.shared = &here;
        reset();
    }
    void reset() {
        __builtin_memset((void *)data, 0xff, sizeof data);
        for (int i = 0; i < N; i++) {
            wrote[i] = read[i] = Mark();
            written[i] = false;
        }
    }
    struct Element {
        SharedArray &array;
        long long at;
        int line;
        operator T() const {
            if (!array.written[at]) fail("shared memory is read where nobody has written", line);
            if (clashes(array.wrote[at])) fail("race on shared memory: read while another thread writes", line);
            array.read[at] = now();
            return array.data[at];
        }
        void operator=(T value) const {
            if (clashes(array.wrote[at])) fail("race on shared memory: two threads write", line);
            if (clashes(array.read[at])) fail("race on shared memory: written while another thread reads", line);
            array.wrote[at] = now();
            array.written[at] = true;
            array.data[at] = value;
        }
        void operator=(const Element &other) const { *this = (T)other; }
    };
    Element operator[](Place p) {
        if (p.at < 0 || p.at >= N) fail("shared memory is touched outside of its array", p.line);
        return {*this, p.at, p.line};
    }
};

struct Buffer {
    const char *begin, *end;
    // Of results and of own memory: per byte who wrote and who read, and whether anybody ever wrote.
    Mark *wrote, *read;
    bool *written;
};

struct Buffers {
    Buffer of[64];
    int count = 0;
};

inline Buffers &buffers() {
    static Buffers b;
    return b;
}

// Makes known memory that kernels may touch; with result, what they write, and read only afterwards unless it is filled already.
inline void buffer(const void *p, unsigned long bytes, bool result, bool filled = false) {
    Buffers &b = buffers();
    if (b.count == 64) return note("more than 64 buffers", 0);
    Buffer &n = b.of[b.count++];
    n.begin = (const char *)p;
    n.end = n.begin + bytes;
    n.wrote = n.read = nullptr;
    n.written = nullptr;
    if (!result) return;
    n.wrote = (Mark *)calloc(bytes + 1, sizeof(Mark));
    n.read = (Mark *)calloc(bytes + 1, sizeof(Mark));
    n.written = (bool *)calloc(bytes + 1, 1);
    if (filled) __builtin_memset(n.written, 1, bytes);
}

// Bytes of results that no launch has written since they were made known.
inline unsigned long unwritten() {
    unsigned long count = 0;
    for (int i = 0; i < buffers().count; i++) {
        const Buffer &b = buffers().of[i];
        for (long k = 0; b.written && k < b.end - b.begin; k++) count += !b.written[k];
    }
    return count;
}

inline void forget_buffers() {
    Buffers &b = buffers();
    for (int i = 0; i < b.count; i++) {
        free(b.of[i].wrote);
        free(b.of[i].read);
        free(b.of[i].written);
    }
    b.count = 0;
}

// One access of a thread to global memory; atomic ones do not clash with each other.
inline void touch(const void *p, unsigned long bytes, unsigned long alignment, bool writes, int line, bool atomic = false) {
    State &s = state();
    (writes ? s.bytes_stored : s.bytes_loaded) += bytes;
    if ((unsigned long long)p % alignment) fail("a vector is moved at an address that is no multiple of its size", line);
#ifndef DCIR_TWIN_FAST
    Buffers &b = buffers();
    if (!b.count) return;
    const char *at = (const char *)p;
    Buffer *found = nullptr;
    for (int i = 0; i < b.count && !found; i++)
        if (at >= b.of[i].begin && at + bytes <= b.of[i].end) found = &b.of[i];
    if (!found) return fail(writes ? "a store outside of the operands" : "a load outside of the operands", line);
    if (!found->written) {
        if (writes) fail("a store to an operand that is only read", line);
        return;
    }
    for (unsigned long i = 0; i < bytes; i++) {
        const long k = at - found->begin + i;
        if (atomic) {
            if (!found->written[k]) fail("a load of what nobody has written", line);
            continue;
        }
        if (clashes(found->wrote[k])) fail(writes ? "race: two threads write" : "race: read while another thread writes", line);
        if (writes && clashes(found->read[k])) fail("race: written while another thread reads", line);
        if (!writes && !found->written[k]) fail("a load of what nobody has written", line);
        (writes ? found->wrote : found->read)[k] = now();
        found->written[k] |= writes;
    }
#endif
}

}  // namespace dcir_twin

#ifdef DCIR_TWIN_FAST
#define D_SHARED(T, name, n) static T name[n]
#else
#define D_SHARED(T, name, n) static dcir_twin::SharedArray<T, n> name
#endif
#define D_SHARED_TILE(name, n) D_SHARED(unsigned short, name, n)

#endif
