// Threads of a block as fibers: their stacks, how they take turns and meet, and what a launch is. A part of twin.h.
#ifndef DCIR_TWIN_FIBERS_H
#define DCIR_TWIN_FIBERS_H

extern "C" void *malloc(unsigned long);
extern "C" void *calloc(unsigned long, unsigned long);
extern "C" void free(void *);
extern "C" char *getenv(const char *);
extern "C" long strtol(const char *, char **, int);

#ifdef __x86_64__
// Saves what a call has to keep, and the stack, and goes on with another. swapcontext would ask the kernel for the signal mask each time.
extern "C" void dcir_twin_switch(void **left, void *entered);
asm(".text\n.weak dcir_twin_switch\n.type dcir_twin_switch, @function\ndcir_twin_switch:\n"
    "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
    "movq %rsp, (%rdi)\nmovq %rsi, %rsp\n"
    "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\nret\n"
    ".size dcir_twin_switch, .-dcir_twin_switch\n");
#else
#include <ucontext.h>
#endif

namespace dcir_twin {

struct dim3 {
    unsigned x = 1, y = 1, z = 1;
};

enum Waiting { FRESH, READY, BARRIER, WARP, DONE };

// A piece on its way into shared memory.
struct Copy {
    void *tile;
    void (*put)(void *, int, const unsigned short *, int);
    int at, line;
    unsigned short halves[8];
};

constexpr int MOST_COPIES = 16;

struct Fiber {
    void *context;
    char *stack;
    Waiting waiting;
    const char *what;
    int line;
    unsigned shuffles;
    unsigned long long sent[2];
    unsigned shown[2][6];
    Copy copies[MOST_COPIES];
    int copying;
};

constexpr int MOST_THREADS = 1024;
constexpr unsigned long STACK = 256 << 10;

// A shared array of a kernel. The state is that of all libraries of the process, so they are as many as these have.
struct Shared {
    void *object;
    void (*reset)(void *);
    const char *kernel;
    Shared *next;
};

struct State {
    Fiber fibers[MOST_THREADS];
    int order[MOST_THREADS];
    int threads = 0, current = 0, free_stacks = 0;
    dim3 block, grid;
    // Blocks and launches so far, and meetings of this block's threads: who touched something when.
    unsigned long long launches = 0, blocks = 0, epoch = 0;
    unsigned long long bytes_loaded = 0, bytes_stored = 0, switches = 0, bank_conflicts = 0;
    void *main_context = nullptr;
    char *stacks[MOST_THREADS];
    Shared *shared = nullptr;
    void (*run)(void *) = nullptr;
    void *body = nullptr;
    const char *kernel = "";
    char fault[512] = "";
    bool failed = false;
};

inline State &state() {
    static State s;
    return s;
}

// What went wrong first, or an empty text.
inline const char *fault() { return state().fault; }

#ifdef __x86_64__
inline void enter(Fiber &f) { dcir_twin_switch(&state().main_context, f.context); }
inline void leave(Fiber &f) { dcir_twin_switch(&f.context, state().main_context); }
#else
inline void enter(Fiber &f) { swapcontext((ucontext_t *)state().main_context, (ucontext_t *)f.context); }
inline void leave(Fiber &f) { swapcontext((ucontext_t *)f.context, (ucontext_t *)state().main_context); }
#endif

inline void note(const char *what, int line) {
    State &s = state();
    if (s.failed) return;
    s.failed = true;
    __builtin_snprintf(s.fault, sizeof s.fault, "%s: %s, line %d, thread %d of block (%u, %u)", s.kernel, what, line, s.current, s.block.x, s.block.y);
}

// Ends the launch; the fiber is never entered again.
inline void fail(const char *what, int line) {
    State &s = state();
    note(what, line);
    s.fibers[s.current].waiting = DONE;
    leave(s.fibers[s.current]);
}

inline void wait(Waiting for_whom, const char *what, int line) {
    State &s = state();
    Fiber &f = s.fibers[s.current];
    f.waiting = for_whom;
    f.what = what;
    f.line = line;
    leave(f);
}

inline void first() {
    State &s = state();
    s.run(s.body);
    if (s.fibers[s.current].copying) fail("a copy into shared memory is not waited for", s.fibers[s.current].copies[0].line);
    s.fibers[s.current].waiting = DONE;
    leave(s.fibers[s.current]);
}

inline void begin(Fiber &f) {
    State &s = state();
    f.stack = s.free_stacks ? s.stacks[--s.free_stacks] : (char *)malloc(STACK);
    f.shuffles = 0;
    f.copying = 0;
#ifdef __x86_64__
    // As after a call: 8 bytes below a multiple of 16.
    void **top = (void **)(((unsigned long long)f.stack + STACK) & ~15ull);
    *--top = nullptr;
    *--top = (void *)first;
    for (int i = 0; i < 6; i++) *--top = nullptr;
    f.context = top;
#else
    if (!s.main_context) s.main_context = malloc(sizeof(ucontext_t));
    if (!f.context) f.context = malloc(sizeof(ucontext_t));
    ucontext_t *c = (ucontext_t *)f.context;
    getcontext(c);
    c->uc_stack.ss_sp = f.stack;
    c->uc_stack.ss_size = STACK;
    c->uc_link = nullptr;
    makecontext(c, first, 0);
#endif
}

// Releases whoever waits for the same, warp by warp and then the whole block; false if nobody can go on.
inline bool release() {
    State &s = state();
    bool some = false;
    for (int w = 0; w < s.threads; w += 32) {
        const int end = w + 32 < s.threads ? w + 32 : s.threads;
        bool all = true;
        for (int t = w; t < end; t++) all &= s.fibers[t].waiting == WARP && s.fibers[t].line == s.fibers[w].line;
        if (!all) continue;
        for (int t = w; t < end; t++) s.fibers[t].waiting = READY;
        some = true;
    }
    if (some) return true;
    for (int t = 0; t < s.threads; t++)
        if (s.fibers[t].waiting != BARRIER || s.fibers[t].line != s.fibers[0].line) return false;
    for (int t = 0; t < s.threads; t++) s.fibers[t].waiting = READY;
    s.epoch++;
    return true;
}

// Names two meetings that wait for each other.
inline void tell_divergence() {
    State &s = state();
    int here = -1, there = -1, ended = 0;
    for (int t = 0; t < s.threads; t++) {
        const Fiber &f = s.fibers[t];
        ended += f.waiting == DONE;
        if (f.waiting == DONE) continue;
        if (here < 0) here = t;
        const Fiber &h = s.fibers[here];
        if (there < 0 && (f.waiting != h.waiting || f.line != h.line)) there = t;
    }
    const Fiber &h = s.fibers[here];
    char text[256];
    if (there >= 0) {
        const Fiber &o = s.fibers[there];
        __builtin_snprintf(text, sizeof text, "not all threads reach the %s: thread %d waits at the %s of line %d, and %d have ended",
                           h.what, there, o.what, o.line, ended);
    } else {
        __builtin_snprintf(text, sizeof text, "not all threads reach the %s: %d of %d have ended", h.what, ended, s.threads);
    }
    s.current = here;
    note(text, h.line);
}

inline void run_block() {
    State &s = state();
    s.blocks++;
    s.epoch++;
    for (Shared *a = s.shared; a; a = a->next)
        if (a->kernel == s.kernel) a->reset(a->object);
    for (int t = 0; t < s.threads; t++) s.fibers[t].waiting = FRESH;
    for (;;) {
        bool moved = false;
        for (int i = 0; i < s.threads && !s.failed; i++) {
            const int t = s.order[i];
            Fiber &f = s.fibers[t];
            if (f.waiting != FRESH && f.waiting != READY) continue;
            if (f.waiting == FRESH) begin(f);
            moved = true;
            s.current = t;
            s.switches++;
            enter(f);
            if (f.waiting == DONE && !s.failed) s.stacks[s.free_stacks++] = f.stack;
        }
        if (s.failed) return;
        if (moved) continue;
        bool done = true;
        for (int t = 0; t < s.threads; t++) done &= s.fibers[t].waiting == DONE;
        if (done) return;
        if (!release()) return tell_divergence();
    }
}

inline unsigned long long next_random(unsigned long long &x) {
    x = x * 6364136223846793005ull + 1442695040888963407ull;
    return x >> 33;
}

// The order of threads, and which block comes i-th.
struct Order {
    int kind;
    unsigned long long seed, step, start;
    explicit Order(unsigned long long blocks) {
        const char *text = getenv("DCIR_TWIN_ORDER");
        kind = !text || !*text || *text == 'f' ? 0 : *text == 'b' ? 1 : 2;
        seed = kind == 2 ? (unsigned long long)strtol(text, nullptr, 10) * 2654435761ull + 1 : 0;
        step = 1, start = 0;
        if (kind == 2) {
            start = next_random(seed) % blocks;
            step = next_random(seed) % blocks | 1;
            while (step > 1 && common(step, blocks) != 1) step += 2;
        }
    }
    static unsigned long long common(unsigned long long a, unsigned long long b) {
        while (b) {
            unsigned long long r = a % b;
            a = b;
            b = r;
        }
        return a;
    }
    unsigned long long block(unsigned long long i, unsigned long long blocks) const {
        return kind == 0 ? i : kind == 1 ? blocks - 1 - i : (start + i % blocks * (step % blocks)) % blocks;
    }
    void threads(State &s) {
        for (int t = 0; t < s.threads; t++) s.order[t] = kind == 1 ? s.threads - 1 - t : t;
        for (int t = s.threads - 1; kind == 2 && t > 0; t--) {
            const int other = (int)(next_random(seed) % (t + 1)), kept = s.order[t];
            s.order[t] = s.order[other];
            s.order[other] = kept;
        }
    }
};

// Runs a kernel: body() is one thread of it. 0, or not if there was a fault, now or before.
template <class Body>
inline int launch(dim3 grid, dim3 block, unsigned shared_bytes, const Body &body, const char *kernel = "kernel") {
    State &s = state();
    if (s.failed) return 1;
    s.kernel = kernel;
    s.run = [](void *b) { (*(const Body *)b)(); };
    s.body = (void *)&body;
    s.grid = grid;
    s.threads = (int)(block.x * block.y * block.z);
    s.launches++;
    s.current = 0;
    if (s.threads < 1 || s.threads > MOST_THREADS || block.y != 1 || block.z != 1) note("a block has 1 to 1024 threads in one row", 0);
    if (shared_bytes) note("shared memory of a size that a launch decides is not known here", 0);
    const unsigned long long blocks = (unsigned long long)grid.x * grid.y * grid.z;
    if (!blocks || grid.y > 65535 || grid.z > 65535 || grid.x > 0x7fffffffu) note("a grid of no blocks, or of too many", 0);
    if (s.failed) return 1;
    Order order(blocks);
    for (unsigned long long i = 0; i < blocks && !s.failed; i++) {
        const unsigned long long b = order.block(i, blocks);
        s.block.x = (unsigned)(b % grid.x);
        s.block.y = (unsigned)(b / grid.x % grid.y);
        s.block.z = (unsigned)(b / grid.x / grid.y);
        order.threads(s);
        run_block();
    }
    return s.failed;
}

// Forgets the fault, the buffers' table is memory.h's.
inline void forget_fault() {
    State &s = state();
    // Fibers that were left hold their stacks; what an address sanitizer knows of these is not to be used again.
    if (s.failed) s.free_stacks = 0;
    s.failed = false;
    s.fault[0] = 0;
}

}  // namespace dcir_twin

#endif
