// A team of OpenMP on POSIX threads: what generated code asks of libgomp, by means whose order ThreadSanitizer knows.
//
// Preloaded, it takes the place of libgomp, whose barriers are system calls that no sanitizer of GCC's understands.
#include <pthread.h>

namespace {
struct Team {
    pthread_barrier_t barrier;
    int size;
    void (*work)(void *);
    void *data;
    unsigned singles;
};
struct Member {
    Team *team;
    int number;
    unsigned singles;
};
thread_local Member me;
int width = 1;

void *begin(void *at) {
    me = *(Member *)at;
    me.team->work(me.team->data);
    return nullptr;
}
}  // namespace

extern "C" {
int omp_get_thread_num() { return me.number; }
int omp_get_num_threads() { return me.team ? me.team->size : 1; }
int omp_get_max_threads() { return __atomic_load_n(&width, __ATOMIC_RELAXED); }
int omp_in_parallel() { return me.team != nullptr; }
void omp_set_num_threads(int n) { __atomic_store_n(&width, n, __ATOMIC_RELAXED); }

void GOMP_barrier() {
    if (me.team) pthread_barrier_wait(&me.team->barrier);
}

// Whoever comes first to a turn. Relaxed: an order that OpenMP does not promise would hide races.
bool GOMP_single_start() {
    if (!me.team) return true;
    unsigned turn = me.singles++;
    return __atomic_compare_exchange_n(&me.team->singles, &turn, turn + 1, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}

void GOMP_parallel(void (*work)(void *), void *data, unsigned wanted, unsigned) {
    const Member outside = me;
    Team team = {{}, wanted ? (int)wanted : outside.team ? 1 : omp_get_max_threads(), work, data, 0};
    pthread_barrier_init(&team.barrier, nullptr, team.size);
    pthread_t *threads = new pthread_t[team.size];
    Member *members = new Member[team.size];
    for (int n = 1; n < team.size; n++) {
        members[n] = {&team, n, 0};
        pthread_create(threads + n, nullptr, begin, members + n);
    }
    me = {&team, 0, 0};
    work(data);
    for (int n = 1; n < team.size; n++) pthread_join(threads[n], nullptr);
    me = outside;
    pthread_barrier_destroy(&team.barrier);
    delete[] members;
    delete[] threads;
}

// A dynamic loop in one of the ways that OpenMP allows: the first member takes all of it.
bool GOMP_loop_nonmonotonic_dynamic_start(long start, long end, long, long, long *from, long *to) {
    *from = start;
    *to = end;
    return me.number == 0 && start != end;
}
bool GOMP_loop_nonmonotonic_dynamic_next(long *, long *) { return false; }
void GOMP_loop_end_nowait() {}
}
